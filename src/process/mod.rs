//! Programs that end with the run that started them. Each is started through a guard, a second process
//! of this program, which kills all of its descendants when the program has exited, when it is told
//! to, and when the daemon is dead or silent. What a guard cannot do, [`sweep()`] does.

pub mod guard;
mod launch;
mod peer;
mod protocol;
mod sweep;
mod table;

use std::path::PathBuf;
use std::time::Duration;

pub use launch::{Command, Error, Journal, Launcher, Process, Variables};
pub use peer::{Origin, commands_run, of_connection, of_process};
pub use protocol::{Cause, Report, Status};
pub use sweep::{Record, Survivors, sweep};

/// The argument that makes this program a guard.
pub const VERB: &str = "__guard";

/// In the environment of every command: by this it is found when its guard is gone.
pub const MARKER: &str = "ASYNCAGENTS_GUARD";

/// Other systems have neither subreapers nor `/proc`: there a guard kills the command's own process
/// group, and what is left of a dead guard cannot be found.
const HAS_SUBREAPERS: bool = cfg!(target_os = "linux");

/// The first descriptor after standard input, output and error.
const FIRST_OF_OTHERS: i32 = 3;

/// SIGKILL works at once, unless the kernel is stuck with a process or there are very many.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Marks every descriptor but the standard three close-on-exec. Ours are so already; others were open in
/// whoever started us, perhaps by accident, and a directory of credentials among them would reach every
/// command, past any sandbox.
pub fn keep_descriptors_from_children() {
    close_fds::set_fds_cloexec_threadsafe(FIRST_OF_OTHERS, &[]);
}

/// The running program, also when its file was replaced or deleted meanwhile.
pub fn own_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    match running.exists() {
        true => running,
        false => std::env::current_exe().unwrap_or(running),
    }
}
