//! Disk space: incremental vacuum after pruning, checkpoints, and secure deletion.
//!
//! Pages that pruning freed are given back to the file system in slices, between the changes of others. A file from
//! before incremental vacuum needs one full `VACUUM`, during which nothing can be written, so that is done only to
//! small ones. What was deleted securely is still in older frames of the write-ahead log, until a checkpoint that
//! no reader is in the way of truncates it.

use std::time::Duration;

use super::{Connection, Error, open};
use crate::store::{Store, sql};

/// Batch size: pages given back in one change. That takes some 20 ms, and changes of others come in between.
const SLICE: i64 = 512;

/// A file from before incremental vacuum has to be rewritten as a whole, and no other write is made
/// meanwhile: only if no more than this stays.
const MOST_REWRITTEN: i64 = 64 << 20;

/// How long a checkpoint waits for readers. It holds the write lock meanwhile, so this is short, and it is tried
/// several times instead.
const LONGEST_CHECKPOINT: Duration = Duration::from_millis(100);
const CHECKPOINTS: u32 = 20;

/// Pages of the file.
struct Pages {
    all: i64,
    free: i64,
    size: i64,
    incremental: bool,
}

impl Pages {
    fn count(db: &Connection) -> Result<Pages, Error> {
        let pragma = |name: &str| -> Result<i64, Error> {
            Ok(db.query_one(&format!("PRAGMA {name}"), (), |row| row.get(0))?)
        };
        Ok(Pages {
            all: pragma("page_count")?,
            free: pragma("freelist_count")?,
            size: pragma("page_size")?,
            incremental: pragma("auto_vacuum")? == 2,
        })
    }
}

impl Store {
    /// Makes the file as small as what is in it.
    pub(in crate::store) async fn give_space_back(&self) -> Result<(), Error> {
        let pages = self.read(Pages::count)?;
        if pages.free == 0 {
            return Ok(());
        }
        if pages.incremental {
            let mut free = pages.free;
            loop {
                // Until none is left, or none was freed: then others free as many meanwhile, and it would
                // not end.
                let left = self.write(move |db, _| free_slice(db)).await?;
                if left == 0 || left >= free {
                    break;
                }
                free = left;
            }
        } else if (pages.all - pages.free) * pages.size <= MOST_REWRITTEN {
            self.maintain(rewrite).await?;
        } else {
            let free = pages.free * pages.size;
            tracing::info!(
                free_bytes = free,
                "task store was not shrunk; `asyncagents doctor --repair` shrinks it"
            );
        }
        // In WAL mode the vacuum is in the log; the file itself shrinks with the checkpoint.
        self.maintain(checkpoint).await?;
        Ok(())
    }

    /// Checkpoints and truncates the write-ahead log, so that nothing that was deleted is left in it. Retried while
    /// readers are in the way.
    pub(in crate::store) async fn empty_log(&self) -> Result<(), Error> {
        let empty = |db: &Connection| -> Result<bool, Error> {
            for _ in 0..CHECKPOINTS {
                if checkpoint(db)? {
                    return Ok(true);
                }
                std::thread::sleep(LONGEST_CHECKPOINT);
            }
            Ok(false)
        };
        if !self.maintain(empty).await? {
            tracing::warn!(
                "write-ahead log is in use; deleted data stays in it until the daemon stops"
            );
        }
        Ok(())
    }

    /// Runs on a connection of its own, on a thread that may block: it waits for locks.
    async fn maintain<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let path = self.0.path.clone();
        let done = tokio::task::spawn_blocking(move || work(&open::maintainer(&path)?)).await;
        done.unwrap_or(Err(Error::Panicked))
    }
}

/// Vacuums one slice and returns how many free pages are left.
fn free_slice(db: &Connection) -> Result<i64, Error> {
    let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({SLICE})"))?;
    // The pragma frees one page per step and returns no rows of interest; not stepped to its end, it would free one.
    let mut steps = vacuum.query(())?;
    while steps.next()?.is_some() {}
    Ok(db.query_one("PRAGMA freelist_count", (), |row| row.get(0))?)
}

fn rewrite(db: &Connection) -> Result<(), Error> {
    open::wait_for_others(db, Duration::from_secs(10))?;
    db.batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;")?;
    Ok(())
}

/// `false`: a reader still needs frames of the log.
fn checkpoint(db: &Connection) -> Result<bool, Error> {
    open::wait_for_others(db, LONGEST_CHECKPOINT)?;
    let busy: i64 = db.query_one("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    Ok(busy == 0)
}

/// Overwrites with zeros what a change deletes or replaces. Only where it is asked for: elsewhere it would cost a
/// write for every page that is freed. The setting is the connection's, so it is reset even if the change fails.
pub(in crate::store) fn erasing(
    db: &Connection,
    change: impl FnOnce() -> Result<usize, sql::Error>,
) -> Result<(), Error> {
    let switch = |to: &str| db.query_one(&format!("PRAGMA secure_delete = {to}"), (), |_| Ok(()));
    switch("ON")?;
    let changed = change();
    switch("OFF")?;
    changed?;
    Ok(())
}
