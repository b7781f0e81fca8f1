//! The rows that a launch and an end write to the database, written without the engine.

use asyncagents::clock::Clock;
use asyncagents::task::view::Brief;
use asyncagents::task::{Budget, Progress, Status, Timestamp};
use asyncagents::wire::TaskView;
use rusqlite::{Connection, params};
use serde_json::json;

const AGENTS: [&str; 4] = ["explore", "general", "librarian", "oracle"];
const RESULT: &str = "The login is handled in src/auth.rs: `login` checks the password and `issue` \
    makes the token. Both are called from src/routes.rs, line 42, and nowhere else. Tests are in \
    tests/auth.rs. I found no other place that reads the table of users.";

/// The pragmas of the store that affect speed.
pub(crate) fn like_the_store(db: &Connection) -> rusqlite::Result<()> {
    db.set_prepared_statement_cache_capacity(64);
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
         PRAGMA cache_size = -2048; PRAGMA journal_size_limit = 16777216;",
    )
}

/// A launch as the daemon would write it, with ids minted in the same way.
pub(crate) struct Launch {
    nonce: String,
    parent: String,
    short_id: String,
    at: i64,
}

impl Launch {
    pub(crate) fn new(clock: &Clock, n: usize, parent: String) -> Launch {
        let at = clock.now().as_millis();
        Launch { nonce: clock.nonce(), parent, short_id: short_id(n), at }
    }

    pub(crate) fn intend(&self, db: &Connection) -> rusqlite::Result<()> {
        let launch = json!({
            "caller": {"session": self.parent, "message": "", "agent": "", "directory": "/",
                "host": "mailbox", "development": false, "lone_batches": false},
            "order": {"description": "say done", "prompt": "say done", "agent": "general",
                "batch": null, "model": null, "budget": {}, "host": null},
            "host": "scripted", "depth": 1, "at": self.at,
        });
        db.prepare_cached("INSERT OR REPLACE INTO intent VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute((&self.nonce, "scripted", &self.parent, self.at, launch.to_string()))?;
        Ok(())
    }

    pub(crate) fn complete(&self, db: &Connection, clock: &Clock) -> rusqlite::Result<()> {
        db.prepare_cached("DELETE FROM intent WHERE nonce = ?1")?.execute([&self.nonce])?;
        let task = Task {
            nonce: &self.nonce,
            short_id: &self.short_id,
            parent: &self.parent,
            parent_host: "mailbox",
            batch: &format!("bat_{}", self.parent),
            agent: "general",
            description: "say done",
            at: self.at,
            ended: None,
        };
        let (seq, _) = task.insert(db, clock)?;
        insert_run(db, clock, seq, "say done", self.at)
    }
}

/// A task whose notice was delivered long ago: its row, its run and its notice. Twenty tasks share
/// a parent, five a batch.
pub(crate) fn ended(db: &Connection, clock: &Clock, n: usize) -> rusqlite::Result<()> {
    let at = clock.now().as_millis() - 86_400_000 + n as i64;
    let (parent, end) = (format!("ses_parent{:016}", n / 20), at + 60_000);
    ended_of(db, clock, n, &parent, (at, end))
}

/// The same for a given parent.
pub(crate) fn ended_of(
    db: &Connection,
    clock: &Clock,
    n: usize,
    parent: &str,
    (at, end): (i64, i64),
) -> rusqlite::Result<()> {
    let (short_id, batch, description) =
        (short_id(n), format!("bat_{:022}", n / 5), description(n));
    let task = Task {
        nonce: &clock.nonce(),
        short_id: &short_id,
        parent,
        parent_host: "scripted",
        batch: &batch,
        agent: AGENTS[n % AGENTS.len()],
        description: &description,
        at,
        ended: Some(end),
    };
    let (seq, id) = task.insert(db, clock)?;
    let prompt = format!("{RESULT} Is that so? Look again, question {n}.");
    insert_run(db, clock, seq, &prompt, at)?;
    let view = task.view(id, prompt, clock);
    db.prepare_cached("INSERT INTO view VALUES (?1, ?2, ?3)")?.execute((
        seq,
        view.to_json(),
        Brief::default().schema(),
    ))?;
    db.prepare_cached(
        "UPDATE run SET sent_at = started_at, ended_at = ?2, ended_as = 'completed', result = ?3
         WHERE task = ?1 AND n = 0",
    )?
    .execute((seq, end, RESULT))?;
    db.prepare_cached(
        "INSERT INTO notice (task, run, nth, parent_host, parent_session, message_id, wake,
           batch_ended, batch_total, created_at, due_at, delivered_at)
         VALUES (?1, 0, 0, 'scripted', ?2, ?3, 1, 5, 5, ?4, ?4, ?4)",
    )?
    .execute((seq, parent, clock.message_id().as_str(), end))?;
    Ok(())
}

