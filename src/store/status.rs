//! Aggregates for the status API: totals, batches, and the snapshot that an event stream begins with.
//!
//! Totals are materialised: triggers keep counter rows with every insert, update and delete of a task, so no writer
//! can forget it, and no answer grows with the history. A snapshot carries the number of the newest change in it: a
//! client subscribes first, reads the snapshot, and drops the events up to that number.

use std::collections::BTreeMap;

use super::pages;
use super::sql::Connection;
use super::subjects::Overview;
use super::{Error, rows};
use crate::task::stats::{BatchStats, Counts};
use crate::task::view::TaskView;
use crate::task::{BatchId, Status};

/// A counter row: the tasks of one status and agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub status: Status,
    pub agent: String,
    pub tasks: u64,
    pub tool_calls: u64,
}

/// Over the whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub tallies: Vec<Tally>,
    /// Tasks that have ended, and what all of them, the longest and the shortest took, in
    /// milliseconds.
    pub ended: u64,
    pub millis: u64,
    pub longest: u64,
    pub shortest: u64,
    pub tool_calls_by_name: BTreeMap<String, u64>,
}

/// A batch with its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: BatchId,
    pub stats: BatchStats,
}

/// The state after exactly the changes up to `change`, read in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The newest change that is in it.
    pub change: u64,
    /// The live tasks and the newest others, newest first.
    pub tasks: Vec<TaskView>,
    pub totals: Totals,
}

impl Overview<'_> {
    pub fn totals(&self) -> Result<Totals, Error> {
        self.store.read(totals)
    }

    /// The counter rows: few, whatever the size of the history.
    pub fn tallies(&self) -> Result<Vec<Tally>, Error> {
        self.store.read(tallies)
    }

    pub fn task_count(&self) -> Result<u64, Error> {
        self.store.read(task_count)
    }

    /// How many tasks there are, and whether the queue is paused: what monitors poll, so it is one statement.
    pub fn health_figures(&self) -> Result<(u64, bool), Error> {
        self.store.read(|db| {
            let query =
                "SELECT (SELECT coalesce(sum(n), 0) FROM tally), EXISTS (SELECT 1 FROM pause)";
            Ok(db.query_one(query, (), |row| Ok((row.get::<i64>(0)? as u64, row.get(1)?)))?)
        })
    }

    /// The cache key of a snapshot: the newest change, and how many tasks there are. While both stay the same, so
    /// does a snapshot: every launch, update and end is a change; pruning is none, but takes tasks away.
    pub fn snapshot_key(&self) -> Result<(u64, u64), Error> {
        self.store.read_at_once(|db| Ok((counter(db, "change")?, task_count(db)?)))
    }

    /// All live tasks, and `others` of the ended ones.
    pub fn snapshot(&self, others: u64) -> Result<Snapshot, Error> {
        self.store.read_at_once(|db| {
            let change = counter(db, "change")?;
            // Two queries, for two partial ranges: live ones from `task_live`, however old, and ended ones from
            // the end of the primary key, where few rows are skipped before the limit is reached.
            let mut seqs: Vec<i64> =
                db.query_all("SELECT seq FROM task WHERE slot > 0", (), |row| row.get(0))?;
            seqs.extend(db.query_all::<i64, Vec<i64>>(
                "SELECT seq FROM task WHERE slot = 0 ORDER BY seq DESC LIMIT ?1",
                [others as i64],
                |row| row.get(0),
            )?);
            seqs.sort_unstable_by(|one, other| other.cmp(one));
            let tasks = pages::tasks(db, &seqs, |task| self.store.brief(&task))?;
            Ok(Snapshot { change, tasks, totals: totals(db)? })
        })
    }

    /// A batch and its tasks, oldest first.
    pub fn group(&self, id: &BatchId) -> Result<Option<(Group, Vec<TaskView>)>, Error> {
        self.store.read_at_once(|db| {
            let Some(group) = group(db, id.as_str())? else { return Ok(None) };
            let seqs: Vec<i64> = db.query_all(
                "SELECT seq FROM task WHERE batch = ?1 ORDER BY seq",
                [id.as_str()],
                |row| row.get(0),
            )?;
            Ok(Some((group, pages::tasks(db, &seqs, |task| self.store.brief(&task))?)))
        })
    }

    /// Those with the newest members first, and how many there are.
    pub fn groups(&self, limit: u64, offset: u64) -> Result<(Vec<Group>, u64), Error> {
        self.store.read_at_once(|db| {
            let mut newest =
                db.prepare("SELECT id FROM batch ORDER BY newest DESC, id LIMIT ?1 OFFSET ?2")?;
            // `newest` is kept by a trigger, with an index: sorting batches by their tasks would read all tasks.
            let window = [limit, offset].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let ids: Vec<String> = newest.query_all(window, |row| row.get(0))?;
            let mut groups = Vec::with_capacity(ids.len());
            for id in ids {
                groups.extend(group(db, &id)?);
            }
            Ok((groups, counter(db, "batches")?))
        })
    }

    /// How many tasks wait for a slot, and how many notices for their delivery.
    pub fn waiting(&self) -> Result<(u64, u64), Error> {
        self.store.read_at_once(|db| {
            // Both from partial indexes, which hold what waits and nothing else.
            let count = |sql| -> Result<u64, Error> {
                Ok(db.query_one(sql, (), |row| row.get::<i64>(0))? as u64)
            };
            Ok((
                count("SELECT count(*) FROM task WHERE slot = 1 AND slot > 0")?,
                count(
                    "SELECT count(*) FROM notice INDEXED BY notice_owed WHERE delivered_at IS NULL",
                )?,
            ))
        })
    }
}

