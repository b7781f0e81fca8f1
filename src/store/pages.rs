//! Looking things up: one task, the live ones, pages of the history, totals. From indexes and
//! counter rows, so that the size of the history does not matter.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use super::find::Search;
use super::rows::{self, TASK};
use super::state::State;
use super::{Error, Run, Store, search};
use crate::task::launch::Order;
use crate::task::stats::{Counts, Spent};
use crate::task::view::TaskView;
use crate::task::{BatchId, SessionId, Status, Task, TaskId, Timestamp};

/// Which tasks to show. An empty filter shows the whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    pub status: Option<Status>,
    pub agent: Option<String>,
    pub parent: Option<SessionId>,
    pub batch: Option<BatchId>,
    /// Leave out what was cleared from its parent's list.
    pub listed_only: bool,
    /// Part of the description, in capitals or not. An empty text is part of every description.
    pub search: Option<String>,
}

/// By default the newest come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sort {
    pub field: Field,
    pub direction: Direction,
}

/// What tasks can be sorted by; those that are alike in it, by their launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Field {
    /// In the order of their launch.
    #[default]
    StartedAt,
    /// Live tasks come before all ended ones.
    CompletedAt,
    Status,
    Agent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    Ascending,
    #[default]
    Descending,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub tasks: Vec<Task>,
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

    pub fn page(
        &self,
        filter: &Filter,
        sort: Sort,
        limit: u64,
        offset: u64,
    ) -> Result<Page, Error> {
        self.read_at_once(|db| {
            let Selected { seqs, total, .. } = self.select(db, filter, sort, (limit, offset))?;
            let mut tasks = Vec::with_capacity(seqs.len());
            for seq in seqs {
                tasks.extend(by_seq(db, seq)?);
            }
            Ok(Page { tasks, total })
        })
    }

    /// Appends the same page as JSON, with commas between the tasks, and says how many match.
    pub fn list_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: (u64, u64),
        to: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        if let Some(total) = self.recall_json(filter, sort, window, to)? {
            return Ok(total);
        }
        self.read_at_once(|db| {
            let Selected { state, seqs, total } = self.select(db, filter, sort, window)?;
            self.0.views.append(Some(db), state, &seqs, to)?;
            Ok(total)
        })
    }

    /// The same without a look into the file, for a search that is known to the last task.
    fn recall_json(
        &self,
        filter: &Filter,
        sort: Sort,
        window: (u64, u64),
        to: &mut Vec<u8>,
    ) -> Result<Option<u64>, Error> {
        let known = &self.0.known;
        let Some(word) = filter.word().filter(|_| filter.admits_all() && sort.is_by_launch())
        else {
            return Ok(None);
        };
        let word = search::fold(word);
        let Some(moment) = known.recall(self) else { return Ok(None) };
        let Some(search) = Search::begin(None, known, &moment, &word)? else { return Ok(None) };
        let seqs = search.page(None, sort.direction, signed(window))?;
        let Some(seqs) = seqs else { return Ok(None) };
        let listed = self.0.views.append(None, moment.state, &seqs, to)?;
        Ok(listed.map(|()| search.total() as u64))
    }

    pub fn task_json(&self, id: &TaskId) -> Result<Option<Vec<u8>>, Error> {
        self.read_at_once(|db| {
            let mut statement = db.prepare_cached("SELECT seq FROM task WHERE id = ?1")?;
            let seq = statement.query_row([id.as_str()], |row| row.get(0)).optional()?;
            let Some(seq) = seq else { return Ok(None) };
            let mut task = Vec::new();
            self.0.views.append(Some(db), State::read(db)?, &[seq], &mut task)?;
            // What lists show may be cut. In a text the quotes would be escaped.
            let cut = memchr::memmem::find(&task, b",\"resultTruncated\":true").is_some();
            if cut && let Some(whole) = by_seq(db, seq)? {
                task = TaskView::from(&whole).to_json().into_bytes();
            }
            Ok(Some(task))
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

    /// Which tasks are on a page. Has to be the first to read.
    fn select(
        &self,
        db: &Connection,
        filter: &Filter,
        sort: Sort,
        window: (u64, u64),
    ) -> Result<Selected, Error> {
        let window = signed(window);
        if let Some(word) = filter.word() {
            let moment = self.0.known.see(db, self)?;
            let word = search::fold(word);
            let search = Search::begin(Some(db), &self.0.known, &moment, &word)?.expect(IN_FILE);
            let (seqs, total) = found(db, filter, &search, sort, window)?;
            return Ok(Selected { state: moment.state, seqs, total });
        }
        let state = State::read(db)?;
        let (condition, values) = filter.condition();
        let total = match filter.counted() {
            true => counted(db, filter)?,
            false => count(db, &condition, &values)?,
        };
        if filter.admits_all()
            && sort.is_by_launch()
            && let Some(seqs) = without_walking(db, sort.direction, total, window)?
        {
            return Ok(Selected { state, seqs, total });
        }
        Ok(Selected { state, seqs: seqs(db, &condition, values, sort, window)?, total })
    }
}

/// The tasks on a page, in the view of one reader.
struct Selected {
    state: State,
    seqs: Vec<i64>,
    /// How many match, on all pages.
    total: u64,
}

const IN_FILE: &str = "what is not remembered is in the file";

fn signed((limit, offset): (u64, u64)) -> (i64, i64) {
    (i64::try_from(limit).unwrap_or(i64::MAX), i64::try_from(offset).unwrap_or(i64::MAX))
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

impl Filter {
    /// Whether counter rows know the total.
    fn counted(&self) -> bool {
        let Filter { status: _, agent: _, parent, batch, listed_only, search: _ } = self;
        parent.is_none() && batch.is_none() && !listed_only
    }

    /// What is searched for. An empty text is part of every description.
    fn word(&self) -> Option<&str> {
        self.search.as_deref().filter(|word| !word.is_empty())
    }

    /// All but the search aside.
    fn admits_all(&self) -> bool {
        let Filter { status, agent, parent, batch, listed_only, search: _ } = self;
        let all = status.is_none() && agent.is_none() && parent.is_none() && batch.is_none();
        all && !listed_only
    }

    /// As SQL, all but the search.
    fn condition(&self) -> (String, Vec<Value>) {
        let Filter { status, agent, parent, batch, listed_only, search: _ } = self;
        let mut terms = vec!["1"];
        let mut values = Vec::new();
        let mut equal = |term, value: Option<&str>| {
            if let Some(value) = value {
                terms.push(term);
                values.push(Value::from(value.to_owned()));
            }
        };
        equal("t.status = ?", status.map(Status::name));
        equal("t.agent = ?", agent.as_deref());
        equal("t.parent_session = ?", parent.as_ref().map(SessionId::as_str));
        equal("t.batch = ?", batch.as_ref().map(BatchId::as_str));
        if *listed_only {
            terms.push("t.cleared_at IS NULL");
        }
        (terms.join(" AND "), values)
    }
}

impl Sort {
    fn is_by_launch(self) -> bool {
        self.field == Field::StartedAt
    }

    fn sql(self) -> &'static str {
        use Direction::*;
        match (self.field, self.direction) {
            (Field::StartedAt, Ascending) => "t.seq",
            (Field::StartedAt, Descending) => "t.seq DESC",
            (Field::CompletedAt, Ascending) => "t.completed_at, t.seq",
            (Field::CompletedAt, Descending) => "t.completed_at DESC, t.seq DESC",
            (Field::Status, Ascending) => "t.status, t.seq",
            (Field::Status, Descending) => "t.status DESC, t.seq DESC",
            (Field::Agent, Ascending) => "t.agent, t.seq",
            (Field::Agent, Descending) => "t.agent DESC, t.seq DESC",
        }
    }
}

fn seqs(
    db: &Connection,
    condition: &str,
    mut values: Vec<Value>,
    sort: Sort,
    (limit, offset): (i64, i64),
) -> Result<Vec<i64>, Error> {
    let order = sort.sql();
    let mut statement = db.prepare_cached(&format!(
        "SELECT t.seq FROM task t WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
    ))?;
    values.extend([Value::from(limit), Value::from(offset)]);
    let seqs = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    Ok(seqs.collect::<Result<_, _>>()?)
}

/// While no task is missing in between, the place of a task in the history follows from its number.
fn without_walking(
    db: &Connection,
    direction: Direction,
    total: u64,
    (limit, offset): (i64, i64),
) -> Result<Option<Vec<i64>>, Error> {
    let mut ends = db.prepare_cached(
        "SELECT coalesce((SELECT min(seq) FROM task), 1), coalesce((SELECT max(seq) FROM task), 0)",
    )?;
    let (first, last): (i64, i64) = ends.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if last - first + 1 != total as i64 {
        return Ok(None);
    }
    let end = offset.saturating_add(limit).min(total as i64);
    let places = offset.min(end)..end;
    Ok(Some(match direction {
        Direction::Ascending => places.map(|place| first + place).collect(),
        Direction::Descending => places.map(|place| last - place).collect(),
    }))
}

/// The same for a search.
fn found(
    db: &Connection,
    filter: &Filter,
    search: &Search<'_>,
    sort: Sort,
    (limit, offset): (i64, i64),
) -> Result<(Vec<i64>, u64), Error> {
    if filter.admits_all() && sort.is_by_launch() {
        let page = search.page(Some(db), sort.direction, (limit, offset))?;
        return Ok((page.expect(IN_FILE), search.total() as u64));
    }
    let all = search.page(Some(db), Direction::Ascending, (i64::MAX, 0))?;
    let mut matching = all.expect(IN_FILE);
    if !filter.admits_all() {
        let (condition, values) = filter.condition();
        let all = Sort { field: Field::StartedAt, direction: Direction::Ascending };
        let mut admitted = seqs(db, &condition, values, all, (-1, 0))?.into_iter().peekable();
        matching.retain(|seq| {
            while admitted.next_if(|other| other < seq).is_some() {}
            admitted.peek() == Some(seq)
        });
    }
    let total = matching.len() as u64;
    if sort.is_by_launch() {
        if sort.direction == Direction::Descending {
            matching.reverse();
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let page = matching.into_iter().skip(from).take(limit as usize);
        return Ok((page.collect(), total));
    }
    let among = serde_json::to_string(&matching).expect("numbers are JSON");
    let condition = "t.seq IN (SELECT value FROM json_each(?))";
    Ok((seqs(db, condition, vec![among.into()], sort, (limit, offset))?, total))
}

pub(super) fn by_seq(db: &Connection, seq: i64) -> Result<Option<Task>, Error> {
    let mut statement =
        db.prepare_cached(&format!("SELECT {TASK} FROM task t WHERE t.seq = ?1"))?;
    let task = statement.query_row([seq], |row| Ok(rows::task(row))).optional()?;
    Ok(task.transpose()?.map(|(_, task)| task))
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
