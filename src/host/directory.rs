//! Validation of a launch's working directory, for hosts on this machine: an absolute path to an existing
//! directory, or the launch is refused. Runs on a blocking thread with a time limit, because a network
//! file system that hangs would otherwise hang the launch; that is reported as unreachable, not refused.

use std::io::ErrorKind;
use std::path::Path;

use super::Error;
use crate::threads;

/// The canonical path, with symbolic links resolved. Anything else than a directory is refused, with the
/// way out.
pub(super) async fn canonical(directory: &str) -> Result<String, Error> {
    let directory = directory.to_owned();
    let looked = threads::within(threads::LIMIT, move || canonical_now(&directory)).await;
    looked.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
}

/// The same on this thread, which may block.
pub(super) fn canonical_now(directory: &str) -> Result<String, Error> {
    let refused = |why: &str| {
        let way_out = "name an existing directory by its absolute path";
        Err(Error::Refused(format!("the directory `{directory}` {why}; {way_out}")))
    };
    let path = Path::new(directory);
    if !path.is_absolute() {
        return refused(if directory.is_empty() { "has no name" } else { "is not absolute" });
    }
    match path.canonicalize() {
        Ok(path) if !path.is_dir() => refused("is not a directory"),
        Ok(path) => match path.to_str() {
            Some(path) => Ok(path.to_owned()),
            None => refused("has a name that is not UTF-8"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => refused("does not exist"),
        Err(error) => refused(&format!("cannot be opened: {error}")),
    }
}
