//! A program on a real terminal: tmux, on a server of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{Shell, until};

pub struct Screen<'a> {
    shell: &'a Shell,
    directory: PathBuf,
    socket: String,
}

impl<'a> Screen<'a> {
    /// `name` tells the screens of one test apart; the size is columns and rows.
    pub fn start(
        shell: &'a Shell,
        directory: &Path,
        name: &str,
        (columns, rows): (u16, u16),
        words: &[String],
    ) -> Screen<'a> {
        let socket = format!("aa-{}-{name}", std::process::id());
        let screen = Screen { shell, directory: directory.to_owned(), socket };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut arguments = vec!["new-session", "-d", "-s", "it", "-x", &columns, "-y", &rows];
        arguments.extend(words.iter().map(String::as_str));
        screen.tmux(&arguments);
        screen
    }

    pub fn until_shows(&self, text: &str) {
        until(text, || self.shown().contains(text));
    }

    /// What is on the screen and what has scrolled away, without styles.
    pub fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-", "-t", "it"])
    }

    /// The same with styles.
    pub fn shown_in_colour(&self) -> String {
        self.tmux(&["capture-pane", "-e", "-p", "-S", "-", "-t", "it"])
    }

    /// A key by tmux's name for it.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", "-t", "it", key]);
    }

    /// Presses it again every two seconds: forms ignore keys that come right after they have changed.
    pub fn press_until_shows(&self, key: &str, text: &str) {
        let mut pressed: Option<Instant> = None;
        until(text, || {
            let is_shown = self.shown().contains(text);
            if !is_shown && pressed.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
                self.press(key);
                pressed = Some(Instant::now());
            }
            is_shown
        });
    }

    fn command(&self) -> Command {
        let mut command = self.shell.program("tmux");
        command.current_dir(&self.directory).args(["-L", &self.socket]);
        command
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output();
        let output = output.expect("tests/tools/install-tmux.sh installs tmux");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Screen<'_> {
    /// Closes the terminal, as a person would who shuts the window.
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}
