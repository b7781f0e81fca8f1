//! The outbox of notifications for people (N5): of ends and of permission requests, one row per channel. A
//! row is inserted in the transaction of what it is about and deleted once it was delivered: at least once,
//! with an id that stays the same. Which channels there are is said by the daemon when it starts; without
//! any, nothing is written.

use super::sql::{self, Connection, Row};
use super::subjects::Alerts;
use super::writer::PendingEvents;
use super::{Error, PendingWrite};
use crate::task::alert::{Alert, AlertKind, Channel};
use crate::task::{Task, Timestamp};

/// A notification that is to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedAlert {
    pub seq: i64,
    pub channel: Channel,
    /// The receiver's idempotency key.
    pub id: String,
    /// JSON, as it is sent.
    pub body: String,
    pub attempts: u32,
    pub created_at: Timestamp,
}

/// Batch size: how many are read at a time.
const MOST_DUE: usize = 64;

/// How many one channel is owed at most, whatever happens while its receiver is away.
const MOST_OWED: i64 = 10_000;

impl Alerts<'_> {
    /// From here on these channels are owed what happens. What is left of others is dropped: it would never be sent.
    pub fn set_channels(&self, channels: Vec<Channel>) -> PendingWrite<()> {
        *self.store.0.channels.lock() = channels.clone();
        self.store.write_deferrable(move |db, _| {
            let names: Vec<&str> = channels.iter().map(|channel| channel.name()).collect();
            let names = serde_json::to_string(&names).unwrap_or_default();
            db.execute(
                "DELETE FROM alert WHERE channel NOT IN (SELECT value FROM json_each(?1))",
                [names],
            )?;
            Ok(())
        })
    }

    /// Those of a channel that may be tried now, oldest first.
    pub fn due(&self, channel: Channel, now: Timestamp) -> Result<Vec<OwedAlert>, Error> {
        self.store.read(|db| {
            let due = format!(
                "SELECT seq, id, body, attempts, created_at FROM alert
                 WHERE channel = ?1 AND due_at <= ?2 ORDER BY seq LIMIT {MOST_DUE}"
            );
            Ok(db.query_all(&due, (channel.name(), now.as_millis()), |row| owed(row, channel))?)
        })
    }

    /// When the next one may be tried, if there is one.
    pub fn next_due(&self, channel: Channel) -> Result<Option<Timestamp>, Error> {
        self.store.read(|db| {
            let next = "SELECT min(due_at) FROM alert WHERE channel = ?1";
            let next: Option<i64> = db.query_one(next, [channel.name()], |row| row.get(0))?;
            Ok(next.map(Timestamp::from_millis))
        })
    }

    /// It was delivered, or is given up.
    pub fn remove(&self, seq: i64) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            db.execute("DELETE FROM alert WHERE seq = ?1", [seq])?;
            Ok(())
        })
    }

    /// An attempt failed; the next one of this notification is due then.
    pub fn postpone(&self, seq: i64, until: Timestamp) -> PendingWrite<()> {
        self.store.write(move |db, _| {
            let postpone = "UPDATE alert SET attempts = attempts + 1, due_at = ?2 WHERE seq = ?1";
            db.execute(postpone, (seq, until.as_millis()))?;
            Ok(())
        })
    }
}

/// Inserts a row for each channel, in the transaction of what it is about.
pub(super) fn owe(
    db: &Connection,
    events: &PendingEvents,
    id: &str,
    kind: AlertKind<'_>,
    task: &Task,
    at: Timestamp,
) -> Result<(), Error> {
    let channels = events.channels.lock().clone();
    if channels.is_empty() {
        return Ok(());
    }
    let body = Alert::new(id, kind, events.brief.view(task), at).to_json();
    let mut insert = db.prepare(
        "INSERT OR IGNORE INTO alert (channel, id, body, created_at, due_at)
         VALUES (?1, ?2, ?3, ?4, ?4)",
    )?;
    for channel in channels {
        insert.execute((channel.name(), id, &body, at.as_millis()))?;
        drop_oldest(db, channel)?;
    }
    Ok(())
}

/// Keeps a channel within [`MOST_OWED`]: the newest say most about how things are now. Counted first, which the index
/// does in a tenth of the time that it takes to sort for the oldest.
fn drop_oldest(db: &Connection, channel: Channel) -> Result<(), Error> {
    let channel = channel.name();
    let owed = "SELECT count(*) FROM alert WHERE channel = ?1";
    let owed: i64 = db.query_one(owed, [channel], |row| row.get(0))?;
    if owed > MOST_OWED {
        let oldest = "DELETE FROM alert WHERE seq IN
                      (SELECT seq FROM alert WHERE channel = ?1 ORDER BY seq LIMIT ?2)";
        let dropped = db.execute(oldest, (channel, owed - MOST_OWED))?;
        tracing::warn!(
            channel,
            dropped,
            most = MOST_OWED,
            "too many notifications owed; oldest dropped"
        );
    }
    Ok(())
}

fn owed(row: Row<'_>, channel: Channel) -> Result<OwedAlert, sql::Error> {
    Ok(OwedAlert {
        seq: row.get(0)?,
        channel,
        id: row.get(1)?,
        body: row.get(2)?,
        attempts: row.get(3)?,
        created_at: row.get(4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::prune::tests::History;
    use crate::task::MAILBOX;

    #[tokio::test]
    async fn while_a_receiver_is_away_its_channel_is_owed_a_bounded_number_and_the_oldest_give_way()
    {
        let history = History::new();
        let alerts = history.store.alerts();
        alerts.set_channels(vec![Channel::Webhook, Channel::Command]).await.unwrap();
        let db = rusqlite::Connection::open(history.file()).unwrap();
        let fill = "INSERT INTO alert (seq, channel, id, body, created_at, due_at)
                    WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?1)
                    SELECT x, 'webhook', 'old-' || x, '{}', 0, 0 FROM n";
        db.execute(fill, [MOST_OWED]).unwrap();
        let task = history.launch("ended", "general", "batch", MAILBOX).await;
        history.finish(&task, 1).await;
        let owed = |channel: Channel| -> i64 {
            let owed = "SELECT count(*) FROM alert WHERE channel = ?1";
            db.query_row(owed, [channel.name()], |row| row.get(0)).unwrap()
        };
        assert_eq!([Channel::Webhook, Channel::Command].map(owed), [MOST_OWED, 1]);
        let first = alerts.due(Channel::Webhook, Timestamp::from_millis(0)).unwrap().remove(0);
        assert_eq!(first.id, "old-2");
    }
}
