//! Opening and migrating the database. A file that is no readable database is renamed and a new one begun, one of a
//! newer version or of another program is refused untouched, an older one is copied and then migrated in one
//! transaction. Of all this only that copy takes longer with a longer history.
//!
//! Durability: WAL with `synchronous = FULL`, one fsync of the log per commit. What can go wrong is mostly about the
//! companions of the file: SQLite deletes a log whose database is empty or gone, and tasks may be in that log.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::OpenFlags;
use rusqlite::config::DbConfig;

use super::{Connection, Error, copy, damage, with_suffix};
use crate::store::subjects::Integrity;
use crate::store::{search, sql};

/// "asag", in the header of the file: tells our databases from those of other programs.
pub(super) const APPLICATION_ID: i64 = 0x6173_6167;

/// Append-only: the position of a migration is its number (`user_version`), and released ones are never edited.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/0001_tasks.sql"),
    include_str!("../../../migrations/0002_prune.sql"),
    include_str!("../../../migrations/0003_status.sql"),
    include_str!("../../../migrations/0004_fork.sql"),
    include_str!("../../../migrations/0005_instances.sql"),
    include_str!("../../../migrations/0006_blocking.sql"),
    include_str!("../../../migrations/0007_calls.sql"),
    include_str!("../../../migrations/0008_processes.sql"),
    include_str!("../../../migrations/0009_served.sql"),
    include_str!("../../../migrations/0010_reading.sql"),
    include_str!("../../../migrations/0011_quarantine.sql"),
    include_str!("../../../migrations/0012_handed.sql"),
    include_str!("../../../migrations/0013_waited.sql"),
    include_str!("../../../migrations/0014_tickets.sql"),
    include_str!("../../../migrations/0015_further_prompts.sql"),
    include_str!("../../../migrations/0016_tool_calls.sql"),
    include_str!("../../../migrations/0017_retry.sql"),
    include_str!("../../../migrations/0018_pause.sql"),
    include_str!("../../../migrations/0019_alerts.sql"),
    include_str!("../../../migrations/0020_keyed_changes.sql"),
    include_str!("../../../migrations/0021_mended_rows.sql"),
];

/// Stands between the name of a store that was set aside and a number.
const DAMAGED: &str = ".damaged-";

/// What was found at the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    New,
    Existing,
    /// The file could not be read as a database. It was kept under this name, and a new one begun.
    SetAside(PathBuf),
}

pub(in crate::store) fn open(path: &Path) -> Result<(Connection, OpenOutcome), Error> {
    // Only if both are empty: SQLite deletes a log whose database is empty or gone, and there may be tasks in it.
    // Such a log is set aside below.
    if is_empty(path)? && is_empty(&with_suffix(path, "-wal"))? {
        return Ok((migrated(path)?, OpenOutcome::New));
    }
    // Checked before SQLite opens the file: opening one that is empty or gone would delete its log.
    let readable = has_header(path)?;
    match readable.then(|| migrated(path)) {
        Some(Ok(db)) => Ok((db, OpenOutcome::Existing)),
        Some(Err(error)) if !is_damage(&error) => Err(error),
        Some(Err(_)) | None => {
            let aside = set_aside(path)?;
            Ok((migrated(path)?, OpenOutcome::SetAside(aside)))
        }
    }
}

