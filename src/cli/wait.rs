//! `asyncagents wait`: sleeps until tasks have ended; its exit code says how. The exit codes are an interface for
//! scripts: 0, 1 and 130 for tasks, 124 for a timeout, 2 when the outcome is not known.
//!
//! It waits in slices, so that no call outlasts the timeouts of the connection, and goes on when the daemon dies or
//! is restarted under it. It ends when only a person could end the wait.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::connection::{Connection, within};
use super::show::{self, Column, Line, LiveFrame, Table};
use super::{caller, connect, seconds, tasks};
use crate::client::Client;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::quote;
use crate::task::{Status, Timestamp};
use crate::wire::{CallerView, PermissionView, TaskView, WaitRequest, WaitView};

/// How long one call waits; the next one goes on.
const SLICE: Duration = Duration::from_secs(300);

/// All tasks that are left wait for a person, so the outcome cannot be known now.
pub(super) const BLOCKED: u8 = 2;
const TIMED_OUT: u8 = 124;
const FAILED: u8 = 1;
const CANCELLED: u8 = 130;

/// Between two updates of what is shown on a terminal while it waits.
const FRAME: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "\
Without ids it waits for all tasks of this shell that are at work. On a terminal it shows what they
are doing, and says so at once when one of them needs an answer.

Exits 0 if all that were waited for completed, 1 if any failed, 130 if none failed and any was
cancelled, 124 on timeout, and 2 when the outcome is not known (no daemon, unknown id). It goes on
when the daemon crashes or is restarted; when somebody stops the daemon, it says so and exits 2.
When all tasks that are left wait for a permission, it shows the requests and how to answer, and
exits 2, too.

Example:
  asyncagents wait --any ab12c3 x9k2m4 && echo one of them is done")]
pub(super) struct Wait {
    /// The tasks: ids, short ids, or beginnings of ids [default: all of this shell]
    ids: Vec<String>,
    /// Wait until one of them has ended
    #[arg(long, conflicts_with_all = ["all", "n"])]
    any: bool,
    /// Wait until all of them have ended (the default)
    #[arg(long, conflicts_with = "n")]
    all: bool,
    /// Wait until this many of them have ended
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Do not print tasks as they finish
    #[arg(long, short)]
    quiet: bool,
    /// Print the tasks as a JSON array in the end
    #[arg(long)]
    json: bool,
}

impl Wait {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let started = Instant::now();
        let timeout = self.timeout.map(|timeout| seconds("--timeout", timeout)).transpose()?;
        let json = self.json;
        let Some(waited) = within(timeout, self.wait(settings, started, timeout)).await? else {
            return Ok(ExitCode::from(TIMED_OUT));
        };
        if json {
            show::json(&waited.tasks)?;
        }
        Ok(ExitCode::from(waited.code))
    }

    async fn wait(
        self,
        settings: &Settings,
        started: Instant,
        timeout: Option<Duration>,
    ) -> anyhow::Result<WaitReport> {
        let connection = connect(settings).await?;
        let mut ids = match self.ids.is_empty() {
            true => at_work(&connection, settings).await?,
            false => connection.resolve(&self.ids).await?,
        };
        // Duplicates are dropped: `wait -n 2 a a` would count one end twice.
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        let need = match (self.any, self.n) {
            (true, _) => 1,
            (false, Some(n)) => (n as usize).min(ids.len()),
            (false, None) => ids.len(),
        };
        let live = if self.quiet { None } else { LiveFrame::on_stderr() };
        let waiting = WaitState { need, started, timeout, live, ..WaitState::for_all(ids) };
        WaitState { is_quiet: self.quiet, ..waiting }.watch(&connection, settings).await
    }
}

/// The tasks of this shell that have not ended.
async fn at_work(connection: &Connection<'_>, settings: &Settings) -> anyhow::Result<Vec<String>> {
    let parent = caller(settings).session_id;
    let mut ids = Vec::new();
    for status in [Status::Running, Status::Resumed] {
        // The offset is into the tasks of this status alone.
        let mut offset = 0;
        loop {
            let query = [
                ("parent", parent.clone()),
                ("status", status.name().to_owned()),
                ("limit", "200".to_owned()),
                ("offset", offset.to_string()),
            ];
            let page = connection.call(async |client| client.tasks(&query).await).await?;
            let is_last = page.tasks.len() < 200;
            offset += page.tasks.len();
            ids.extend(page.tasks.into_iter().map(|task| task.session_id));
            if is_last {
                break;
            }
        }
    }
    anyhow::ensure!(
        !ids.is_empty(),
        "no task of this shell is at work; `asyncagents list` shows those that have ended, and those of \
         others"
    );
    Ok(ids)
}

/// A wait under way.
pub(super) struct WaitState {
    ids: Vec<String>,
    /// How many must have ended.
    need: usize,
    started: Instant,
    timeout: Option<Duration>,
    live: Option<LiveFrame>,
    is_quiet: bool,
    /// The tasks whose end was printed, and the permission requests that were.
    printed: HashSet<String>,
}

/// The end of a wait.
pub(super) struct WaitReport {
    pub(super) code: u8,
    tasks: Vec<TaskView>,
}

impl WaitState {
    /// For all of these tasks, for as long as it takes; drawn on a terminal.
    pub(super) fn for_all(ids: Vec<String>) -> WaitState {
        WaitState {
            need: ids.len(),
            ids,
            started: Instant::now(),
            timeout: None,
            live: LiveFrame::on_stderr(),
            is_quiet: false,
            printed: HashSet::new(),
        }
    }

