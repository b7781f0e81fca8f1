//! What a stream is connected to: how wide it is, and whether it shows colours.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};

/// The width of terminals that do not tell theirs.
const USUAL_WIDTH: usize = 80;

/// What the environment says of the terminal.
static TERMINAL: OnceLock<Terminal> = OnceLock::new();

#[derive(Default)]
struct Terminal {
    /// For streams that are to look like a terminal and are none.
    columns: Option<usize>,
    moves_cursor: bool,
}

pub(in crate::cli) fn set_terminal(columns: Option<usize>, moves_cursor: bool) {
    let _ = TERMINAL.set(Terminal { columns, moves_cursor });
}

/// Whether lines can be redrawn on a terminal.
pub(super) fn moves_cursor() -> bool {
    TERMINAL.get().is_some_and(|terminal| terminal.moves_cursor)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Screen {
    /// `None` for a pipe or a file, where lines are as long as they are.
    pub(in crate::cli) width: Option<usize>,
    /// On a terminal, unless NO_COLOR, `CLICOLOR=0` or `TERM=dumb` say otherwise; CLICOLOR_FORCE forces it.
    pub(in crate::cli) is_coloured: bool,
}

impl Screen {
    pub(in crate::cli) fn stdout() -> Screen {
        Screen::of(&std::io::stdout())
    }

    pub(in crate::cli) fn stderr() -> Screen {
        Screen::of(&std::io::stderr())
    }

    fn of(stream: &(impl RawStream + IsTerminal + AsFd)) -> Screen {
        let is_coloured = AutoStream::choice(stream) != ColorChoice::Never;
        let is_terminal = IsTerminal::is_terminal(stream);
        let size = rustix::termios::tcgetwinsize(stream).ok().filter(|_| is_terminal);
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        // Forced colours alone make a pipe no terminal: what reads it wants the agent's text without a frame.
        // With COLUMNS as well, the output is to look as on a terminal of that width.
        let width = match is_terminal {
            true => Some(columns.unwrap_or(USUAL_WIDTH)),
            false if is_coloured => TERMINAL.get().and_then(|terminal| terminal.columns),
            false => None,
        };
        Screen { width, is_coloured }
    }
}
