//! Point and range look-ups of tasks: by id, prefix, nonce or batch, the live ones, and what descendants have spent.
//! Every query is served by an index, so that the size of the history does not matter; where the planner could
//! choose one that walks a parent's whole history, the index is named (`INDEXED BY`).

use super::rows::{self, TASK};
use super::sql::Connection;
use super::subjects::Tasks;
use super::{Error, Run};
use crate::task::lifecycle::RunEnd;
use crate::task::stats::{Counts, Usage};
use crate::task::{
    BatchId, MAILBOX, Order, RunEvent, RunEventKind, Schema, SessionId, Task, TaskId, Timestamp,
};

/// What an id typed by a person or a model refers to.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    One(Box<Task>),
    /// The first tasks it could be, and how many there are besides.
    Ambiguous {
        tasks: Vec<Task>,
        others: u64,
    },
    None,
}

impl Tasks<'_> {
    pub fn get(&self, id: &TaskId) -> Result<Option<Task>, Error> {
        self.store
            .read(|db| Ok(rows::find_task(db, "t.id = ?1", id.as_str())?.map(|(_, task)| task)))
    }

    pub fn by_nonce(&self, nonce: &str) -> Result<Option<Task>, Error> {
        self.store.read(|db| Ok(rows::find_task(db, "t.nonce = ?1", nonce)?.map(|(_, task)| task)))
    }

    /// The result cache of identical orders: the newest task of this parent since then that was ordered in the
    /// same words, on the same host and in the same directory, and completed in its first run. Forked tasks
    /// are no match, because their context differs.
    pub fn earlier(
        &self,
        parent: &SessionId,
        (host, directory): (&str, &str),
        order: &Order,
        since: Timestamp,
    ) -> Result<Option<Task>, Error> {
        self.store.read(|db| {
            // By the time of the end: few tasks ended since then, while a parent's history may be long.
            let mut statement = db.prepare(&format!(
                "SELECT {TASK} FROM task t INDEXED BY task_by_end
                 WHERE t.completed_at >= ?2 AND t.parent_session = ?1 AND t.status = 'completed'
                   AND t.run = 0 AND t.is_forked = 0 AND t.model = ?3 AND t.host = ?4
                   AND t.directory = ?5 AND t.agent = ?6 AND t.description = ?7
                   AND (SELECT prompt FROM run WHERE task = t.seq AND n = 0) = ?8
                   AND t.schema IS ?9
                 ORDER BY t.completed_at DESC LIMIT 1"
            ))?;
            let Order { agent, description, prompt, model, schema, .. } = order;
            let model = model.as_deref().unwrap_or_default();
            let values = (
                parent.as_str(),
                since.as_millis(),
                model,
                host,
                directory,
                agent,
                description,
                prompt,
                schema.as_ref().map(Schema::as_str),
            );
            let found = statement.query_opt(values, |row| Ok(rows::task(row)))?;
            Ok(found.transpose()?.map(|(_, task)| task))
        })
    }

    /// The full id, the short id or any unique prefix of the full one.
    pub fn resolve(&self, reference: &str) -> Result<Resolution, Error> {
        self.store.read(|db| {
            // An exact id wins over a prefix of another one.
            for condition in ["t.id = ?1", "t.short_id = ?1"] {
                if let Some((_, task)) = rows::find_task(db, condition, reference)? {
                    return Ok(Resolution::One(Box::new(task)));
                }
            }
            if reference.is_empty() {
                return Ok(Resolution::None);
            }
            // A prefix search as a range, so that the unique index on `id` serves it; `LIKE` would scan, and
            // take `_`, which is in every id, for a wildcard.
            let end = format!("{reference}\u{10ffff}");
            let mut tasks = query(
                db,
                ANY,
                "t.id >= ? AND t.id < ? ORDER BY t.id LIMIT 10",
                &[reference, &end],
            )?;
            Ok(match tasks.len() {
                0 => Resolution::None,
                1 => Resolution::One(Box::new(tasks.remove(0))),
                _ => {
                    let count = "SELECT count(*) FROM task WHERE id >= ?1 AND id < ?2";
                    let total: i64 =
                        db.query_one(count, (reference, end.as_str()), |row| row.get(0))?;
                    let others = (total as u64).saturating_sub(tasks.len() as u64);
                    Resolution::Ambiguous { tasks, others }
                }
            })
        })
    }

    pub fn run(&self, id: &TaskId, n: u32) -> Result<Option<Run>, Error> {
        self.store.read(|db| {
            let mut statement = db.prepare(&format!(
                "SELECT {} FROM run r WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
                rows::RUN
            ))?;
            let mut found = statement.query((id.as_str(), n))?;
            found.next()?.map(|row| rows::run(row, 0)).transpose()
        })
    }

    /// Queued, active or parked, of this parent; of all parents when none is given. Oldest first.
    pub fn live(&self, parent: Option<&SessionId>) -> Result<Vec<Task>, Error> {
        self.store.read(|db| match parent {
            // `slot IN (1, 2, 3)` lets SQLite seek by (slot, parent_session), three times; with `slot > 0`
            // alone, which makes the partial index eligible, it would walk all live tasks.
            Some(parent) => query(
                db,
                LIVE,
                "t.slot IN (1, 2, 3) AND t.slot > 0 AND t.parent_session = ? ORDER BY t.seq",
                &[parent.as_str()],
            ),
            None => query(db, LIVE, "t.slot > 0 ORDER BY t.seq", &[]),
        })
    }

    /// A parent's live tasks whose end no `Task` call waits for.
    pub fn live_in_background(&self, parent: &SessionId) -> Result<Vec<Task>, Error> {
        self.store.read(|db| {
            let condition = "t.slot IN (1, 2, 3) AND t.slot > 0 AND t.parent_session = ?
                 AND t.blocking <> 1 ORDER BY t.seq";
            query(db, LIVE, condition, &[parent.as_str()])
        })
    }

    /// The parents that have live tasks, with their hosts.
    pub fn live_parents(&self) -> Result<Vec<(String, SessionId)>, Error> {
        self.store.read(|db| {
            Ok(db.query_all(
                "SELECT DISTINCT parent_host, parent_session FROM task WHERE slot > 0",
                (),
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?)
        })
    }

    pub fn live_in_batch(&self, batch: &BatchId) -> Result<Vec<Task>, Error> {
        self.store.read(|db| {
            query(db, LIVE, "t.batch = ? AND t.slot > 0 ORDER BY t.seq", &[batch.as_str()])
        })
    }

    pub fn batch(&self, batch: &BatchId) -> Result<Vec<Task>, Error> {
        self.store.read(|db| query(db, ANY, "t.batch = ? ORDER BY t.seq", &[batch.as_str()]))
    }

    /// How many of a parent's listed tasks are in each state.
    pub fn listed_counts(&self, parent: &SessionId) -> Result<Counts, Error> {
        self.store.read(|db| {
            let mut statement = db.prepare(
                "SELECT status, count(*) FROM task
                 WHERE parent_session = ?1 AND cleared_at IS NULL GROUP BY status",
            )?;
            let mut found = statement.query([parent.as_str()])?;
            let mut counts = Counts::default();
            while let Some(row) = found.next()? {
                let status = rows::parse_status(row.get::<&str>(0).unwrap_or_default())?;
                counts.add(status, row.get::<i64>(1)? as u64);
            }
            Ok(counts)
        })
    }

    /// What happened to a task, oldest first; of a long history the newest.
    pub fn run_events(&self, id: &TaskId) -> Result<Vec<RunEvent>, Error> {
        use RunEventKind::*;
        self.store.read_at_once(|db| {
            let mut events = Vec::new();
            let mut add = |run: u32, kind: RunEventKind, at: Option<Timestamp>, text: Option<String>| {
                events.extend(at.map(|at| RunEvent { at, run, kind, text }));
            };
            let of_task = format!(
                "WHERE task = (SELECT seq FROM task WHERE id = ?1) ORDER BY seq DESC LIMIT {MOST_EVENTS}"
            );
            let runs = format!(
                "SELECT n, started_at, sent_at, ended_at, ended_as, substr(error, 1, {LONGEST_TEXT}) FROM run"
            );
            let mut runs = db.prepare(&format!("{runs} {of_task}"))?;
            let mut rows = runs.query([id.as_str()])?;
            while let Some(row) = rows.next()? {
                let run = row.get(0)?;
                add(run, Queued, row.get(1)?, None);
                add(run, Started, row.get(2)?, None);
                let how = row.get::<Option<String>>(4)?.and_then(|word| RunEnd::parse(&word));
                if let Some(how) = how {
                    add(run, how.into(), row.get(3)?, row.get(5)?);
                }
            }
            let said = format!(
                "SELECT run, created_at, correction, substr(text, 1, {LONGEST_TEXT}) FROM further_prompt"
            );
            let mut said = db.prepare(&format!("{said} {of_task}"))?;
            let mut rows = said.query([id.as_str()])?;
            while let Some(row) = rows.next()? {
                match row.get(2)? {
                    true => add(row.get(0)?, Correction, row.get(1)?, None),
                    false => add(row.get(0)?, Message, row.get(1)?, row.get(3)?),
                }
            }
            // A notice in a mailbox counts as delivered from the start; there `read_at` says when it was taken.
            let notices = format!(
                "SELECT run, nth, created_at,
                   CASE WHEN undeliverable IS NOT NULL OR wake = 0 THEN NULL
                     WHEN parent_host = '{MAILBOX}' THEN read_at ELSE delivered_at END FROM notice"
            );
            let mut notices = db.prepare(&format!("{notices} {of_task}"))?;
            let mut rows = notices.query([id.as_str()])?;
            while let Some(row) = rows.next()? {
                match row.get::<i64>(1)? {
                    0 => add(row.get(0)?, Told, row.get(3)?, None),
                    _ => add(row.get(0)?, Stalled, row.get(2)?, None),
                }
            }
            events.sort_by_key(|event| (event.at, event.run, event.kind));
            Ok(events)
        })
    }

    /// What all descendants of a session have used up, however deep. `UNION` and not `UNION ALL`: it ends even
    /// if damaged rows refer to each other in a circle.
    pub fn spent_below(&self, session: &SessionId) -> Result<Usage, Error> {
        self.store.read(|db| {
            let spent = "WITH RECURSIVE below (id, progress) AS (
                   SELECT id, progress FROM task WHERE parent_session = ?1
                   UNION SELECT t.id, t.progress FROM task t JOIN below ON t.parent_session = below.id)
                 SELECT coalesce(sum(progress ->> 'tokens'), 0), coalesce(sum(progress ->> 'cost'), 0.0)
                 FROM below";
            Ok(db.query_one(spent, [session.as_str()], |row| {
                Ok(Usage { tokens: row.get::<i64>(0)? as u64, cost: row.get(1)? })
            })?)
        })
    }
}

/// Of each kind, in [`Tasks::run_events`].
const MOST_EVENTS: usize = 200;
/// Characters of a message or an error there.
const LONGEST_TEXT: usize = 500;

/// `task` by whatever index the planner takes.
const ANY: &str = "task t";
/// By the partial index of live tasks, never by walking a parent's or a batch's whole history.
const LIVE: &str = "task t INDEXED BY task_live";

fn query(
    db: &Connection,
    from: &str,
    condition: &str,
    values: &[&str],
) -> Result<Vec<Task>, Error> {
    let mut statement = db.prepare(&format!("SELECT {TASK} FROM {from} WHERE {condition}"))?;
    let mut found = statement.query(values)?;
    let mut tasks = Vec::new();
    while let Some(row) = found.next()? {
        tasks.push(rows::task(row)?.1);
    }
    Ok(tasks)
}