struct Task<'a> {
    nonce: &'a str,
    short_id: &'a str,
    parent: &'a str,
    parent_host: &'a str,
    batch: &'a str,
    agent: &'a str,
    description: &'a str,
    at: i64,
    ended: Option<i64>,
}

impl Task<'_> {
    fn insert(&self, db: &Connection, clock: &Clock) -> rusqlite::Result<(i64, String)> {
        let id = clock.session_id().to_string();
        let progress = json!({
            "toolCalls": 0, "toolCallsByName": {}, "lastTools": [], "lastUpdate": clock.now(), "phase": "starting",
        })
        .to_string();
        let (status, slot) = if self.ended.is_some() { ("completed", 0) } else { ("running", 2) };
        let result_run = self.ended.map(|_| 0);
        let mut insert = db.prepare_cached(
            "INSERT INTO task (id, short_id, nonce, parent_session, parent_message, parent_agent,
               parent_host, host, host_instance, directory, description, agent, model, batch,
               is_forked, depth, budget, development, status, started_at, completed_at, run,
               result_run, slot, ticket, progress, tool_calls, revision)
             VALUES (?1, ?2, ?3, ?4, '', '', ?5, 'scripted', 'scripted-0', '/', ?15, ?6, '',
               ?7, 0, 1, '{}', 0, ?8, ?9, ?10, 0, ?11, ?12, ?13, ?14, 0, 0)",
        )?;
        let seq = insert.insert(params![
            id,
            self.short_id,
            self.nonce,
            self.parent,
            self.parent_host,
            self.agent,
            self.batch,
            status,
            self.at,
            self.ended,
            result_run,
            slot,
            clock.tick() as i64,
            progress,
            self.description,
        ])?;
        Ok((seq, id))
    }

    /// The JSON view that the store keeps with an ended task.
    fn view(&self, id: String, prompt: String, clock: &Clock) -> TaskView {
        TaskView {
            session_id: id,
            short_id: self.short_id.to_owned(),
            parent_session_id: self.parent.to_owned(),
            parent_message_id: String::new(),
            parent_agent: String::new(),
            parent_host: self.parent_host.to_owned(),
            host: "scripted".to_owned(),
            host_instance: "scripted-0".to_owned(),
            directory: "/".to_owned(),
            description: self.description.to_owned(),
            prompt,
            agent: self.agent.to_owned(),
            model: None,
            status: Status::Completed,
            started_at: Timestamp::from_millis(self.at),
            completed_at: self.ended.map(Timestamp::from_millis),
            result_retrieved_at: None,
            cleared_at: None,
            result: Some(RESULT.to_owned()),
            result_truncated: false,
            error: None,
            batch_id: self.batch.to_owned(),
            resume_count: 0,
            is_forked: false,
            retry_of: None,
            retried_by: None,
            budget: Budget::default(),
            progress: Progress::new(clock.now()),
        }
    }
}

/// All different; one word occurs in all of them and one in few.
pub(crate) fn description(n: usize) -> String {
    let verb = ["Find", "Explain", "Review", "Fix", "Document"][n % 5];
    let thing = ["login", "parser", "scheduler", "tests", "cache", "queue", "migration"][n % 7];
    let rare = if n % 9_973 == 17 { " (Zebrafish)" } else { "" };
    format!("{verb} the {thing} of module {n}{rare}")
}

fn insert_run(
    db: &Connection,
    clock: &Clock,
    seq: i64,
    prompt: &str,
    at: i64,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO run (task, n, message_id, prompt, came_from, started_at)
         VALUES (?1, 0, ?2, ?3, NULL, ?4)",
    )?
    .execute((seq, clock.message_id().as_str(), prompt, at))?;
    Ok(())
}

/// Unique, and scattered like random ids: a prime times `n`, in base 36.
fn short_id(n: usize) -> String {
    let mut left = (n as u64 + 1) * 2_654_435_761 % 36_u64.pow(6);
    let mut letters = String::with_capacity(6);
    for _ in 0..6 {
        letters.extend(char::from_digit((left % 36) as u32, 36));
        left /= 36;
    }
    letters
}
