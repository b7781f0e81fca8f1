//! Which level works here, found by running a program in it: a file that is there proves nothing, because
//! systems forbid user namespaces in several ways.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::bwrap::{NAMESPACES, SYSTEM};
use super::{Choice, Error, Found, Level, landlock};

/// `program` is this one, which confines itself to find out about Landlock.
pub(super) fn find(choice: Choice, program: &Path) -> Result<Found, Error> {
    let unavailable = |choice, why| Error::Unavailable { choice, why };
    let found = |level| Found { level, because: None, landlock: 0 };
    let confined = |version| Found { landlock: version, ..found(Level::Landlock) };
    match choice {
        Choice::Off => Ok(found(Level::Off)),
        Choice::Bwrap => bwrap().map(found).map_err(|why| unavailable("bwrap", why)),
        Choice::Landlock => {
            landlock::version(program).map(confined).map_err(|why| unavailable("landlock", why))
        }
        Choice::Auto => Ok(match bwrap() {
            Ok(level) => found(level),
            Err(why) => match landlock::version(program) {
                Ok(version) => Found { because: Some(why), ..confined(version) },
                Err(also) => {
                    Found { because: Some(format!("{why}, and {also}")), ..found(Level::Off) }
                }
            },
        }),
    }
}

fn bwrap() -> Result<Level, String> {
    let mut command = Command::new("bwrap");
    command.args(NAMESPACES).args(SYSTEM).args(["--tmpfs", "/tmp", "--", "true"]);
    match command.stdin(Stdio::null()).stdout(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(match geteuid().is_root() {
            true => Level::BwrapRoot,
            false => Level::BwrapUser,
        }),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("without a word");
            Err(format!("bubblewrap fails here ({said})"))
        }
        Err(_) => Err("there is no `bwrap` in `PATH`".to_owned()),
    }
}
