//! The corruption latch: once SQLite has found the file corrupt, nothing is written to it any more, because a write to
//! a damaged B-tree can damage what is still sound. Reading goes on where it can.
//!
//! A marker beside the file keeps the latch set across restarts, until an integrity check finds the file sound. The
//! way out is `doctor --repair`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{Connection, Error, with_suffix};
use crate::store::subjects::Integrity;

/// Set once, never reset in this process. The writer checks it before every commit.
pub(in crate::store) struct Latch {
    why: OnceLock<Arc<str>>,
    marker: PathBuf,
}

impl Latch {
    /// Already set if the marker is there and the damage, too. The check reads the whole file, so it is only made
    /// after damage was found before.
    pub(in crate::store) fn at(path: &Path, db: &Connection) -> Latch {
        let latch = Latch { why: OnceLock::new(), marker: marker(path) };
        if latch.marker.exists() {
            match problems(db, 1) {
                Ok(problems) if problems.is_empty() => {
                    let _ = fs::remove_file(&latch.marker);
                }
                Ok(problems) => latch.set(&problems.join("; ")),
                Err(error) => latch.set(&error.to_string()),
            }
        }
        latch
    }

    pub(in crate::store) fn set(&self, why: &str) {
        if self.why.set(why.into()).is_ok() {
            tracing::error!(
                why,
                "task store is damaged; it is read-only until `asyncagents doctor --repair`"
            );
            // If the disk takes no marker, the next daemon finds the damage again.
            let _ = fs::write(&self.marker, why);
        }
    }

    pub(in crate::store) fn check(&self) -> Result<(), Error> {
        self.why.get().map_or(Ok(()), |why| Err(Error::Damaged(Arc::clone(why))))
    }
}

pub(super) fn marker(path: &Path) -> PathBuf {
    with_suffix(path, ".damage-found")
}

impl Integrity<'_> {
    /// What was found to be wrong with the file, if the latch is set.
    pub fn damage(&self) -> Option<Error> {
        self.store.0.damage.check().err()
    }

    /// An integrity check of the whole file. Slow on a large one; in WAL mode it blocks nobody but the caller. What
    /// it finds sets the latch.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        let problems = match self.store.read(|db| problems(db, 20)) {
            // So corrupt that even the check fails.
            Err(Error::Damaged(why)) => vec![why.to_string()],
            checked => checked?,
        };
        if !problems.is_empty() {
            self.store.0.damage.set(&problems.join("; "));
        }
        Ok(problems)
    }
}

pub(super) fn problems(db: &Connection, most: u32) -> Result<Vec<String>, Error> {
    let lines: Vec<_> =
        db.query_all(&format!("PRAGMA integrity_check({most})"), (), |row| row.get::<String>(0))?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rusqlite::Connection;

    use super::*;
    use crate::store::Store;

    fn open_again(path: &Path) -> Store {
        Store::open(path, |_| {}).unwrap().0
    }

    async fn put(store: &Store) -> Result<(), Error> {
        store.instances().put("after".into(), "http://127.0.0.1:2".into()).await
    }

    #[tokio::test]
    async fn a_check_that_finds_damage_makes_the_store_read_only_until_the_file_is_sound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        let store = open_again(&path);
        store.instances().put("before".into(), "http://127.0.0.1:1".into()).await.unwrap();
        store.close();
        let sound = fs::read(&path).unwrap();
        let db = Connection::open(&path).unwrap();
        let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'task_by_parent'";
        let root: i64 = db.query_row(root, [], |row| row.get(0)).unwrap();
        drop(db);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 4096], (root as u64 - 1) * 4096).unwrap();

        let store = open_again(&path);
        put(&store).await.unwrap();
        assert_eq!(
            store.integrity().damage().map(|damage| damage.to_string()),
            None,
            "not found yet"
        );
        assert_ne!(store.integrity().check().unwrap(), [""; 0]);
        assert!(matches!(put(&store).await, Err(Error::Damaged(_))));
        assert_eq!(store.instances().all().unwrap().len(), 2, "reading goes on");
        store.close();
        let store = open_again(&path);
        assert!(store.integrity().damage().is_some(), "known from the start");
        assert!(matches!(put(&store).await, Err(Error::Damaged(_))));
        store.close();

        fs::write(&path, sound).unwrap();
        let store = open_again(&path);
        assert!(store.integrity().damage().is_none());
        put(&store).await.unwrap();
    }
}
