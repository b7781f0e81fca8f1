//! Databases with a history. Each size is written once, straight into the file, and copied for each
//! measurement.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;
use asyncagents::clock::Clock;
use asyncagents::store::Store;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::{progress, rows};

const ROWS_IN_ONE_COMMIT: usize = 10_000;

pub(crate) struct Histories {
    folder: TempDir,
    written: BTreeMap<usize, PathBuf>,
    given_out: usize,
}

impl Histories {
    /// In the build directory: a temporary directory may be a tmpfs, where `fsync` costs nothing.
    pub(crate) fn new() -> anyhow::Result<Histories> {
        let folder =
            tempfile::Builder::new().prefix("e").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        Ok(Histories { folder, written: BTreeMap::new(), given_out: 0 })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// An empty directory for one measurement.
    pub(crate) fn place(&mut self) -> anyhow::Result<PathBuf> {
        self.given_out += 1;
        let place = self.folder.path().join(self.given_out.to_string());
        fs::create_dir(&place)?;
        Ok(place)
    }

    /// A directory with a database that holds this many ended tasks.
    pub(crate) fn with(&mut self, tasks: usize) -> anyhow::Result<PathBuf> {
        let template = match self.written.get(&tasks) {
            Some(template) => template.clone(),
            None => {
                let template = self.folder.path().join(format!("{tasks}.db"));
                progress(format!("writing a history of {tasks} tasks"));
                write(&template, tasks).context("writing a history")?;
                self.written.insert(tasks, template.clone());
                template
            }
        };
        let place = self.place()?;
        let database = database(&place);
        fs::copy(template, &database)?;
        // Flush now, or the write-back runs during the measurement.
        File::open(&database)?.sync_all()?;
        Ok(place)
    }
}

pub(crate) fn database(place: &Path) -> PathBuf {
    place.join("asyncagents.db")
}

fn write(path: &Path, tasks: usize) -> anyhow::Result<()> {
    let (store, _) = Store::open(path, |_| {})?;
    store.close();
    let clock = Clock::system();
    let mut db = Connection::open(path)?;
    rows::like_the_store(&db)?;
    db.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;")?;
    for first in (0..tasks).step_by(ROWS_IN_ONE_COMMIT) {
        let tx = db.transaction()?;
        for n in first..tasks.min(first + ROWS_IN_ONE_COMMIT) {
            rows::ended(&tx, &clock, n)?;
        }
        tx.commit()?;
    }
    // Closing the last connection checkpoints the WAL, so that the one file can be copied.
    db.close().map_err(|(_, error)| error)?;
    // The store builds its search index of descriptions when it opens the file.
    Store::open(path, |_| {})?.0.close();
    Ok(())
}