fn task_count(db: &Connection) -> Result<u64, Error> {
    Ok(db.query_one("SELECT coalesce(sum(n), 0) FROM tally", (), |row| row.get::<i64>(0))? as u64)
}

/// One statement for all figures: it sees one snapshot without a transaction around it, and to begin a query takes
/// longer than to read a counter row. The extremes are the two ends of the expression index `task_by_duration`; it is
/// named, so that no other plan reads all ended tasks for them.
const TOTALS: &str = "SELECT 'tally', status, agent, n, tool_calls FROM tally WHERE n > 0
 UNION ALL SELECT 'tool', '', name, n, 0 FROM tool_tally WHERE n > 0
 UNION ALL SELECT 'ended', '', '', coalesce((SELECT n FROM counter WHERE name = 'ended'), 0),
   coalesce((SELECT n FROM counter WHERE name = 'ended_millis'), 0)
 UNION ALL SELECT 'extremes', '', '',
   coalesce((SELECT max(completed_at - started_at, 0) FROM task INDEXED BY task_by_duration
     WHERE completed_at IS NOT NULL ORDER BY max(completed_at - started_at, 0) DESC LIMIT 1), 0),
   coalesce((SELECT max(completed_at - started_at, 0) FROM task INDEXED BY task_by_duration
     WHERE completed_at IS NOT NULL ORDER BY max(completed_at - started_at, 0) LIMIT 1), 0)";

fn totals(db: &Connection) -> Result<Totals, Error> {
    let mut statement = db.prepare(TOTALS)?;
    let mut found = statement.query(())?;
    let mut totals = Totals::default();
    while let Some(row) = found.next()? {
        let [first, second] = [row.get::<i64>(3)? as u64, row.get::<i64>(4)? as u64];
        match row.get::<&str>(0)? {
            "tally" => totals.tallies.push(Tally {
                status: rows::parse_status(row.get::<&str>(1).unwrap_or_default())?,
                agent: row.get(2)?,
                tasks: first,
                tool_calls: second,
            }),
            "tool" => drop(totals.tool_calls_by_name.insert(row.get(2)?, first)),
            "ended" => (totals.ended, totals.millis) = (first, second),
            _ => (totals.longest, totals.shortest) = (first, second),
        }
    }
    Ok(totals)
}

fn tallies(db: &Connection) -> Result<Vec<Tally>, Error> {
    let mut statement = db.prepare("SELECT status, agent, n, tool_calls FROM tally WHERE n > 0")?;
    let mut found = statement.query(())?;
    let mut tallies = Vec::new();
    while let Some(row) = found.next()? {
        tallies.push(Tally {
            status: rows::parse_status(row.get::<&str>(0).unwrap_or_default())?,
            agent: row.get(1)?,
            tasks: row.get::<i64>(2)? as u64,
            tool_calls: row.get::<i64>(3)? as u64,
        });
    }
    Ok(tallies)
}

fn counter(db: &Connection, name: &str) -> Result<u64, Error> {
    let n: Option<i64> =
        db.query_opt("SELECT n FROM counter WHERE name = ?1", [name], |row| row.get(0))?;
    Ok(n.unwrap_or(0) as u64)
}

/// Aggregates one batch from its tasks, through the index `task_by_batch`.
fn group(db: &Connection, id: &str) -> Result<Option<Group>, Error> {
    let mut statement = db.prepare(
        "SELECT status, count(*), sum(tool_calls), min(started_at), max(completed_at)
         FROM task WHERE batch = ?1 GROUP BY status",
    )?;
    let mut found = statement.query([id])?;
    let mut stats: Option<BatchStats> = None;
    while let Some(row) = found.next()? {
        let status = rows::parse_status(row.get::<&str>(0).unwrap_or_default())?;
        let began = row.get(3)?;
        let ended = row.get(4)?;
        let stats = stats.get_or_insert_with(|| BatchStats {
            counts: Counts::default(),
            tool_calls: 0,
            tool_calls_by_name: BTreeMap::new(),
            tool_calls_by_agent: BTreeMap::new(),
            began,
            ended: None,
        });
        stats.counts.add(status, row.get::<i64>(1)? as u64);
        stats.tool_calls += row.get::<i64>(2)? as u64;
        stats.began = stats.began.min(began);
        stats.ended = stats.ended.max(ended);
    }
    let Some(mut stats) = stats else { return Ok(None) };
    // `json_valid`: one damaged row would otherwise fail the statement for the whole batch.
    stats.tool_calls_by_name = tool_calls(
        db,
        "SELECT tool.key, sum(tool.value) FROM task,
           json_each(iif(json_valid(task.progress), task.progress, '{}'), '$.toolCallsByName') tool
         WHERE batch = ?1 GROUP BY tool.key",
        id,
    )?;
    stats.tool_calls_by_agent = tool_calls(
        db,
        "SELECT agent, sum(tool_calls) FROM task WHERE batch = ?1 GROUP BY agent",
        id,
    )?;
    Ok(Some(Group { id: BatchId::new(id), stats }))
}

/// Of a batch, by what the query groups them by.
fn tool_calls(db: &Connection, sql: &str, batch: &str) -> Result<BTreeMap<String, u64>, Error> {
    Ok(db.query_all(sql, [batch], |row| Ok((row.get(0)?, row.get::<i64>(1)?.unsigned_abs())))?)
}
