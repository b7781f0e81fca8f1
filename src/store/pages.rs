//! Looking things up: one task, the live ones, pages of the history, totals. From indexes and
//! counter rows, so that the size of the history does not matter; only a search goes through all of it.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::filter::{Direction, Filter, Sort, Window};
use super::rows::{self, TASK};
use super::{Error, Run, Store, search};
use crate::task::Order;
use crate::task::stats::{Counts, Usage};
use crate::task::view::Brief;
use crate::task::{BatchId, SessionId, Status, Task, TaskId, Timestamp};

#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub tasks: Vec<T>,
    /// How many match, on all pages.
    pub total: u64,
}

/// What a typed id means.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
    One(Box<Task>),
    Ambiguous(Vec<Task>),
    None,
}

/// A counter row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub status: Status,
    pub agent: String,
    pub tasks: u64,
    pub tool_calls: u64,
}

impl Store {
    pub fn task(&self, id: &TaskId) -> Result<Option<Task>, Error> {
        self.read(|db| Ok(rows::find_task(db, "t.id = ?1", id.as_str())?.map(|(_, task)| task)))
    }

    pub fn task_by_nonce(&self, nonce: &str) -> Result<Option<Task>, Error> {
        self.read(|db| Ok(rows::find_task(db, "t.nonce = ?1", nonce)?.map(|(_, task)| task)))
    }

