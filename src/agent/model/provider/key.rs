//! API keys and where they come from: a text, a file, or a command such as a password manager's. A file
//! is read and a command run when a connection is opened; the result stays in memory. Errors never repeat
//! what was read, because it may be the key. Blocking, with a time limit for commands.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::agent::model::Error;
use crate::process::Variables;

/// Keys are short; a file named by mistake may be anything.
const MOST_BYTES: u64 = 16 * 1024;
/// How much of the error output of a command is repeated.
const LONGEST_COMPLAINT: usize = 200;
/// The time limit of a command. Less than the time limit for blocking work (`threads::LIMIT`), so that
/// the error names the command.
const COMMAND: Duration = Duration::from_secs(8);

/// A key, or how to get it. Not `Debug`: it may be the secret itself.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Key {
    #[default]
    None,
    Text(String),
    File(PathBuf),
    /// A command line for `sh`, and its whole environment.
    Command(String, Variables),
}

impl Key {
    /// Whether there is one. An empty variable counts as not set.
    pub fn is_given(&self) -> bool {
        match self {
            Key::None => false,
            Key::Text(text) => !text.trim().is_empty(),
            Key::File(_) | Key::Command(..) => true,
        }
    }

    /// Its name in the configuration.
    pub(super) fn field(&self) -> &'static str {
        match self {
            Key::None | Key::Text(_) | Key::File(_) => "key_file",
            Key::Command(..) => "key_command",
        }
    }

    /// Reads the key; `None` when there is none. `setting` names what the user would have to change.
    pub fn read(&self, setting: &str) -> Result<Option<String>, Error> {
        let unusable = |why: String| Error::Unusable(format!("{why}; see `{setting}`"));
        let key = match self {
            Key::None => return Ok(None),
            Key::Text(key) => return Ok(Some(key.trim().to_owned()).filter(|key| !key.is_empty())),
            Key::File(file) => read(file).map_err(|error| {
                unusable(format!("the key file `{}` cannot be read: {error}", file.display()))
            })?,
            Key::Command(command, environment) => {
                run(command, environment, COMMAND).map_err(unusable)?
            }
        };
        match key.trim() {
            "" => Err(unusable("the key is empty".to_owned())),
            key => Ok(Some(key.to_owned())),
        }
    }
}

fn read(file: &Path) -> io::Result<String> {
    // Opening a FIFO without a writer would block for ever.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    bounded(opened)
}

fn bounded(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

/// Runs a command and returns its output. In errors the output is never repeated, because it may contain
/// the key; if the command fails, the first line of its error output is.
fn run(command: &str, environment: &Variables, limit: Duration) -> Result<String, String> {
    let mut shell = Command::new("sh");
    // A clean environment: the daemon's own has the keys of other providers.
    shell.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    let started = shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that it can be killed with everything it started.
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| format!("the key command cannot be run: {error}"))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (output, complaints) = (child.stdout.take(), child.stderr.take());
    // Both pipes are drained on threads, so that neither can fill up and block the command, and so that
    // this one can give up waiting. Detached: they end with the pipes, which a killed command closes. A
    // process that left its group may hold them open, and nothing must wait for that.
    let complaint = std::thread::spawn(move || complaints.map(first_line).unwrap_or_default());
    let (done, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let text = output.map_or_else(|| Ok(String::new()), bounded);
        let status = child.wait();
        let complaint = match &status {
            Ok(status) if !status.success() => complaint.join().unwrap_or_default(),
            Ok(_) | Err(_) => String::new(),
        };
        let _ = done.send((text, status, complaint));
    });
    match heard.recv_timeout(limit) {
        Ok((Err(error), _, _)) => {
            Err(format!("the key command printed something that is not a key: {error}"))
        }
        Ok((Ok(text), Ok(status), _)) if status.success() => Ok(text),
        Ok((Ok(text), Ok(status), complaint)) => {
            // Some programs print the same on both outputs: then the error output contains the key.
            let key = text.trim();
            let is_told = !complaint.is_empty() && (key.is_empty() || !complaint.contains(key));
            let complaint = if is_told { format!(": {complaint}") } else { String::new() };
            Err(format!("the key command failed ({status}){complaint}"))
        }
        Ok((Ok(_), Err(error), _)) => Err(format!("the key command cannot be waited for: {error}")),
        Err(_) => {
            // The whole process group: killing only the shell would leave the program it waits for.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            Err(format!("the key command took longer than {} s", limit.as_secs()))
        }
    }
}

/// The first non-empty line, truncated and without control characters. The rest is read and dropped, so
/// that the command never blocks on a full pipe.
fn first_line(mut from: impl Read) -> String {
    let mut beginning = Vec::new();
    let _ = from.by_ref().take(MOST_BYTES).read_to_end(&mut beginning);
    let _ = io::copy(&mut from, &mut io::sink());
    let text = String::from_utf8_lossy(&beginning);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LONGEST_COMPLAINT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_from_text_file_or_command_and_errors_do_not_contain_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let check = |key: Key, expected: Result<Option<&str>, String>| {
            let unusable = |why: String| Error::Unusable(format!("{why}; see `providers.x.key`"));
            let expected = expected.map(|key| key.map(str::to_owned)).map_err(unusable);
            assert_eq!(key.read("providers.x.key"), expected);
        };
        let command = |line: &str| Key::Command(line.into(), Variables::default());
        check(Key::None, Ok(None));
        check(Key::Text(" sk-1\n".into()), Ok(Some("sk-1")));
        check(Key::Text(" ".into()), Ok(None));
        check(Key::File(file("key", "sk-2\n")), Ok(Some("sk-2")));
        let nothing = || Err("the key is empty".to_owned());
        check(Key::File(file("empty", "\n")), nothing());
        let long = file("long", &"x".repeat(MOST_BYTES as usize + 1));
        let message = format!(
            "the key file `{}` cannot be read: it is longer than 16384 bytes",
            long.display()
        );
        check(Key::File(long), Err(message));
        check(command("echo sk-3; echo secret >&2"), Ok(Some("sk-3")));
        check(command("true"), nothing());
        let failed = "the key command failed (exit status: 7)".to_owned();
        check(command("echo secret; exit 7"), Err(failed));
        let failed = "the key command failed (exit status: 2): gpg: no agent".to_owned();
        check(command("echo; echo 'gpg: no agent' >&2; echo more >&2; exit 2"), Err(failed));
        let failed = "the key command failed (exit status: 1)".to_owned();
        check(command("echo sk-4; echo it is sk-4 >&2; exit 1"), Err(failed));
        let message =
            "the key command printed something that is not a key: it is longer than 16384 bytes";
        check(command("head -c 20000 /dev/zero"), Err(message.to_owned()));
    }

    #[test]
    fn a_key_command_that_does_not_end_is_killed_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let command = format!("sh -c 'echo $$ > {}; exec sleep 600'", pid.display());
        let limit = Duration::from_secs(1);
        let message = "the key command took longer than 1 s".to_owned();
        assert_eq!(run(&command, &Variables::default(), limit), Err(message));
        let pid = std::fs::read_to_string(pid).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
    }
}
