//! Which level works here, found by running a program in it: a file that is there proves nothing, because
//! systems forbid user namespaces in several ways.

use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::bwrap::{NAMESPACES, SYSTEM};
use super::{Choice, Error, Found, Level};

pub(super) fn find(choice: Choice) -> Result<Found, Error> {
    let unavailable = |choice, why| Error::Unavailable { choice, why };
    let found = |level| Found { level, because: None, landlock: 0 };
    match choice {
        Choice::Off => Ok(found(Level::Off)),
        Choice::Bwrap => bwrap().map(found).map_err(|why| unavailable("bwrap", why)),
        Choice::Landlock => landlock().map(found).map_err(|why| unavailable("landlock", why)),
        Choice::Auto => Ok(match (bwrap(), landlock()) {
            (Ok(level), _) => found(level),
            (Err(why), Ok(level)) => Found { because: Some(why), ..found(level) },
            (Err(bwrap), Err(landlock)) => {
                Found { because: Some(format!("{bwrap}; {landlock}")), ..found(Level::Off) }
            }
        }),
    }
}

fn bwrap() -> Result<Level, String> {
    let mut command = Command::new("bwrap");
    command.args(NAMESPACES).args(SYSTEM).args(["--tmpfs", "/tmp", "--", "true"]);
    let ran = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    match ran {
        Ok(output) if output.status.success() => Ok(match geteuid().is_root() {
            true => Level::BwrapRoot,
            false => Level::BwrapUser,
        }),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("bubblewrap fails: {}", said.lines().next().unwrap_or("without a word")))
        }
        Err(_) => Err("there is no `bwrap` in `PATH`".to_owned()),
    }
}

fn landlock() -> Result<Level, String> {
    Err("Landlock is not supported yet".to_owned())
}