    /// The newest task of this parent that was ordered in the same words and completed at once.
    pub fn earlier(
        &self,
        parent: &SessionId,
        (host, directory): (&str, &str),
        order: &Order,
        since: Timestamp,
    ) -> Result<Option<Task>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(&format!(
                "SELECT {TASK} FROM task t INDEXED BY task_by_end
                 WHERE t.completed_at >= ?2 AND t.parent_session = ?1 AND t.status = 'completed'
                   AND t.run = 0 AND t.is_forked = 0 AND t.model = ?3 AND t.host = ?4
                   AND t.directory = ?5 AND t.agent = ?6 AND t.description = ?7
                   AND (SELECT prompt FROM run WHERE task = t.seq AND n = 0) = ?8
                 ORDER BY t.completed_at DESC LIMIT 1"
            ))?;
            let Order { agent, description, prompt, model, .. } = order;
            let model = model.as_deref().unwrap_or_default();
            let values = rusqlite::params![
                parent.as_str(),
                since.as_millis(),
                model,
                host,
                directory,
                agent,
                description,
                prompt
            ];
            let found = statement.query_row(values, |row| Ok(rows::task(row))).optional()?;
            Ok(found.transpose()?.map(|(_, task)| task))
        })
    }

    /// The full id, the short id or any unique prefix of the full one.
    pub fn resolve(&self, reference: &str) -> Result<Resolved, Error> {
        self.read(|db| {
            for condition in ["t.id = ?1", "t.short_id = ?1"] {
                if let Some((_, task)) = rows::find_task(db, condition, reference)? {
                    return Ok(Resolved::One(Box::new(task)));
                }
            }
            if reference.is_empty() {
                return Ok(Resolved::None);
            }
            let end = format!("{reference}\u{10ffff}");
            let mut tasks = query(
                db,
                ANY,
                "t.id >= ? AND t.id < ? ORDER BY t.id LIMIT 10",
                vec![reference.to_owned().into(), end.into()],
            )?;
            Ok(match tasks.len() {
                0 => Resolved::None,
                1 => Resolved::One(Box::new(tasks.remove(0))),
                _ => Resolved::Ambiguous(tasks),
            })
        })
    }

    pub fn run(&self, id: &TaskId, n: u32) -> Result<Option<Run>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(&format!(
                "SELECT {} FROM run r WHERE n = ?2 AND task = (SELECT seq FROM task WHERE id = ?1)",
                rows::RUN
            ))?;
            let mut found = statement.query((id.as_str(), n))?;
            found.next()?.map(|row| rows::run(row, 0)).transpose()
        })
    }

    /// `show` is called row by row: what it cuts off a long result is never held for a whole page.
    pub fn page<T>(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        show: impl Fn(Task) -> T,
    ) -> Result<Page<T>, Error> {
        self.read_at_once(|db| {
            let (selected, total) = select(db, filter, sort, window)?;
            Ok(Page { tasks: tasks(db, &selected.seqs(db)?, &show)?, total })
        })
    }

    /// The same page as JSON behind what is in `answer`, with commas between the tasks, and how many
    /// match. That of ended tasks is copied from where it was stored with their end: to build a page
    /// from rows takes several times as long as to send it.
    pub fn page_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        answer: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        let start = answer.len();
        self.read_at_once(|db| {
            answer.truncate(start);
            let (selected, total) = select(db, filter, sort, window)?;
            selected.json(db, self.0.brief, answer)?;
            Ok(total)
        })
    }

    /// The same, if it takes microseconds: totals that are kept by triggers, and no long walk.
    pub fn page_json_at_once(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        answer: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        if filter.text().is_some() || !filter.counted() {
            return Ok(None);
        }
        let start = answer.len();
        self.read_at_once(|db| {
            answer.truncate(start);
            let (selected, total) = select(db, filter, sort, window)?;
            let is_near = window.limit.saturating_add(window.offset) <= NEAR;
            if !is_near && !matches!(selected, Selected::Numbers { .. }) {
                return Ok(None);
            }
            selected.json(db, self.0.brief, answer)?;
            Ok(Some(total))
        })
    }

    /// Queued or active, of this parent; of all parents when there is none. Oldest first.
    pub fn live(&self, parent: Option<&SessionId>) -> Result<Vec<Task>, Error> {
        self.read(|db| match parent {
            Some(parent) => query(
                db,
                LIVE,
                "t.slot IN (1, 2, 3) AND t.slot > 0 AND t.parent_session = ? ORDER BY t.seq",
                vec![parent.as_str().to_owned().into()],
            ),
            None => query(db, LIVE, "t.slot > 0 ORDER BY t.seq", Vec::new()),
        })
    }

    /// A parent's live tasks whose end nobody waits for with a `Task`.
    pub fn live_in_background(&self, parent: &SessionId) -> Result<Vec<Task>, Error> {
        self.read(|db| {
            let condition = "t.slot IN (1, 2, 3) AND t.slot > 0 AND t.parent_session = ?
                 AND t.blocking <> 1 ORDER BY t.seq";
            query(db, LIVE, condition, vec![parent.as_str().to_owned().into()])
        })
    }

    /// The parents that have live tasks, with their hosts.
    pub fn live_parents(&self) -> Result<Vec<(String, SessionId)>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT DISTINCT parent_host, parent_session FROM task WHERE slot > 0",
            )?;
            let rows = statement
                .query_map([], |row| Ok((row.get(0)?, SessionId::new(row.get::<_, String>(1)?))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn live_in_batch(&self, batch: &BatchId) -> Result<Vec<Task>, Error> {
        self.read(|db| {
            let batch = vec![batch.as_str().to_owned().into()];
            query(db, LIVE, "t.batch = ? AND t.slot > 0 ORDER BY t.seq", batch)
        })
    }

    pub fn batch(&self, batch: &BatchId) -> Result<Vec<Task>, Error> {
        self.read(|db| {
            query(db, ANY, "t.batch = ? ORDER BY t.seq", vec![batch.as_str().to_owned().into()])
        })
    }

    /// How many of a parent's listed tasks are in each state.
    pub fn listed_counts(&self, parent: &SessionId) -> Result<Counts, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "SELECT status, count(*) FROM task
                 WHERE parent_session = ?1 AND cleared_at IS NULL GROUP BY status",
            )?;
            let mut found = statement.query([parent.as_str()])?;
            let mut counts = Counts::default();
            while let Some(row) = found.next()? {
                let status = rows::parse_status(row.get_ref(0)?.as_str().unwrap_or_default())?;
                counts.add(status, row.get::<_, i64>(1)? as u64);
            }
            Ok(counts)
        })
    }

    /// What all descendants of a session have used up, however deep.
    pub fn spent_below(&self, session: &SessionId) -> Result<Usage, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "WITH RECURSIVE below (id, progress) AS (
                   SELECT id, progress FROM task WHERE parent_session = ?1
                   UNION SELECT t.id, t.progress FROM task t JOIN below ON t.parent_session = below.id)
                 SELECT coalesce(sum(progress ->> 'tokens'), 0), coalesce(sum(progress ->> 'cost'), 0.0)
                 FROM below",
            )?;
            Ok(statement.query_row([session.as_str()], |row| {
                Ok(Usage { tokens: row.get::<_, i64>(0)? as u64, cost: row.get(1)? })
            })?)
        })
    }

    /// The counter rows: few, whatever the size of the history.
    pub fn tallies(&self) -> Result<Vec<Tally>, Error> {
        self.read(tallies)
    }
}

pub(super) fn tallies(db: &Connection) -> Result<Vec<Tally>, Error> {
    let mut statement =
        db.prepare_cached("SELECT status, agent, n, tool_calls FROM tally WHERE n > 0")?;
    let mut found = statement.query([])?;
    let mut tallies = Vec::new();
    while let Some(row) = found.next()? {
        tallies.push(Tally {
            status: rows::parse_status(row.get_ref(0)?.as_str().unwrap_or_default())?,
            agent: row.get(1)?,
            tasks: row.get::<_, i64>(2)? as u64,
            tool_calls: row.get::<_, i64>(3)? as u64,
        });
    }
    Ok(tallies)
}

