//! Online backup of the whole store, while others read and write it. A copy is written beside its destination, synced
//! and renamed, so that it is there wholly or not at all; its mode is 0600 from the start. Before a migration one is
//! kept automatically, for going back to the version before.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::backup::{Backup, Progress, StepResult};

use super::{Connection, Error, with_suffix};
use crate::store::sql;

const BEFORE: &str = ".before-";

/// The pages of one step, after which the progress is told: 4 MiB.
const PAGES: i32 = 1024;

/// Keeps the store as it is before its schema becomes `version`; earlier such copies go.
pub(super) fn before_migration(path: &Path, db: &Connection, version: i64) -> Result<(), Error> {
    let newest = with_suffix(path, &format!("{BEFORE}{version}"));
    copy(db, &newest, &mut |_, _| {})?;
    tracing::info!(copy = %newest.display(), version, "task store is migrated; a copy is kept");
    for earlier in (1..version).map(|n| with_suffix(path, &format!("{BEFORE}{n}"))) {
        let _ = fs::remove_file(earlier);
    }
    Ok(())
}

/// `progress` hears how many pages of how many are copied.
pub(in crate::store) fn copy(
    db: &Connection,
    to: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let new = with_suffix(to, ".new");
    let copied = write(db, &new, progress).and_then(|()| Ok(fs::rename(&new, to)?));
    copied.map_err(|error| {
        let _ = fs::remove_file(&new);
        match error {
            Error::Io(source) => Error::Copy { path: to.display().to_string(), source },
            other => other,
        }
    })
}

fn write(db: &Connection, new: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), Error> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    match back_up(db.driver(), new, progress).map_err(sql::Error::from)? {
        StepResult::Done => {}
        // Busy or locked: an incomplete copy must not replace a good one.
        _ => return Err(std::io::Error::from(ErrorKind::ResourceBusy).into()),
    }
    File::open(new)?.sync_all()?;
    Ok(())
}

/// A read transaction around all steps keeps them on one snapshot; in WAL mode writers go on meanwhile. Without it,
/// every write between two steps would restart the backup.
fn back_up(
    db: &rusqlite::Connection,
    new: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> rusqlite::Result<StepResult> {
    let mut copy = rusqlite::Connection::open(new)?;
    // No fsync per page: the file counts when it is renamed, and is synced as a whole before that.
    copy.execute_batch("PRAGMA synchronous = OFF;")?;
    let snapshot = db.unchecked_transaction()?;
    // The transaction begins with its first read.
    snapshot.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(()))?;
    let backup = Backup::new(&snapshot, &mut copy)?;
    let step = loop {
        let step = backup.step(PAGES)?;
        let Progress { remaining, pagecount } = backup.progress();
        let pages = |n: i32| u64::try_from(n).unwrap_or(0);
        progress(pages(pagecount - remaining), pages(pagecount));
        if step != StepResult::More {
            break step;
        }
    };
    drop(backup);
    copy.close().map_err(|(_, error)| error)?;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::open;

    #[test]
    fn a_copy_is_one_snapshot_whoever_writes_meanwhile_and_tells_how_far_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (path, to) = (directory.path().join("test.db"), directory.path().join("copy.db"));
        let writer = open::blank(&path, open::newest()).unwrap();
        writer
            .batch("PRAGMA journal_mode = WAL; CREATE TABLE long (n INTEGER, text BLOB);")
            .unwrap();
        let row = "INSERT INTO long VALUES (?1, zeroblob(4096))";
        for n in 0..i64::from(3 * PAGES) {
            writer.execute(row, [n]).unwrap();
        }
        let mut progress = Vec::new();
        copy(&open::reader(&path).unwrap(), &to, &mut |done, of| {
            progress.push((done, of));
            writer.execute("DELETE FROM long WHERE n % 2 = 0", ()).unwrap();
        })
        .unwrap();
        let copied = rusqlite::Connection::open(&to).unwrap();
        let rows = copied.query_row("SELECT count(*) FROM long", (), |row| row.get::<_, i64>(0));
        assert_eq!(rows.unwrap(), i64::from(3 * PAGES));
        let of = progress[0].1;
        let steps = of.div_ceil(PAGES as u64);
        let expected = (1..=steps).map(|n| ((n * PAGES as u64).min(of), of));
        assert!(steps > 3, "{of}");
        assert_eq!(progress, expected.collect::<Vec<_>>());
    }
}
