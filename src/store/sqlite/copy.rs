//! Online backup of the whole store, while others read and write it. A copy is written beside its destination, synced
//! and renamed, so that it is there wholly or not at all; its mode is 0600 from the start. Before a migration one is
//! kept automatically, for going back to the version before.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::backup::{Backup, StepResult};

use super::{Connection, Error, with_suffix};
use crate::store::sql;

const BEFORE: &str = ".before-";

/// Keeps the store as it is before its schema becomes `version`; earlier such copies go.
pub(super) fn before_migration(path: &Path, db: &Connection, version: i64) -> Result<(), Error> {
    let newest = with_suffix(path, &format!("{BEFORE}{version}"));
    copy(db, &newest)?;
    tracing::info!(copy = %newest.display(), version, "task store is migrated; a copy is kept");
    for earlier in (1..version).map(|n| with_suffix(path, &format!("{BEFORE}{n}"))) {
        let _ = fs::remove_file(earlier);
    }
    Ok(())
}

pub(in crate::store) fn copy(db: &Connection, to: &Path) -> Result<(), Error> {
    let new = with_suffix(to, ".new");
    let copied = write(db, &new).and_then(|()| Ok(fs::rename(&new, to)?));
    copied.map_err(|error| {
        let _ = fs::remove_file(&new);
        match error {
            Error::Io(source) => Error::Copy { path: to.display().to_string(), source },
            other => other,
        }
    })
}

fn write(db: &Connection, new: &Path) -> Result<(), Error> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    match back_up(db.driver(), new).map_err(sql::Error::from)? {
        StepResult::Done => {}
        // Busy or locked: an incomplete copy must not replace a good one.
        _ => return Err(std::io::Error::from(ErrorKind::ResourceBusy).into()),
    }
    File::open(new)?.sync_all()?;
    Ok(())
}

/// In one step, so that it is one snapshot; in WAL mode writers go on meanwhile. In several steps, every write in
/// between would restart the backup.
fn back_up(db: &rusqlite::Connection, new: &Path) -> rusqlite::Result<StepResult> {
    let mut copy = rusqlite::Connection::open(new)?;
    // No fsync per page: the file counts when it is renamed, and is synced as a whole before that.
    copy.execute_batch("PRAGMA synchronous = OFF;")?;
    let step = Backup::new(db, &mut copy)?.step(-1)?;
    copy.close().map_err(|(_, error)| error)?;
    Ok(step)
}