/// Which tasks are on a page.
enum Selected {
    /// The numbers from the first to the last, both included; the last one first when descending.
    Numbers {
        first: i64,
        last: i64,
        direction: Direction,
    },
    /// A query for their numbers.
    Query {
        sql: String,
        values: Vec<Value>,
    },
    Found(Vec<i64>),
}

impl Selected {
    /// In their order.
    fn seqs(self, db: &Connection) -> Result<Vec<i64>, Error> {
        Ok(match self {
            Selected::Numbers { first, last, direction } => numbers(first, last, direction),
            Selected::Query { sql, values } => {
                let mut statement = db.prepare_cached(&sql)?;
                let seqs = statement.query_map(params_from_iter(values), |row| row.get(0))?;
                seqs.collect::<Result<_, _>>()?
            }
            Selected::Found(seqs) => seqs,
        })
    }

    /// In one query where that is possible, because to begin one takes longer than to copy a task.
    fn json(self, db: &Connection, brief: Brief, answer: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Selected::Numbers { first, last, direction } => {
                let mut stored = db.prepare_cached(match direction {
                    Direction::Ascending => {
                        "SELECT task, json FROM view
                         WHERE task BETWEEN ?1 AND ?2 AND schema = ?3 ORDER BY task"
                    }
                    Direction::Descending => {
                        "SELECT task, json FROM view
                         WHERE task BETWEEN ?1 AND ?2 AND schema = ?3 ORDER BY task DESC"
                    }
                })?;
                let mut rows = stored.query((first, last, brief.schema()))?;
                let mut seqs = numbers(first, last, direction).into_iter();
                while let Some(row) = rows.next()? {
                    let stored = row.get(0)?;
                    for seq in seqs.by_ref().take_while(|seq| *seq != stored) {
                        add(db, brief, seq, None, answer)?;
                    }
                    add(db, brief, stored, Some(row.get_ref(1)?), answer)?;
                }
                seqs.try_for_each(|seq| add(db, brief, seq, None, answer))
            }
            Selected::Query { sql, values } => {
                // Joined to what is on the page, and not to all that is sorted or skipped for it.
                let mut stored = db.prepare_cached(&format!(
                    "SELECT t.seq, v.json FROM ({sql}) t
                     LEFT JOIN view v ON v.task = t.seq AND v.schema = {}",
                    brief.schema()
                ))?;
                let mut rows = stored.query(params_from_iter(values))?;
                while let Some(row) = rows.next()? {
                    add(db, brief, row.get(0)?, Some(row.get_ref(1)?), answer)?;
                }
                Ok(())
            }
            Selected::Found(seqs) => {
                let mut stored =
                    db.prepare_cached("SELECT json FROM view WHERE task = ?1 AND schema = ?2")?;
                for seq in seqs {
                    let mut found = stored.query((seq, brief.schema()))?;
                    let stored = found.next()?.map(|row| row.get_ref(0)).transpose()?;
                    add(db, brief, seq, stored, answer)?;
                }
                Ok(())
            }
        }
    }
}

fn numbers(first: i64, last: i64, direction: Direction) -> Vec<i64> {
    match direction {
        Direction::Ascending => (first..=last).collect(),
        Direction::Descending => (first..=last).rev().collect(),
    }
}

/// A task as JSON, as it was stored or else built from its rows.
fn add(
    db: &Connection,
    brief: Brief,
    seq: i64,
    stored: Option<ValueRef<'_>>,
    answer: &mut Vec<u8>,
) -> Result<(), Error> {
    if answer.last() == Some(&b'}') {
        answer.push(b',');
    }
    match stored.and_then(|json| json.as_bytes().ok()) {
        Some(json) => answer.extend_from_slice(json),
        None => {
            let built = tasks(db, &[seq], |task| brief.view(&task).to_json())?;
            answer.extend(built.into_iter().flat_map(String::into_bytes));
        }
    }
    Ok(())
}

/// Which tasks are on a page, and how many match on all pages.
fn select(
    db: &Connection,
    filter: &Filter,
    sort: Sort,
    window: Window,
) -> Result<(Selected, u64), Error> {
    if let Some(text) = filter.text() {
        let (seqs, total) = find(db, filter, text, sort, window)?;
        return Ok((Selected::Found(seqs), total));
    }
    let (condition, mut values) = filter.condition();
    let total = match filter.counted() {
        true => counted(db, filter)?,
        false => count(db, &condition, &values)?,
    };
    if filter.admits_all()
        && sort.is_by_launch()
        && let Some(numbers) = by_number(db, sort.direction, total, window)?
    {
        return Ok((numbers, total));
    }
    let sql = format!(
        "SELECT t.seq FROM task t WHERE {condition} ORDER BY {} LIMIT ? OFFSET ?",
        sort.sql()
    );
    let (limit, offset) = window.signed();
    values.extend([Value::from(limit), Value::from(offset)]);
    Ok((Selected::Query { sql, values }, total))
}

