//! Child process supervision: commands that cannot outlive the run that started them. Each is started
//! through a guard, a second process of this binary, which kills all descendants of the command when it
//! has exited, when it is told to, when its lease is not renewed, and when the daemon is dead. If the
//! guard itself dies, [`sweep()`] finds what is left by a marker in the environment. What is lost on
//! systems without `/proc` and subreapers: processes that left the command's process group.

pub mod guard;
mod launch;
mod peer;
mod protocol;
mod socket;
mod sweep;
mod table;

use std::path::PathBuf;
use std::time::Duration;

pub use launch::{Command, Error, Journal, Launcher, Process, Variables};
pub use peer::{Origin, commands_run, of_connection, of_process};
pub use protocol::{Cause, Report, Status};
pub use socket::Socket;
pub use sweep::{Record, Survivors, sweep};

/// The subcommand that makes this binary a guard.
pub const VERB: &str = "__guard";

/// A variable in the environment of every command, by which [`sweep()`] finds its processes when the
/// guard is gone.
pub const MARKER: &str = "ASYNCAGENTS_GUARD";

/// Systems other than Linux have neither subreapers nor `/proc`: there a guard kills only the command's
/// own process group, and the processes of a dead guard cannot be found.
const HAS_SUBREAPERS: bool = cfg!(target_os = "linux");

/// The first descriptor after standard input, output and error.
const FIRST_OF_OTHERS: i32 = 3;

/// How long killed processes may take to disappear. SIGKILL works at once unless a process is stuck in
/// the kernel (a dead network mount) or there are very many.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Marks every descriptor but the standard three close-on-exec. Ours are so already; others were
/// inherited from the process that started us, perhaps by accident, and an open directory of credentials
/// among them would reach every command, past any sandbox.
pub fn keep_descriptors_from_children() {
    close_fds::set_fds_cloexec_threadsafe(FIRST_OF_OTHERS, &[]);
}

/// A path to the running binary that works even after an upgrade replaced or deleted its file.
pub fn own_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    match running.exists() {
        true => running,
        false => std::env::current_exe().unwrap_or(running),
    }
}
