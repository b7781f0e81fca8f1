//! Trends of the recent history, for the dashboard. Unlike totals they are read from the tasks themselves, by two
//! index ranges, so they are bounded: of a longer span the newest tasks count, and the answer says so.

use super::Error;
use super::rows;
use super::sql::Connection;
use super::subjects::Overview;
use crate::task::Timestamp;
use crate::task::trends::{EndedTask, Span, Trends};

/// How many launches and how many ends are read; this many take a fraction of a second.
const MOST: i64 = 50_000;

/// Tasks that hold a slot, and those that wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLength {
    pub active: u64,
    pub queued: u64,
}

impl Overview<'_> {
    pub fn trends(&self, span: Span) -> Result<Trends, Error> {
        self.store.read_at_once(|db| {
            let mut trends = Trends::new(span);
            let launches = launches(db, span, &mut trends)?;
            let ends = ends(db, span, &mut trends)?;
            trends.is_partial = launches.max(ends) >= MOST;
            Ok(trends)
        })
    }

    pub fn queue_length(&self) -> Result<QueueLength, Error> {
        self.store.read_at_once(|db| {
            // From the partial index `task_live`, which holds live tasks and nothing else.
            let count = |slot: i64| -> Result<u64, Error> {
                let sql = "SELECT count(*) FROM task WHERE slot = ?1 AND slot > 0";
                Ok(db.query_one(sql, [slot], |row| row.get::<i64>(0))? as u64)
            };
            Ok(QueueLength { queued: count(1)?, active: count(2)? })
        })
    }
}

/// From the newest task backwards: tasks are numbered in the order of their launch, so that the first one that is
/// too old is the end, and no index on the time of launch is needed.
fn launches(db: &Connection, span: Span, trends: &mut Trends) -> Result<i64, Error> {
    let mut statement = db.prepare("SELECT started_at FROM task ORDER BY seq DESC LIMIT ?1")?;
    let mut found = statement.query([MOST])?;
    let mut read = 0;
    while let Some(row) = found.next()? {
        let at: Timestamp = row.get(0)?;
        if at < span.from {
            break;
        }
        trends.launched(at);
        read += 1;
    }
    Ok(read)
}

fn ends(db: &Connection, span: Span, trends: &mut Trends) -> Result<i64, Error> {
    // `json_valid`: one damaged row would otherwise fail the statement for all of them.
    let mut statement = db.prepare(
        "SELECT status, agent, model, started_at, completed_at,
           iif(json_valid(progress), coalesce(progress ->> '$.tokens', 0), 0),
           iif(json_valid(progress), coalesce(progress ->> '$.cost', 0.0), 0.0)
         FROM task INDEXED BY task_by_end
         WHERE completed_at >= ?1 AND completed_at < ?2 ORDER BY completed_at DESC LIMIT ?3",
    )?;
    let bounds = [span.from.as_millis(), span.until().as_millis(), MOST];
    let mut found = statement.query(bounds)?;
    let mut read = 0;
    while let Some(row) = found.next()? {
        trends.ended(EndedTask {
            status: rows::parse_status(row.get::<&str>(0).unwrap_or_default())?,
            agent: row.get(1)?,
            model: row.get(2)?,
            started_at: row.get(3)?,
            completed_at: row.get(4)?,
            tokens: row.get::<i64>(5).unwrap_or_default().unsigned_abs(),
            cost: row.get(6).unwrap_or_default(),
        });
        read += 1;
    }
    Ok(read)
}
