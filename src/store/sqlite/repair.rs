//! Salvage of a damaged store: whatever can still be read is copied, row by row, into a new file of the same schema.
//! Tables are read along their own B-trees (`NOT INDEXED`), so damaged indexes cost nothing; where a table's tree is
//! damaged itself, reading goes on behind that place.
//!
//! What is derived (counters, search, cached JSON) is not copied but computed again, and rows whose parent was lost are
//! dropped. The damaged file is never written; it is renamed once the new one is complete and synced, and kept.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::damage::{marker, problems};
use super::{Connection, Error, columns, open, with_suffix};
use crate::store::sql::{self, Row};

/// Derived tables: kept by triggers, or rebuilt when the store is opened.
const DERIVED: [&str; 6] = ["tally", "batch", "counter", "tool_tally", "search", "view"];

/// The longest chain of foreign keys: dropping a row can orphan others, so orphans are looked for this many times.
const DEPTH: usize = 3;

/// The progress is told every so many rows, and after each table.
const BETWEEN_COUNTS: u64 = 1_000;

/// The outcome of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairReport {
    /// There was no damage; the file was only rewritten, without gaps.
    Sound,
    Rebuilt {
        tasks: u64,
        other_rows: u64,
        /// Places where something could not be read, and rows that belonged to what was there.
        lost: u64,
        /// The damaged file.
        aside: PathBuf,
    },
}

/// Rebuilds a store that no process has open; the caller holds the lock of the storage directory. `progress` hears how
/// many rows are saved; how many there are, a damaged file cannot tell.
pub fn repair(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<RepairReport, Error> {
    let old = open::damaged_file(path)?;
    let version = version(&old, path)?;
    if problems(&old, 1).is_ok_and(|problems| problems.is_empty()) {
        drop(old);
        rewrite(path)?;
        return Ok(RepairReport::Sound);
    }
    let new = with_suffix(path, ".repaired");
    remove(&new)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let db = open::blank(&new, version)?;
    // Tables are copied in no particular order, so a row may come before the one it refers to.
    db.batch("PRAGMA foreign_keys = OFF;")?;
    let tx = db.begin()?;
    let mut copied = CopyTally { saved: 0, lost: 0, progress };
    let mut tasks = 0;
    for table in tables(&tx)? {
        let before = copied.saved;
        copied.table(&old, &tx, &table)?;
        (copied.progress)(copied.saved);
        if table == "task" {
            tasks = copied.saved - before;
        }
    }
    copied.drop_orphans(&tx)?;
    derive(&old, &tx)?;
    tx.commit()?;
    db.close()?;
    // Synced before the renames. A crash between the two leaves no store under its name and the complete one as
    // `.repaired`; nothing is lost, but the next daemon begins a new one.
    File::open(&new)?.sync_all()?;
    drop(old);
    let aside = open::set_aside(path)?;
    fs::rename(&new, path)?;
    remove(&marker(path))?;
    Ok(RepairReport::Rebuilt { tasks, other_rows: copied.saved - tasks, lost: copied.lost, aside })
}

/// The schema to copy into: the newest, when the file cannot say which it has.
fn version(old: &Connection, path: &Path) -> Result<i64, Error> {
    let pragma = |name: &str| old.query_one(&format!("PRAGMA {name}"), (), |row| row.get(0));
    let (found, known): (i64, i64) = (pragma("user_version").unwrap_or(0), open::newest());
    let owner: i64 = pragma("application_id").unwrap_or(open::APPLICATION_ID);
    match found {
        _ if owner != open::APPLICATION_ID && owner != 0 => {
            Err(Error::Foreign(path.display().to_string()))
        }
        found if found > known => Err(Error::TooNew { found, known }),
        found if found > 0 => Ok(found),
        _ => Ok(known),
    }
}

fn rewrite(path: &Path) -> Result<(), Error> {
    let db = open::maintainer(path)?;
    db.batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM;")?;
    remove(&marker(path))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn tables(new: &Connection) -> Result<Vec<String>, Error> {
    let names: Vec<String> = new.query_all(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
        (),
        |row| row.get(0),
    )?;
    Ok(names.into_iter().filter(|name| !DERIVED.contains(&name.as_str())).collect())
}

struct CopyTally<'a> {
    saved: u64,
    lost: u64,
    progress: &'a mut dyn FnMut(u64),
}

/// A table with a rowid, to be read in its order.
struct Walk<'a> {
    old: &'a Connection,
    table: &'a str,
    columns: String,
    width: usize,
}

