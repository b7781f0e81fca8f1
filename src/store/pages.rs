//! Looking things up: one task, the live ones, pages of the history, totals. From indexes and
//! counter rows, so that the size of the history does not matter; only a search goes through all of it.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::filter::{Direction, Filter, Sort, Window};
use super::rows::{self, TASK};
use super::{Error, Run, Store, search};
use crate::task::launch::Order;
use crate::task::stats::{Counts, Spent};
use crate::task::view::{SCHEMA, TaskView};
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
            let (seqs, total) = select(db, filter, sort, window)?;
            Ok(Page { tasks: tasks(db, &seqs, &show)?, total })
        })
    }

    /// The same page as JSON, with commas between the tasks, and how many match. That of ended tasks is
    /// copied from where it was stored with their end: to build a page from rows takes several times
    /// as long as to send it.
    pub fn page_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
    ) -> Result<(Vec<u8>, u64), Error> {
        self.read_at_once(|db| {
            let (seqs, total) = select(db, filter, sort, window)?;
            Ok((json(db, &seqs)?, total))
        })
    }

    /// The same, if it takes microseconds: totals that are kept by triggers, and no long walk.
    pub fn page_json_at_once(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
    ) -> Result<Option<(Vec<u8>, u64)>, Error> {
        if filter.text().is_some() || !filter.counted() {
            return Ok(None);
        }
        self.read_at_once(|db| {
            let selected = match window.limit.saturating_add(window.offset) <= NEAR {
                true => Some(select(db, filter, sort, window)?),
                false if filter.admits_all() && sort.is_by_launch() => {
                    let total = counted(db, filter)?;
                    let seqs = by_number(db, sort.direction, total, window)?;
                    seqs.map(|seqs| (seqs, total))
                }
                false => None,
            };
            let Some((seqs, total)) = selected else { return Ok(None) };
            Ok(Some((json(db, &seqs)?, total)))
        })
    }

    /// Queued or active, of this parent; of all parents when there is none. Oldest first.
    pub fn live(&self, parent: Option<&SessionId>) -> Result<Vec<Task>, Error> {
        self.read(|db| match parent {
            Some(parent) => query(
                db,
                LIVE,
                "t.slot IN (1, 2) AND t.slot > 0 AND t.parent_session = ? ORDER BY t.seq",
                vec![parent.as_str().to_owned().into()],
            ),
            None => query(db, LIVE, "t.slot > 0 ORDER BY t.seq", Vec::new()),
        })
    }

    /// A parent's live tasks whose end nobody waits for with a `Task`.
    pub fn live_in_background(&self, parent: &SessionId) -> Result<Vec<Task>, Error> {
        self.read(|db| {
            let condition = "t.slot IN (1, 2) AND t.slot > 0 AND t.parent_session = ?
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
    pub fn spent_below(&self, session: &SessionId) -> Result<Spent, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached(
                "WITH RECURSIVE below (id, progress) AS (
                   SELECT id, progress FROM task WHERE parent_session = ?1
                   UNION SELECT t.id, t.progress FROM task t JOIN below ON t.parent_session = below.id)
                 SELECT coalesce(sum(progress ->> 'tokens'), 0), coalesce(sum(progress ->> 'cost'), 0.0)
                 FROM below",
            )?;
            Ok(statement.query_row([session.as_str()], |row| {
                Ok(Spent { tokens: row.get::<_, i64>(0)? as u64, cost: row.get(1)? })
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

/// The tasks on a page, and how many match on all pages.
/// The tasks as JSON, with commas in between.
fn json(db: &Connection, seqs: &[i64]) -> Result<Vec<u8>, Error> {
    let mut stored = db.prepare_cached("SELECT json FROM view WHERE task = ?1 AND schema = ?2")?;
    let mut page = Vec::with_capacity(seqs.len() * 2_048);
    for seq in seqs {
        if !page.is_empty() {
            page.push(b',');
        }
        let mut found = stored.query((seq, SCHEMA))?;
        match found.next()? {
            Some(row) => page.extend_from_slice(row.get_ref(0)?.as_bytes().unwrap_or(b"{}")),
            None => {
                let built = tasks(db, &[*seq], |task| TaskView::brief(&task).to_json())?;
                page.extend(built.into_iter().flat_map(String::into_bytes));
            }
        }
    }
    Ok(page)
}

fn select(
    db: &Connection,
    filter: &Filter,
    sort: Sort,
    window: Window,
) -> Result<(Vec<i64>, u64), Error> {
    if let Some(text) = filter.text() {
        return find(db, filter, text, sort, window);
    }
    let (condition, mut values) = filter.condition();
    let total = match filter.counted() {
        true => counted(db, filter)?,
        false => count(db, &condition, &values)?,
    };
    if filter.admits_all()
        && sort.is_by_launch()
        && let Some(seqs) = by_number(db, sort.direction, total, window)?
    {
        return Ok((seqs, total));
    }
    let mut statement = db.prepare_cached(&format!(
        "SELECT t.seq FROM task t WHERE {condition} ORDER BY {} LIMIT ? OFFSET ?",
        sort.sql()
    ))?;
    let (limit, offset) = window.signed();
    values.extend([Value::from(limit), Value::from(offset)]);
    let seqs = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    Ok((seqs.collect::<Result<_, _>>()?, total))
}

/// `OFFSET` walks over all rows that it skips. While no number is missing, the place of a task in the
/// history follows from its number. `None` when some are, because a task in between was pruned.
fn by_number(
    db: &Connection,
    direction: Direction,
    total: u64,
    window: Window,
) -> Result<Option<Vec<i64>>, Error> {
    let mut ends = db.prepare_cached(
        "SELECT coalesce((SELECT min(seq) FROM task), 1), coalesce((SELECT max(seq) FROM task), 0)",
    )?;
    let (first, last): (i64, i64) = ends.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if last - first + 1 != total as i64 {
        return Ok(None);
    }
    let (limit, offset) = window.signed();
    let end = offset.saturating_add(limit).min(total as i64);
    let places = offset.min(end)..end;
    Ok(Some(match direction {
        Direction::Ascending => places.map(|place| first + place).collect(),
        Direction::Descending => places.map(|place| last - place).collect(),
    }))
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

/// `task` by any index that serves.
/// So many rows are walked in no time.
const NEAR: u64 = 1_000;

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