/// `OFFSET` walks over all rows that it skips. While no number is missing, the place of a task in the
/// history follows from its number. `None` when some are, because a task in between was pruned.
fn by_number(
    db: &Connection,
    direction: Direction,
    total: u64,
    window: Window,
) -> Result<Option<Selected>, Error> {
    let mut ends = db.prepare_cached(
        "SELECT coalesce((SELECT min(seq) FROM task), 1), coalesce((SELECT max(seq) FROM task), 0)",
    )?;
    let (first, last): (i64, i64) = ends.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if last - first + 1 != total as i64 {
        return Ok(None);
    }
    let (limit, offset) = window.signed();
    let end = offset.saturating_add(limit).min(total as i64);
    let (first, last) = match direction {
        Direction::Ascending => (first + offset.min(end), first + end - 1),
        Direction::Descending => (last - end + 1, last - offset.min(end)),
    };
    Ok(Some(Selected::Numbers { first, last, direction }))
}

/// The same for tasks with `text` in their description. All of them are visited, for the total; only
/// those on the page are kept.
fn find(
    db: &Connection,
    filter: &Filter,
    text: &str,
    sort: Sort,
    window: Window,
) -> Result<(Vec<i64>, u64), Error> {
    let end = window.offset.saturating_add(window.limit);
    let (mut page, mut total) = (Vec::new(), 0);
    let mut take = |seq| {
        if (window.offset..end).contains(&total) {
            page.push(seq);
        }
        total += 1;
    };
    let (condition, values) = filter.condition();
    if !sort.is_by_launch() {
        let mut matching = Vec::new();
        search::scan(db, text, Direction::Ascending, |block| {
            matching.extend(block.tasks());
            Ok(())
        })?;
        let sorted = format!("SELECT t.seq FROM task t WHERE {condition} ORDER BY {}", sort.sql());
        let mut sorted = db.prepare_cached(&sorted)?;
        let mut rows = sorted.query(params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            if matching.binary_search(&seq).is_ok() {
                take(seq);
            }
        }
    } else if filter.admits_all() {
        search::scan(db, text, sort.direction, |block| {
            // Before and behind the page it is enough to count.
            let n = block.count();
            if total + n > window.offset && total < end {
                let on_page = (total..).zip(block.tasks());
                page.extend(
                    on_page.filter(|(at, _)| (window.offset..end).contains(at)).map(|(_, seq)| seq),
                );
            }
            total += n;
            Ok(())
        })?;
    } else {
        let mut admits =
            db.prepare_cached(&format!("SELECT 1 FROM task t WHERE {condition} AND t.seq = ?"))?;
        search::scan(db, text, sort.direction, |block| {
            for seq in block.tasks() {
                if admits.exists(params_from_iter(values.iter().cloned().chain([seq.into()])))? {
                    take(seq);
                }
            }
            Ok(())
        })?;
    }
    Ok((page, total))
}

/// These tasks, in this order.
pub(super) fn tasks<T>(
    db: &Connection,
    seqs: &[i64],
    show: impl Fn(Task) -> T,
) -> Result<Vec<T>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {TASK} FROM task t WHERE t.seq = ?1"))?;
    let mut tasks = Vec::with_capacity(seqs.len());
    for seq in seqs {
        let mut found = statement.query([seq])?;
        if let Some(row) = found.next()? {
            tasks.push(show(rows::task(row)?.1));
        }
    }
    Ok(tasks)
}

fn counted(db: &Connection, filter: &Filter) -> Result<u64, Error> {
    let mut statement = db.prepare_cached(
        "SELECT coalesce(sum(n), 0) FROM tally
         WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR agent = ?2)",
    )?;
    let values = (filter.status.map(Status::name), filter.agent.as_deref());
    Ok(statement.query_row(values, |row| row.get::<_, i64>(0))? as u64)
}

fn count(db: &Connection, condition: &str, values: &[Value]) -> Result<u64, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT count(*) FROM task t WHERE {condition}"))?;
    let count = statement.query_row(params_from_iter(values), |row| row.get::<_, i64>(0))?;
    Ok(count as u64)
}

/// So many rows are walked in no time.
const NEAR: u64 = 1_000;

/// `task` by any index that serves.
const ANY: &str = "task t";
/// Never by walking a parent's or a batch's whole history.
const LIVE: &str = "task t INDEXED BY task_live";

fn query(
    db: &Connection,
    from: &str,
    condition: &str,
    values: Vec<Value>,
) -> Result<Vec<Task>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {TASK} FROM {from} WHERE {condition}"))?;
    let mut found = statement.query(params_from_iter(values))?;
    let mut tasks = Vec::new();
    while let Some(row) = found.next()? {
        tasks.push(rows::task(row)?.1);
    }
    Ok(tasks)
}
