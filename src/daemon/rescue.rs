//! Backup and repair of the task store: what works without a daemon. A backup is made beside a running one (online
//! backup); a repair replaces the file and takes the lock of the storage directory for that.

use std::path::Path;

use anyhow::{Context, bail};

use super::home::{AlreadyRunning, Home, database};
use crate::store::{self, RepairReport, Store};

/// Backs the task store of this directory up while others use it, and returns the size in bytes. `progress` hears how
/// many pages of how many are copied.
pub fn back_up(
    home: &Path,
    to: &Path,
    overwrite: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<u64> {
    let from = database(home);
    if !from.exists() {
        bail!("there is no task store in `{}` yet; nothing was copied", home.display());
    }
    if !overwrite && to.exists() {
        bail!("`{}` exists; name another file, or overwrite it with --force", to.display());
    }
    if to.canonicalize().is_ok_and(|to| from.canonicalize().is_ok_and(|from| from == to)) {
        bail!("`{}` is the task store itself; name another file", to.display());
    }
    Store::copy(&from, to, progress)?;
    Ok(std::fs::metadata(to).with_context(|| format!("cannot read `{}`", to.display()))?.len())
}

/// Rebuilds the task store of a directory in which no daemon runs. `progress` hears how many rows of a damaged one are
/// saved.
pub fn repair(home: &Path, progress: &mut dyn FnMut(u64)) -> anyhow::Result<RepairReport> {
    if !database(home).exists() {
        bail!("there is no task store in `{}`; nothing was changed", home.display());
    }
    let home = match Home::take(home) {
        Err(error) if error.is::<AlreadyRunning>() => {
            bail!("the daemon has the task store open; `asyncagents daemon stop`, then try again")
        }
        taken => taken?,
    };
    let repaired = store::repair(&home.database(), progress);
    home.leave();
    Ok(repaired?)
}
