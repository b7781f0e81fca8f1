//! Pagination of the history, with exact totals.
//!
//! Totals come from counter rows that triggers keep, rows from indexes, so that the size of the history does not
//! matter; only a search goes through all of it (`search`). Two things make a page cheap. `OFFSET` is avoided where
//! a task's place follows from its number. And ended tasks are copied as the JSON that was stored with their end
//! (the table `view`) instead of being decoded and serialised again; a row of an older `schema` is rebuilt.
//!
//! Rows and total are read in one read transaction: a task that ends in between would be counted and not shown.

use super::filter::{Direction, Filter, Sort, Window};
use super::rows::{self, TASK};
use super::sql::{Connection, Value};
use super::subjects::Pages;
use super::{Error, search};
use crate::task::view::Brief;
use crate::task::{Status, Task};

/// One page of the tasks that match a filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub tasks: Vec<T>,
    /// How many match, on all pages.
    pub total: u64,
}

impl Pages<'_> {
    /// `show` is called row by row: what it cuts off a long result is never held for a whole page.
    pub fn get<T>(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        show: impl Fn(Task) -> T,
    ) -> Result<Page<T>, Error> {
        self.store.read_at_once(|db| {
            let (selected, total) = select(db, filter, sort, window)?;
            Ok(Page { tasks: tasks(db, &selected.seqs(db)?, &show)?, total })
        })
    }

    /// Appends the same page to `answer` as JSON, with commas between the tasks, and returns how many match. The
    /// JSON of ended tasks is copied from where it was stored with their end: to build a page from rows takes
    /// several times as long as to send it.
    pub fn json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: Window,
        answer: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        let start = answer.len();
        self.store.read_at_once(|db| {
            // A read that met a poison row is retried: drop what the first attempt wrote.
            answer.truncate(start);
            let (selected, total) = select(db, filter, sort, window)?;
            selected.json(db, self.store.0.brief, answer)?;
            Ok(total)
        })
    }

    /// The same, if it takes microseconds and can be done on a thread of the runtime: the total is a counter row,
    /// and no long range is walked. `None`: use `json` on a thread that may block.
    pub fn json_at_once(
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
        self.store.read_at_once(|db| {
            answer.truncate(start);
            let (selected, total) = select(db, filter, sort, window)?;
            let is_near = window.limit.saturating_add(window.offset) <= NEAR;
            if !is_near && !matches!(selected, PageSelection::Numbers { .. }) {
                return Ok(None);
            }
            selected.json(db, self.store.0.brief, answer)?;
            Ok(Some(total))
        })
    }
}

/// Which tasks are on a page.
enum PageSelection<'a> {
    /// The numbers from the first to the last, both included; the last one first when descending.
    Numbers {
        first: i64,
        last: i64,
        direction: Direction,
    },
    /// A query for their numbers.
    Query {
        sql: String,
        values: Vec<Value<'a>>,
    },
    Found(Vec<i64>),
}