impl CopyTally<'_> {
    fn save(&mut self, rows: usize) {
        self.saved += rows as u64;
        if self.saved.is_multiple_of(BETWEEN_COUNTS) {
            (self.progress)(self.saved);
        }
    }

    fn table(&mut self, old: &Connection, new: &Connection, table: &str) -> Result<(), Error> {
        let columns = columns(new, table)?;
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let places = vec!["?"; names.len()].join(", ");
        let columns_of = names.join(", ");
        let insert = format!("INSERT OR IGNORE INTO {table} ({columns_of}) VALUES ({places})");
        let mut insert = new.prepare(&insert)?;
        let mut keep = |row: Row<'_>, from: usize| {
            let values = (from..from + names.len()).map(|n| row.value(n));
            insert.execute(values.collect::<Result<Vec<_>, _>>()?.as_slice())
        };
        let walk = Walk { old, table, columns: columns_of.clone(), width: names.len() };
        // A table `WITHOUT ROWID` has no numbers to go on from behind a damaged place: it is read from its start
        // and, if that fails, from its end, which leaves out what is between the first and the last such place.
        let numbered = new.prepare(&format!("SELECT rowid FROM {table}")).is_ok();
        if numbered {
            return self.by_number(&walk, &mut keep);
        }
        let keys: Vec<String> = columns
            .iter()
            .filter(|column| column.key > 0)
            .map(|column| format!("{} DESC", column.name))
            .collect();
        let forward = format!("SELECT {columns_of} FROM {table} NOT INDEXED");
        if !self.along(old, &forward, &mut keep) {
            self.lost += 1;
            self.along(old, &format!("{forward} ORDER BY {}", keys.join(", ")), &mut keep);
        }
        Ok(())
    }

    /// `false`: it could not be read to its end.
    fn along(
        &mut self,
        old: &Connection,
        sql: &str,
        keep: &mut impl FnMut(Row<'_>, usize) -> Result<usize, sql::Error>,
    ) -> bool {
        let Ok(mut statement) = old.prepare(sql) else { return false };
        let Ok(mut rows) = statement.query(()) else { return false };
        loop {
            match rows.next() {
                Ok(Some(row)) => self.save(keep(row, 0).unwrap_or(0)),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Reads stretch by stretch, and skips what cannot be read in between.
    fn by_number(
        &mut self,
        walk: &Walk<'_>,
        keep: &mut impl FnMut(Row<'_>, usize) -> Result<usize, sql::Error>,
    ) -> Result<(), Error> {
        let mut after = 0;
        loop {
            let (last, whole) = self.stretch(walk, after, keep);
            if whole {
                return Ok(());
            }
            self.lost += 1;
            // The next stretch begins at the readable row, and at least one number further on, so that this ends
            // even when the same place is readable in one query and not in the other.
            match walk.next_readable(last) {
                Some(next) => after = (next - 1).max(last + i64::from(last == after)),
                None => return Ok(()),
            }
        }
    }

    /// As far as it can be read in one go: the last number, and whether that was the end.
    fn stretch(
        &mut self,
        walk: &Walk<'_>,
        after: i64,
        keep: &mut impl FnMut(Row<'_>, usize) -> Result<usize, sql::Error>,
    ) -> (i64, bool) {
        let Walk { old, table, columns, .. } = walk;
        let mut last = after;
        let sql = format!(
            "SELECT rowid, {columns} FROM {table} NOT INDEXED WHERE rowid > ?1 ORDER BY rowid"
        );
        let Ok(mut statement) = old.prepare(&sql) else { return (last, false) };
        let Ok(mut rows) = statement.query([after]) else { return (last, false) };
        loop {
            match rows.next() {
                Ok(Some(row)) => match row.get(0) {
                    Ok(number) => {
                        // Noted before the row is copied: its number is known even if a value on an overflow
                        // page cannot be read, and the next stretch begins behind it.
                        last = number;
                        match keep(row, 1) {
                            Ok(saved) => self.save(saved),
                            Err(_) => self.lost += 1,
                        }
                    }
                    Err(_) => return (last, false),
                },
                Ok(None) => return (last, true),
                Err(_) => return (last, false),
            }
        }
    }

    /// Deletes rows that refer to lost ones. Generic over the foreign keys that the schema declares.
    fn drop_orphans(&mut self, new: &Connection) -> Result<(), Error> {
        for table in tables(new)?.iter().cycle().take(DEPTH * tables(new)?.len()) {
            let keys: Vec<(String, String, String)> = new.query_all(
                "SELECT \"table\", \"from\", \"to\" FROM pragma_foreign_key_list(?1)",
                [table],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )?;
            for (parent, from, to) in keys {
                let orphans =
                    format!("DELETE FROM {table} WHERE {from} NOT IN (SELECT {to} FROM {parent})");
                let gone = new.execute(&orphans, ())? as u64;
                self.saved -= gone;
                self.lost += gone;
            }
        }
        Ok(())
    }
}

impl Walk<'_> {
    /// The first readable row behind `last`; `None` behind the end. By galloping search, steps that double and then
    /// bisection: a damaged page hides a contiguous range of numbers.
    fn next_readable(&self, last: i64) -> Option<i64> {
        let mut bad = last;
        // 2^40 numbers ahead is beyond the end of any table; a query behind the end succeeds and finds none.
        let mut good = (0..40).map(|n| last + (1 << n)).find(|place| {
            let readable = self.look(*place).is_ok();
            if !readable {
                bad = *place;
            }
            readable
        })?;
        while good - bad > 1 {
            let middle = bad + (good - bad) / 2;
            match self.look(middle) {
                Ok(_) => good = middle,
                Err(_) => bad = middle,
            }
        }
        self.look(good).ok().flatten()
    }

    /// The first row from there on, read whole.
    fn look(&self, from: i64) -> Result<Option<i64>, sql::Error> {
        let Walk { old, table, columns, width } = self;
        let mut statement = old.prepare(&format!(
            "SELECT rowid, {columns} FROM {table} NOT INDEXED WHERE rowid >= ?1 ORDER BY rowid LIMIT 1"
        ))?;
        let mut rows = statement.query([from])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        // Every column is read: long values are on overflow pages, which may be damaged when the row itself is not.
        for column in 0..=*width {
            row.value(column)?;
        }
        row.get(0).map(Some)
    }
}

/// Computes what no trigger has counted during the copy, and the sequences, which must never go back.
fn derive(old: &Connection, new: &Connection) -> Result<(), Error> {
    // Its trigger counts updates of a task, and the copy only inserts. The other counters have insert triggers.
    new.batch(
        "DELETE FROM tool_tally;
         INSERT INTO tool_tally SELECT tool.key, sum(tool.value) FROM task,
           json_each(iif(json_valid(task.progress), task.progress, '{}'), '$.toolCallsByName') tool
           GROUP BY tool.key;",
    )?;
    // Ids of changes only grow, or subscribers would drop new ones as old. If the counter is lost, the time in
    // milliseconds is certainly greater.
    let change = old
        .query_one("SELECT n FROM counter WHERE name = 'change'", (), |row| row.get::<i64>(0))
        .or_else(|_| new.query_one("SELECT unixepoch() * 1000", (), |row| row.get(0)))?;
    new.execute("UPDATE counter SET n = max(n, ?1) WHERE name = 'change'", [change])?;
    // So do tickets of the queue; those of the saved tasks are a lower bound.
    let ticket = old
        .query_one("SELECT n FROM counter WHERE name = 'ticket'", (), |row| row.get::<i64>(0))
        .unwrap_or(0);
    new.execute(
        "UPDATE counter SET n = max(n, ?1, (SELECT coalesce(max(ticket), 0) FROM task))
         WHERE name = 'ticket'",
        [ticket],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks and their runs, in a store of many pages.
    fn filled(path: &Path, n: i64) {
        let db = open::blank(path, open::newest()).unwrap();
        for seq in 1..=n {
            db.execute(
                "INSERT INTO task (seq, id, short_id, nonce, parent_session, parent_message,
                   parent_agent, parent_host, host, host_instance, directory, description, agent,
                   model, batch, is_forked, depth, budget, development, status, started_at,
                   completed_at, run, slot, ticket, progress, tool_calls, revision)
                 VALUES (?1, 'ses_' || ?1, ?1, ?1, 'cli', '', '', 'mailbox', 'scripted', '', '/', ?2,
                   'general', '', 'batch', 0, 1, '{}', 0, 'completed', 1, 2, 0, 0, 0,
                   '{\"toolCallsByName\":{\"read\":2}}', 2, 0)",
                (seq, "long ".repeat(100)),
            )
            .unwrap();
            db.execute(
                "INSERT INTO run (task, n, message_id, prompt, started_at) VALUES (?1, 0, ?1, 'x', 1)",
                [seq],
            )
            .unwrap();
        }
        db.execute("UPDATE counter SET n = 7 WHERE name = 'change'", ()).unwrap();
    }

    fn page_of(path: &Path, name: &str) -> (u64, u64) {
        let db = rusqlite::Connection::open(path).unwrap();
        let root = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        let root: i64 = db.query_row(root, [name], |row| row.get(0)).unwrap();
        let size: i64 = db.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
        (root as u64, size as u64)
    }

    fn blank_page(path: &Path, number: u64, size: u64) {
        use std::os::unix::fs::FileExt;
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&vec![0; size as usize], (number - 1) * size).unwrap();
    }

    /// The leaves of a table, in their order.
    fn leaves(path: &Path, name: &str) -> Vec<u64> {
        let db = rusqlite::Connection::open(path).unwrap();
        let sql = "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf' ORDER BY path";
        let mut statement = db.prepare(sql).unwrap();
        let pages = statement.query_map([name], |row| row.get::<_, i64>(0)).unwrap();
        pages.map(|page| page.unwrap() as u64).collect()
    }

    fn count(path: &Path, sql: &str) -> i64 {
        rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn damaged_indexes_are_rebuilt_without_loss() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        filled(&path, 200);
        for index in ["sqlite_autoindex_task_1", "task_by_parent", "run_of_task"] {
            let (root, size) = page_of(&path, index);
            blank_page(&path, root, size);
        }
        fs::write(marker(&path), "why").unwrap();
        let aside = with_suffix(&path, ".damaged-1");
        let rebuilt = RepairReport::Rebuilt { tasks: 200, other_rows: 200, lost: 0, aside };
        let mut progress = Vec::new();
        assert_eq!(repair(&path, &mut |rows| progress.push(rows)).unwrap(), rebuilt);
        assert!(progress.is_sorted() && progress.last() == Some(&400), "{progress:?}");
        assert_eq!(count(&path, "SELECT count(*) FROM task WHERE id LIKE 'ses_%'"), 200);
        assert_eq!(count(&path, "SELECT n FROM tally WHERE status = 'completed'"), 200);
        assert_eq!(count(&path, "SELECT n FROM tool_tally WHERE name = 'read'"), 400);
        assert_eq!(count(&path, "SELECT n FROM counter WHERE name = 'change'"), 7);
        assert!(!marker(&path).exists());
        assert_eq!(repair(&path, &mut |_| {}).unwrap(), RepairReport::Sound);
    }

    #[test]
    fn rows_behind_a_damaged_page_are_recovered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        filled(&path, 300);
        let (_, size) = page_of(&path, "task");
        let leaves = leaves(&path, "task");
        assert!(leaves.len() > 20, "{leaves:?}");
        let bad = [leaves[0], leaves[7], leaves[8], leaves[leaves.len() - 1]];
        bad.iter().for_each(|page| blank_page(&path, *page, size));
        let RepairReport::Rebuilt { tasks, other_rows, lost, .. } =
            repair(&path, &mut |_| {}).unwrap()
        else {
            panic!("it is damaged");
        };
        let least = 300 - 300 * 6 / leaves.len() as u64;
        assert!((least..300).contains(&tasks), "{tasks} of 300, {lost} lost");
        assert_eq!(other_rows, tasks, "runs without their task are gone as well");
        assert_eq!(count(&path, "SELECT count(*) FROM task"), tasks as i64);
        assert_eq!(repair(&path, &mut |_| {}).unwrap(), RepairReport::Sound);
    }

    #[test]
    fn a_file_that_is_not_a_database_is_set_aside_and_replaced_by_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        fs::write(&path, "garbage ".repeat(1000)).unwrap();
        let RepairReport::Rebuilt { tasks, other_rows, aside, .. } =
            repair(&path, &mut |_| {}).unwrap()
        else {
            panic!("it is damaged");
        };
        assert_eq!((tasks, other_rows), (0, 0));
        assert_eq!(fs::read_to_string(aside).unwrap(), "garbage ".repeat(1000));
        assert_eq!(count(&path, "SELECT count(*) FROM task"), 0);
    }
}
