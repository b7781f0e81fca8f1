//! Lines on a terminal that are redrawn in place. Each frame is one write, so that nothing flickers; lines are cut to
//! the terminal, since one that it breaks would be counted wrongly at the next redraw.

use std::io::{IsTerminal, Write};

use super::line::{DIM, Line};
use super::screen::{Screen, moves_cursor};

/// The height of terminals that do not tell theirs.
const USUAL_HEIGHT: usize = 24;

pub(in crate::cli) struct LiveFrame {
    stream: Stream,
    /// How many lines of the last frame are on the screen.
    drawn: usize,
}

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Error,
}

impl LiveFrame {
    /// `None` when standard output is no terminal, or one that cannot redraw lines.
    pub(in crate::cli) fn on_stdout() -> Option<LiveFrame> {
        let live = LiveFrame { stream: Stream::Out, drawn: 0 };
        (std::io::stdout().is_terminal() && moves_cursor()).then_some(live)
    }

    /// The same of standard error.
    pub(in crate::cli) fn on_stderr() -> Option<LiveFrame> {
        let live = LiveFrame { stream: Stream::Error, drawn: 0 };
        (std::io::stderr().is_terminal() && moves_cursor()).then_some(live)
    }

    /// Replaces what was drawn before. Of more lines than the terminal has, the first ones are shown.
    pub(in crate::cli) fn draw(&mut self, lines: &[Line]) {
        let screen = self.screen();
        let width = screen.width.unwrap_or(usize::MAX);
        // The last row stays empty: a line break in it would scroll the first one away.
        let room = self.height().saturating_sub(1).max(1);
        let mut shown: Vec<Line> = lines.iter().take(room).cloned().collect();
        if lines.len() > room {
            let hidden = lines.len() + 1 - room;
            shown.pop();
            shown.push(Line::new(DIM, &format!("… and {hidden} more")));
        }
        let mut frame = upwards(self.drawn);
        for line in &shown {
            frame.push_str(&line.cut(width).render(screen.is_coloured));
            frame.push_str("\u{1b}[K\r\n");
        }
        frame.push_str(&erased(self.drawn.saturating_sub(shown.len())));
        self.write(&frame);
        self.drawn = shown.len();
    }

    /// Removes what was drawn, so that other lines can be printed in its place.
    pub(in crate::cli) fn clear(&mut self) {
        let erasure = upwards(self.drawn) + &erased(self.drawn);
        self.write(&erasure);
        self.drawn = 0;
    }

    fn screen(&self) -> Screen {
        match self.stream {
            Stream::Out => Screen::stdout(),
            Stream::Error => Screen::stderr(),
        }
    }

    fn height(&self) -> usize {
        let size = match self.stream {
            Stream::Out => rustix::termios::tcgetwinsize(std::io::stdout()),
            Stream::Error => rustix::termios::tcgetwinsize(std::io::stderr()),
        };
        let rows = size.map_or(0, |size| usize::from(size.ws_row));
        if rows == 0 { USUAL_HEIGHT } else { rows }
    }

    fn write(&self, text: &str) {
        // A terminal that was closed ends the program by a signal; there is nobody left to tell.
        let _ = match self.stream {
            Stream::Out => {
                let mut out = std::io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            Stream::Error => std::io::stderr().lock().write_all(text.as_bytes()),
        };
    }
}

/// Moves the cursor to the beginning of the line that is this many lines above.
fn upwards(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\u{1b}[{lines}A\r") }
}

/// Erases this many lines from the cursor on, which stays. Line by line: when a program erases everything below the
/// top of the screen at once, tmux keeps that in its history.
fn erased(lines: usize) -> String {
    "\u{1b}[2K\r\n".repeat(lines) + &upwards(lines)
}