/// A read-only connection for the pool. `NO_MUTEX`: a connection is used by one thread at a time.
pub(in crate::store) fn reader(path: &Path) -> Result<Connection, Error> {
    let db = plain(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    wait_for_others(&db, Duration::from_secs(10))?;
    db.batch("PRAGMA cache_size = -1024;")?;
    keep_plans(&db)?;
    db.driver().set_prepared_statement_cache_capacity(64);
    Ok(db)
}

/// A connection for maintenance of the whole file (vacuum, checkpoint), beside the writer.
pub(super) fn maintainer(path: &Path) -> Result<Connection, Error> {
    plain(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// A read-only connection without any settings, for a repair, which expects damage.
pub(super) fn damaged_file(path: &Path) -> Result<Connection, Error> {
    plain(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

fn plain(path: &Path, flags: OpenFlags) -> Result<Connection, Error> {
    let db = rusqlite::Connection::open_with_flags(path, flags).map_err(sql::Error::from)?;
    Ok(db.into())
}

/// The busy timeout: how long a statement waits for the lock of another connection.
pub(super) fn wait_for_others(db: &Connection, longest: Duration) -> Result<(), Error> {
    Ok(db.driver().busy_timeout(longest).map_err(sql::Error::from)?)
}

/// An empty store as it was in an earlier version, for what is copied out of a damaged one.
pub(super) fn blank(path: &Path, version: i64) -> Result<Connection, Error> {
    let db = plain(path, OpenFlags::default())?;
    db.batch("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA synchronous = OFF;")?;
    let migrations = MIGRATIONS.iter().take(usize::try_from(version).unwrap_or_default());
    for migration in migrations {
        db.batch(migration)?;
    }
    set(&db, "user_version", version)?;
    set(&db, "application_id", APPLICATION_ID)?;
    Ok(db)
}

fn set(db: &Connection, pragma: &str, value: i64) -> Result<(), Error> {
    Ok(db.batch(&format!("PRAGMA {pragma} = {value}"))?)
}

/// The newest schema this program knows.
pub(super) fn newest() -> i64 {
    MIGRATIONS.len() as i64
}

fn migrated(path: &Path) -> Result<Connection, Error> {
    // SQLite would make it readable for everybody where the umask lets it; its log and index get the
    // mode of the file. What is wrong with the place, SQLite says next.
    let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let db = plain(path, OpenFlags::default())?;
    wait_for_others(&db, Duration::from_secs(10))?;
    let known = newest();
    let found: i64 = db.query_one("PRAGMA user_version", (), |row| row.get(0))?;
    let owner: i64 = db.query_one("PRAGMA application_id", (), |row| row.get(0))?;
    if found > known && owner == APPLICATION_ID {
        return Err(Error::TooNew { found, known });
    }
    let tables: i64 = db.query_one("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    if owner != APPLICATION_ID && tables > 0 {
        return Err(Error::Foreign(path.display().to_string()));
    }
    // Before there is a table: later the mode changes only with a rewrite of the whole file (`space`).
    if tables == 0 {
        db.batch("PRAGMA auto_vacuum = INCREMENTAL;")?;
    }
    // Not before we know whose it is: the journal mode is written into the file. Everything else is a setting
    // of this connection: an fsync with every commit, and a log that is cut to 16 MiB after a checkpoint.
    db.batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
         PRAGMA cache_size = -2048; PRAGMA temp_store = MEMORY;
         PRAGMA journal_size_limit = 16777216;",
    )?;
    db.driver().set_prepared_statement_cache_capacity(128);
    keep_plans(&db)?;
    if (1..known).contains(&found) {
        copy::before_migration(path, &db, known)?;
    }
    // All migrations in one transaction, with their number: after a crash or a full disk the file is what it was.
    let tx = db.begin()?;
    for (n, migration) in MIGRATIONS.iter().enumerate().skip(found as usize) {
        tx.batch(migration)?;
        set(&tx, "user_version", n as i64 + 1)?;
    }
    if owner != APPLICATION_ID {
        set(&tx, "application_id", APPLICATION_ID)?;
    }
    tx.commit()?;
    catch_up(path, &db)?;
    Ok(db)
}

/// Completes the search index. Not in a file that is known to be damaged, which is not written. Damage that is found
/// here is no reason to begin a new store: it is marked, and the latch keeps the file from being written, while
/// everything that can be read of it still is.
fn catch_up(path: &Path, db: &Connection) -> Result<(), Error> {
    let marker = damage::marker(path);
    if marker.exists() {
        return Ok(());
    }
    let tx = db.begin()?;
    match search::catch_up(&tx) {
        Ok(()) => Ok(tx.commit()?),
        Err(error) => match error.damage() {
            Some(why) => Ok(fs::write(marker, why.as_bytes())?),
            None => Err(error),
        },
    }
}

/// Switches on SQLite's query planner stability guarantee (QPSG): a cached statement is planned once. Without it, it
/// may be replanned whenever the values bound to it change.
fn keep_plans(db: &Connection) -> Result<(), Error> {
    let keep = db.driver().set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    keep.map_err(sql::Error::from)?;
    Ok(())
}

fn is_empty(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len() == 0),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn has_header(path: &Path) -> Result<bool, Error> {
    let mut header = [0; 16];
    match File::open(path).and_then(|mut file| file.read_exact(&mut header)) {
        Ok(()) => Ok(&header == b"SQLite format 3\0"),
        Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::NotFound].contains(&error.kind()) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged(_))
}

impl Integrity<'_> {
    /// Damaged stores that were kept here and are still there.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        damaged(&self.store.0.path)
    }
}

fn damaged(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let mut prefix = name.to_owned();
    prefix.push(DAMAGED);
    let number = |entry: fs::DirEntry| -> Option<u32> {
        let name = entry.file_name();
        let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes())?;
        // A write-ahead log without its database may be all that was left.
        let rest = std::str::from_utf8(rest).ok()?;
        rest.strip_suffix("-wal").unwrap_or(rest).parse().ok()
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers: BTreeSet<u32> = entries.filter_map(number).collect();
    let file = |n: u32| {
        let file = with_suffix(path, &format!("{DAMAGED}{n}"));
        if file.exists() { file } else { with_suffix(&file, "-wal") }
    };
    numbers.into_iter().map(file).collect()
}

/// Renames the database and its companions to a name that is still free. The database last: a crash in between must
/// not leave a log without its database, which SQLite would delete.
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let aside = |n: u32| with_suffix(path, &format!("{DAMAGED}{n}"));
    let is_free = |aside: &PathBuf| !aside.exists() && !with_suffix(aside, "-wal").exists();
    let aside = (1..).map(aside).find(is_free).expect("some number is free");
    // An empty log and its index are left behind by a reader; there is nothing in them to keep.
    if is_empty(&with_suffix(path, "-wal"))? {
        let _ = fs::remove_file(with_suffix(path, "-wal"));
        let _ = fs::remove_file(with_suffix(path, "-shm"));
    }
    for companion in ["-wal", "-shm", ""] {
        match fs::rename(with_suffix(path, companion), with_suffix(&aside, companion)) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(Error::SetAside { path: path.display().to_string(), source });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Filter, Sort, Store, Window};
    use crate::task::TaskId;
    use crate::task::view::Brief;

    #[test]
    fn a_store_of_every_earlier_version_is_migrated() {
        let schema = |db: &Connection| -> Vec<(String, String)> {
            let sql = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
            db.query_all(sql, (), |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
        };
        let directory = tempfile::tempdir().unwrap();
        let new = schema(&migrated(&directory.path().join("new.db")).unwrap());
        for version in 1..=MIGRATIONS.len() {
            let path = directory.path().join(format!("{version}.db"));
            let old = rusqlite::Connection::open(&path).unwrap();
            old.execute_batch(&MIGRATIONS[..version].join("\n")).unwrap();
            old.pragma_update(None, "user_version", version as i64).unwrap();
            old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
            drop(old);
            let (db, opened) = open(&path).unwrap();
            assert_eq!((schema(&db), opened), (new.clone(), OpenOutcome::Existing), "{version}");
        }
    }

    #[test]
    fn a_stored_view_of_an_older_schema_is_rebuilt_from_the_rows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old.db");
        let old = rusqlite::Connection::open(&path).unwrap();
        old.execute_batch(&MIGRATIONS[..8].join("\n")).unwrap();
        old.execute_batch(
            r#"PRAGMA user_version = 8;
            INSERT INTO task (id, short_id, nonce, parent_session, parent_message, parent_agent,
              parent_host, host, host_instance, directory, description, agent, model, batch,
              is_forked, depth, budget, development, status, started_at, completed_at, run,
              result_run, slot, ticket, progress, tool_calls, revision)
            VALUES ('ses_1', 'abc', 'n', 'cli', '', '', 'mailbox', 'scripted', '', '/', 'Find it',
              'explore', '', 'bat_1', 0, 1, '{}', 0, 'completed', 1, 2, 0, 0, 0, 1,
              '{"toolCalls":0,"toolCallsByName":{},"lastTools":[],"phase":"waiting",
                "lastUpdate":"2026-01-01T00:00:00.000Z"}', 0, 0);
            INSERT INTO run (task, n, message_id, prompt, started_at, result)
            VALUES (1, 0, 'msg_1', 'Where is it?', 1, 'here');
            INSERT INTO view VALUES (1, '{"sessionID":"ses_1"}');
            INSERT INTO counter VALUES ('forgotten', 3);"#,
        )
        .unwrap();
        old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        drop(old);
        let (store, opened) = Store::open(&path, |_| {}).unwrap();
        let filter = Filter { search: Some("FIND".to_owned()), ..Filter::default() };
        let window = Window { limit: 50, offset: 0 };
        let page = || {
            let mut answer = Vec::new();
            let total = store.pages().json(&filter, Sort::default(), window, &mut answer).unwrap();
            (answer, total)
        };
        let task = store.tasks().get(&TaskId::new("ses_1")).unwrap().unwrap();
        assert_eq!(
            (task.order.prompt.as_str(), task.state.result()),
            ("Where is it?", Some("here"))
        );
        let built = store.brief(&task).to_json().into_bytes();
        assert_eq!((page(), opened), ((built, 1), OpenOutcome::Existing));
        // Of the version that is written now it is a copy.
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute("UPDATE view SET schema = ?1", [Brief::default().schema()]).unwrap();
        assert_eq!(page(), (br#"{"sessionID":"ses_1"}"#.to_vec(), 1));
    }

    #[test]
    fn a_copy_is_kept_before_a_migration_and_only_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.db");
        drop(blank(&path, newest() - 1).unwrap());
        fs::write(with_suffix(&path, ".before-3"), "older").unwrap();
        drop(open(&path).unwrap());
        let names = || -> BTreeSet<String> {
            let entries = fs::read_dir(directory.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let copy = format!("test.db.before-{}", newest());
        assert_eq!(names(), BTreeSet::from(["test.db".to_owned(), copy.clone()]));
        let db = rusqlite::Connection::open(directory.path().join(&copy)).unwrap();
        let version = db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
        assert_eq!(version.unwrap(), newest() - 1);
        drop(db);
        fs::remove_file(directory.path().join(copy)).unwrap();
        drop(open(&path).unwrap());
        assert_eq!(names(), BTreeSet::from(["test.db".to_owned()]), "nothing was migrated");
    }
}