impl PageSelection<'_> {
    /// In their order.
    fn seqs(self, db: &Connection) -> Result<Vec<i64>, Error> {
        Ok(match self {
            PageSelection::Numbers { first, last, direction } => numbers(first, last, direction),
            PageSelection::Query { sql, values } => {
                db.query_all(&sql, values.as_slice(), |row| row.get(0))?
            }
            PageSelection::Found(seqs) => seqs,
        })
    }

    /// Appends them as JSON. In one query where that is possible, because to begin one takes longer than to copy
    /// a task.
    fn json(self, db: &Connection, brief: Brief, answer: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            PageSelection::Numbers { first, last, direction } => {
                let mut stored = db.prepare(match direction {
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
                // A merge join by hand of all numbers of the page with those that have stored JSON: the gaps
                // are live tasks and rows of an older schema, which are built.
                let mut seqs = numbers(first, last, direction).into_iter();
                while let Some(row) = rows.next()? {
                    let stored = row.get(0)?;
                    for seq in seqs.by_ref().take_while(|seq| *seq != stored) {
                        add(db, brief, seq, None, answer)?;
                    }
                    add(db, brief, stored, row.get(1).ok(), answer)?;
                }
                seqs.try_for_each(|seq| add(db, brief, seq, None, answer))
            }
            PageSelection::Query { sql, values } => {
                // A subquery with the limit inside: `view` is joined to the rows on the page, and not to all
                // that are sorted or skipped for it.
                let mut stored = db.prepare(&format!(
                    "SELECT t.seq, v.json FROM ({sql}) t
                     LEFT JOIN view v ON v.task = t.seq AND v.schema = {}",
                    brief.schema()
                ))?;
                let mut rows = stored.query(values.as_slice())?;
                while let Some(row) = rows.next()? {
                    add(db, brief, row.get(0)?, row.get(1).ok(), answer)?;
                }
                Ok(())
            }
            PageSelection::Found(seqs) => {
                let mut stored =
                    db.prepare("SELECT json FROM view WHERE task = ?1 AND schema = ?2")?;
                for seq in seqs {
                    let mut found = stored.query((seq, brief.schema()))?;
                    let stored = found.next()?.and_then(|row| row.get(0).ok());
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
    stored: Option<&[u8]>,
    answer: &mut Vec<u8>,
) -> Result<(), Error> {
    if answer.last() == Some(&b'}') {
        answer.push(b',');
    }
    // What is obviously no object was damaged, and would spoil the page. `doctor` finds the rest.
    let is_object = |json: &&[u8]| json.starts_with(b"{") && json.ends_with(b"}");
    match stored.filter(is_object) {
        Some(json) => answer.extend_from_slice(json),
        None => {
            let built = tasks(db, &[seq], |task| brief.view(&task).to_json())?;
            answer.extend(built.into_iter().flat_map(String::into_bytes));
        }
    }
    Ok(())
}

/// The query plan: which tasks are on a page, and how many match on all pages. In this order: a scan when there is
/// a text to search for, plain numbers when every task matches, otherwise a query with `OFFSET`.
fn select<'a>(
    db: &Connection,
    filter: &'a Filter,
    sort: Sort,
    window: Window,
) -> Result<(PageSelection<'a>, u64), Error> {
    if let Some(text) = filter.text() {
        let (seqs, total) = find(db, filter, text, sort, window)?;
        return Ok((PageSelection::Found(seqs), total));
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
    values.extend([limit, offset].map(Value::Integer));
    Ok((PageSelection::Query { sql, values }, total))
}

/// Random access to a page: `OFFSET` walks over all rows that it skips, but while the numbers of the tasks have no
/// gap, the place of a task in the history follows from its number. `None` when there are gaps, because a task in
/// between was pruned (pruning from the old end leaves none).
fn by_number(
    db: &Connection,
    direction: Direction,
    total: u64,
    window: Window,
) -> Result<Option<PageSelection<'static>>, Error> {
    let (first, last): (i64, i64) = db.query_one(
        "SELECT coalesce((SELECT min(seq) FROM task), 1), coalesce((SELECT max(seq) FROM task), 0)",
        (),
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if last - first + 1 != total as i64 {
        return Ok(None);
    }
    let (limit, offset) = window.signed();
    let end = offset.saturating_add(limit).min(total as i64);
    let (first, last) = match direction {
        Direction::Ascending => (first + offset.min(end), first + end - 1),
        Direction::Descending => (last - end + 1, last - offset.min(end)),
    };
    Ok(Some(PageSelection::Numbers { first, last, direction }))
}

/// The same for tasks with `text` in their description. All matches are visited, for the exact total; only those on
/// the page are kept.
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
        // The scan is in launch order, so its matches are sorted by number: the tasks are read in the wanted
        // order, and each is looked up among the matches by binary search.
        let mut matching = Vec::new();
        search::scan(db, text, Direction::Ascending, |block| {
            matching.extend(block.tasks());
            Ok(())
        })?;
        let sorted = format!("SELECT t.seq FROM task t WHERE {condition} ORDER BY {}", sort.sql());
        let mut sorted = db.prepare(&sorted)?;
        let mut rows = sorted.query(values.as_slice())?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            if matching.binary_search(&seq).is_ok() {
                take(seq);
            }
        }
    } else if filter.admits_all() {
        search::scan(db, text, sort.direction, |block| {
            // Before and behind the page it is enough to count: to find out the numbers takes a second pass.
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
        // Few match as a rule, so each is checked against the filter by its primary key.
        let mut admits =
            db.prepare(&format!("SELECT 1 FROM task t WHERE {condition} AND t.seq = ?"))?;
        let mut values = values;
        values.push(Value::Null);
        search::scan(db, text, sort.direction, |block| {
            for seq in block.tasks() {
                if let Some(last) = values.last_mut() {
                    *last = Value::Integer(seq);
                }
                if admits.query_opt(values.as_slice(), |_| Ok(()))?.is_some() {
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
    let mut statement = db.prepare(&format!("SELECT {TASK} FROM task t WHERE t.seq = ?1"))?;
    let mut tasks = Vec::with_capacity(seqs.len());
    for seq in seqs {
        let mut found = statement.query([seq])?;
        if let Some(row) = found.next()? {
            tasks.push(show(rows::task(row)?.1));
        }
    }
    Ok(tasks)
}

/// The total from counter rows: one per status and agent, however long the history.
fn counted(db: &Connection, filter: &Filter) -> Result<u64, Error> {
    let values = (filter.status.map(Status::name), filter.agent.as_deref());
    Ok(db.query_one(
        "SELECT coalesce(sum(n), 0) FROM tally
         WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR agent = ?2)",
        values,
        |row| row.get::<i64>(0),
    )? as u64)
}

/// The total by counting, for filters that no counter row knows: by parent, batch or host, each with an index.
fn count(db: &Connection, condition: &str, values: &[Value<'_>]) -> Result<u64, Error> {
    let count =
        db.query_one(&format!("SELECT count(*) FROM task t WHERE {condition}"), values, |row| {
            row.get::<i64>(0)
        })?;
    Ok(count as u64)
}

/// `OFFSET` and `LIMIT` up to here walk so few rows that it takes microseconds.
const NEAR: u64 = 1_000;