    pub(super) async fn watch(
        mut self,
        connection: &Connection<'_>,
        settings: &Settings,
    ) -> anyhow::Result<WaitReport> {
        // With credentials, although a wait launches nothing: if the daemon is restarted meanwhile, the tasks
        // have lost theirs and could not go on.
        let caller = CallerView { hand_over: hand_over(settings), ..caller(settings) };
        let longest = if self.live.is_some() { FRAME } else { SLICE };
        let mut ended = 0;
        let mut is_first = true;
        loop {
            // One more than have ended, so that each task is printed when it finishes.
            let next = (ended + 1).min(self.need);
            let (started, timeout) = (self.started, self.timeout);
            let left = || timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            // Drawn before the first wait, so that something is there at once.
            let slice_of = if is_first && self.live.is_some() { Duration::ZERO } else { longest };
            is_first = false;
            let span = || left().map_or(slice_of, |left| left.min(slice_of));
            let waited = slice(connection, &caller, &self.ids, next, span).await?;
            ended = waited.tasks.iter().filter(|task| tasks::is_over(task)).count();
            self.show(connection, &waited).await?;
            let code = if ended >= self.need {
                let over: Vec<&TaskView> =
                    waited.tasks.iter().filter(|task| tasks::is_over(task)).collect();
                verdict(&over)
            } else if waited.blocked {
                BLOCKED
            } else if waited.timed_out && left().is_some_and(|left| left.is_zero()) {
                TIMED_OUT
            } else {
                continue;
            };
            return Ok(WaitReport { code, tasks: waited.tasks });
        }
    }

    /// Prints what is new, and draws the tasks that are left.
    async fn show(&mut self, connection: &Connection<'_>, waited: &WaitView) -> anyhow::Result<()> {
        let mut asks = waited.asks.clone();
        let is_blocked = waited.tasks.iter().any(tasks::is_blocked);
        // The answer has requests only when nothing is left to wait for; a person wants to know before that.
        if self.live.is_some() && is_blocked && !waited.blocked {
            asks = connection.wait(Client::permissions).await?.permissions;
            asks.retain(|ask| self.ids.contains(&ask.session_id));
        }
        asks.retain(|ask| self.printed.insert(ask.id.clone()));
        let mut over: Vec<&TaskView> =
            waited.tasks.iter().filter(|task| tasks::is_over(task)).collect();
        over.retain(|task| self.printed.insert(task.session_id.clone()));
        if let Some(live) = &mut self.live
            && (waited.blocked || !asks.is_empty() || !over.is_empty())
        {
            live.clear();
        }
        say_what_is_asked(&asks);
        if !self.is_quiet {
            over.into_iter().for_each(tell);
        }
        if let Some(live) = &mut self.live
            && !waited.blocked
        {
            let now = tasks::now();
            let left = waited.tasks.iter().filter(|task| !tasks::is_over(task));
            live.draw(&progress(left, now));
        }
        Ok(())
    }
}

/// The lines of tasks that are watched, in columns. Names are cut so that the figures have room.
pub(super) fn progress<'a>(
    watched: impl IntoIterator<Item = &'a TaskView>,
    now: Timestamp,
) -> Vec<Line> {
    const LONGEST_NAME: usize = 36;
    let mut table = Table::new(["ID", "TASK", "STATUS", "PROGRESS"].map(Column::new));
    for task in watched {
        table.row(vec![
            Line::new(show::BOLD, &task.short_id),
            Line::plain(&task.description).cut(LONGEST_NAME),
            tasks::status(task),
            tasks::figures(task, now),
        ]);
    }
    // Without the header: the words speak for themselves.
    table.lines(None).split_off(1)
}

/// Waits for the next end, for as long as one call may take.
async fn slice(
    connection: &Connection<'_>,
    caller: &CallerView,
    ids: &[String],
    need: usize,
    span: impl Fn() -> Duration,
) -> anyhow::Result<WaitView> {
    let call = async |client: &Client| {
        let timeout = span().as_secs_f64();
        let ids = ids.to_vec();
        let request = WaitRequest {
            ids,
            need: Some(need),
            timeout,
            until_blocked: true,
            caller: Some(caller.clone()),
        };
        client.wait(&request).await
    };
    connection.wait(call).await
}

/// Prints how a task has ended.
pub(super) fn tell(task: &TaskView) {
    let ended = tasks::named(task)
        .with(show::PLAIN, " ")
        .with(show::status_style(task.status), task.status.name());
    match &task.error {
        Some(error) => show::note_quoted(&ended.with(show::PLAIN, ":"), error),
        None => show::note_line(&ended),
    }
}

/// Prints the permission requests that block tasks, and the commands that answer them.
pub(super) fn say_what_is_asked(asks: &[PermissionView]) {
    for PermissionView { short_id, description, what, .. } in asks {
        let words = Line::new(show::BOLD, short_id)
            .with(show::PLAIN, &format!(" {} ", quote::literal(description)))
            .with(show::WARNING.bold(), "asks for:");
        show::note_quoted(&words, what);
    }
    let mut ids: Vec<&str> = asks.iter().map(|asked| asked.short_id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        show::note(&format!(
            "  allow it with `asyncagents approve {id}`, refuse it with `asyncagents deny {id}`"
        ));
    }
}

/// The exit code for tasks that have ended: a failure counts for more than a cancellation.
pub(super) fn verdict(over: &[&TaskView]) -> u8 {
    let any = |status: Status| over.iter().any(|task| task.status == status);
    if any(Status::Error) {
        FAILED
    } else if any(Status::Cancelled) {
        CANCELLED
    } else {
        0
    }
}
