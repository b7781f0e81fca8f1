//! The upper bounds: what this disk and SQLite achieve in a bare loop.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use asyncagents::clock::Clock;
use rusqlite::Connection;

use crate::rows::{self, Launch};
use crate::table::millis;

/// How the rows of launches are spread over transactions.
#[derive(Clone, Copy)]
pub(crate) enum Commits {
    /// A transaction for this many intents, then one for as many tasks.
    Two { launches: usize },
    /// One transaction for everything a launch writes.
    One,
}

/// A database that only this loop writes.
pub(crate) struct BareDatabase {
    db: Connection,
    clock: Clock,
    launched: usize,
}

impl BareDatabase {
    pub(crate) fn open(database: &Path, present: usize) -> anyhow::Result<BareDatabase> {
        let db = Connection::open(database)?;
        rows::like_the_store(&db)?;
        // Short ids continue after those of the history, so that they stay unique.
        Ok(BareDatabase { db, clock: Clock::system(), launched: present })
    }

    pub(crate) fn launches_per_second(
        &mut self,
        commits: Commits,
        window: Duration,
    ) -> anyhow::Result<f64> {
        let (began, before) = (Instant::now(), self.launched);
        while began.elapsed() < window {
            match commits {
                Commits::Two { launches } => {
                    let launches: Vec<Launch> = (0..launches).map(|_| self.next()).collect();
                    let tx = self.db.transaction()?;
                    launches.iter().try_for_each(|launch| launch.intend(&tx))?;
                    tx.commit()?;
                    let tx = self.db.transaction()?;
                    launches.iter().try_for_each(|launch| launch.complete(&tx, &self.clock))?;
                    tx.commit()?;
                }
                Commits::One => {
                    let launch = self.next();
                    let tx = self.db.transaction()?;
                    launch.intend(&tx)?;
                    launch.complete(&tx, &self.clock)?;
                    tx.commit()?;
                }
            }
        }
        Ok((self.launched - before) as f64 / began.elapsed().as_secs_f64())
    }

    fn next(&mut self) -> Launch {
        let n = self.launched;
        self.launched += 1;
        Launch::new(&self.clock, n, format!("bare-{}", n / 10))
    }
}

/// Milliseconds of each of `times` `fdatasync`s after an append of 4 KiB.
pub(crate) fn fsyncs(folder: &Path, times: usize) -> anyhow::Result<Vec<f64>> {
    let path = folder.join("fsync");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        file.write_all(&[b'x'; 4096])?;
        let began = Instant::now();
        file.sync_data()?;
        samples.push(millis(began.elapsed()));
    }
    std::fs::remove_file(path)?;
    Ok(samples)
}
