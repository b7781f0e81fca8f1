//! `asyncagents list`: the tasks of all parents, newest first, with filters. Reads as many pages as it takes; a task
//! that is launched meanwhile shifts them, and may make one appear twice.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::connection::Connection;
use super::show::{self, Column, DIM, Line, LiveFrame, Table};
use super::{connect, tasks};
use crate::client::Client;
use crate::config::Settings;
use crate::quote;
use crate::task::Timestamp;
use crate::wire::{PageView, TaskView};

/// The API's limit.
const LARGEST_PAGE: u64 = 200;

/// How often `--watch` looks: often enough for a clock that counts seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(after_help = "\
With --watch the list is redrawn in place, until Ctrl-C; in a pipe every change of a task is a line.

Example:
  asyncagents list --search login --status completed
  asyncagents ps --watch")]
pub(super) struct List {
    /// Only tasks whose description contains this, ignoring case
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Only tasks in this state: running, completed, error, cancelled, resumed
    #[arg(long)]
    status: Option<String>,
    /// Only tasks of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only tasks of this parent session
    #[arg(long, value_name = "SESSION")]
    parent: Option<String>,
    /// Only tasks of this batch
    #[arg(long)]
    batch: Option<String>,
    /// Also tasks that were cleared
    #[arg(long)]
    all: bool,
    /// How many to show at most; 0 for all
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// Stay and show changes as they happen
    #[arg(long, short, conflicts_with = "json")]
    watch: bool,
    /// Print the tasks as a JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        if self.watch {
            return self.watch(&connection).await;
        }
        let (tasks, total) = self.read(&connection).await?;
        if self.json {
            show::json(&tasks)?;
            // On standard error, since standard output is the JSON.
            if self.search.is_some() {
                show::note(&found(total));
            }
        } else {
            self.lines(&tasks, total, show::Screen::stdout().width)
                .iter()
                .try_for_each(show::print)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        let filters = [
            ("search", &self.search),
            ("status", &self.status),
            ("agent", &self.agent),
            ("parent", &self.parent),
            ("batch", &self.batch),
        ];
        for (name, value) in filters {
            query.extend(value.clone().map(|value| (name, value)));
        }
        if !self.all {
            query.push(("listed", "true".to_owned()));
        }
        query
    }

    /// The tasks to show, and how many match in all.
    async fn read(&self, connection: &Connection<'_>) -> anyhow::Result<(Vec<TaskView>, u64)> {
        let limit = if self.limit == 0 { u64::MAX } else { self.limit };
        let mut tasks: Vec<TaskView> = Vec::new();
        loop {
            let mut query = self.query();
            let left = limit - tasks.len() as u64;
            query.push(("limit", left.min(LARGEST_PAGE).to_string()));
            query.push(("offset", tasks.len().to_string()));
            let call = async |client: &Client| client.tasks(&query).await;
            let page: PageView = match self.watch {
                true => connection.wait(call).await?,
                false => connection.call(call).await?,
            };
            // A page that is not full ends the loop, whatever `total` says: tasks may be pruned while we read.
            let last = (page.tasks.len() as u64) < left.min(LARGEST_PAGE);
            tasks.extend(page.tasks);
            if last || tasks.len() as u64 >= limit {
                return Ok((tasks, page.total));
            }
        }
    }

    fn lines(&self, tasks: &[TaskView], total: u64, width: Option<usize>) -> Vec<Line> {
        if self.search.is_some() && !self.all && total == 0 {
            let none = "No background tasks found; --all also searches cleared ones";
            return vec![Line::plain(none)];
        }
        if total == 0 {
            return vec![Line::plain("No background tasks found")];
        }
        let mut lines = table(tasks, tasks::now()).lines(width);
        match total.saturating_sub(tasks.len() as u64) {
            0 => {}
            1 => lines.push(Line::new(DIM, "… and 1 older one; --limit shows more")),
            hidden => {
                let text = format!("… and {hidden} older ones; --limit shows more");
                lines.push(Line::new(DIM, &text));
            }
        }
        if self.search.is_some() {
            lines.push(Line::new(DIM, &found(total)));
        }
        lines
    }

    /// Ends by Ctrl-C, or when a person stops the daemon.
    async fn watch(&self, connection: &Connection<'_>) -> anyhow::Result<ExitCode> {
        let mut live = LiveFrame::on_stdout();
        let mut known: HashMap<String, String> = HashMap::new();
        loop {
            let (tasks, total) = self.read(connection).await?;
            match &mut live {
                Some(live) => live.draw(&self.lines(&tasks, total, show::Screen::stdout().width)),
                None => {
                    for task in tasks.iter().rev() {
                        let change = change(task);
                        let before = known.insert(task.session_id.clone(), change.clone());
                        if before.as_ref() != Some(&change) {
                            show::line(&change)?;
                        }
                    }
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// How many tasks a search has found, shown or not.
fn found(total: u64) -> String {
    format!("{} found", show::counted(total, "task"))
}

/// What `--watch` prints in a pipe whenever it is another.
fn change(task: &TaskView) -> String {
    let status = tasks::status(task).text();
    let name = quote::literal(&task.description);
    format!("{} {status}: {} {name}", task.short_id, tasks::tool_calls(task))
}

/// Of these the table leaves out what a narrow terminal has no room for: cost first, then figures, then the agent.
pub(super) fn table(tasks: &[TaskView], now: Timestamp) -> Table {
    let mut table = Table::new([
        Column::new("ID"),
        Column::new("STATUS"),
        Column::new("AGENT").dispensable(1),
        Column::new("AGE").right().dispensable(3),
        Column::new("TIME").right().dispensable(2),
        Column::new("TOOLS").right().dispensable(4),
        Column::new("COST").right().dispensable(5),
        Column::new("DESCRIPTION"),
    ]);
    for task in tasks {
        table.row(row(task, now));
    }
    table
}

fn row(task: &TaskView, now: Timestamp) -> Vec<Line> {
    let mut description = Line::plain(&task.description);
    let marks = [(task.is_forked, " (forked)"), (task.resume_count > 0, " (resumed)")];
    for (_, mark) in marks.into_iter().filter(|(is_so, _)| *is_so) {
        description.push(DIM, mark);
    }
    vec![
        Line::new(show::BOLD, &task.short_id),
        tasks::status(task),
        Line::plain(&task.agent),
        Line::new(DIM, &show::age(now.since(task.started_at))),
        Line::plain(&tasks::running_time(task, now)),
        Line::plain(&task.progress.tool_calls.to_string()),
        Line::plain(&tasks::cost(task).unwrap_or_default()),
        description,
    ]
}
