//! Detects which sandbox level works on this machine, by running a program in it. That `bwrap` is
//! installed proves nothing: distributions forbid user namespaces in several ways (sysctls, AppArmor,
//! seccomp in containers).

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::bwrap::{NAMESPACES, SYSTEM};
use super::{Choice, Detection, Error, Level, landlock};

/// `program` is this binary, which confines a process of its own to find out about Landlock. A level that
/// the configuration asks for by name is never replaced by a weaker one; it is an error.
pub(super) fn find(choice: Choice, program: &Path) -> Result<Detection, Error> {
    let unavailable = |choice, why| Error::Unavailable { choice, why };
    let found = |level| Detection { level, because: None, landlock: 0 };
    let confined = |version| Detection { landlock: version, ..found(Level::Landlock) };
    match choice {
        Choice::Off => Ok(found(Level::Off)),
        Choice::Bwrap => bwrap().map(found).map_err(|why| unavailable("bwrap", why)),
        Choice::Landlock => {
            landlock::version(program).map(confined).map_err(|why| unavailable("landlock", why))
        }
        Choice::Auto => Ok(match bwrap() {
            Ok(level) => found(level),
            Err(why) => match landlock::version(program) {
                Ok(version) => Detection { because: Some(why), ..confined(version) },
                Err(also) => {
                    Detection { because: Some(format!("{why}, and {also}")), ..found(Level::Off) }
                }
            },
        }),
    }
}

/// Runs `true` with the same namespaces and mounts as commands get.
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
            let said = said.lines().next().unwrap_or("it printed no error");
            Err(format!("bubblewrap fails here ({said})"))
        }
        Err(_) => Err("there is no `bwrap` in `PATH`".to_owned()),
    }
}
