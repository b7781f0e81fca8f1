//! `asyncagents list`: the tasks of all parents, newest first, with filters. Reads as many pages as it takes; a task
//! that is launched meanwhile shifts them, and may make one appear twice.

use std::process::ExitCode;

use clap::Args;

use super::{connect, show};
use crate::config::Settings;
use crate::task::time::say;
use crate::wire::TaskView;

/// The API's limit.
const LARGEST_PAGE: u64 = 200;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents list --search login --status completed")]
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
    /// How many to show at most
    #[arg(long, default_value_t = 50)]
    limit: u64,
    /// Print the tasks as a JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
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
        let mut tasks: Vec<TaskView> = Vec::new();
        let total = loop {
            let mut query = query.clone();
            let left = self.limit - tasks.len() as u64;
            query.push(("limit", left.min(LARGEST_PAGE).to_string()));
            query.push(("offset", tasks.len().to_string()));
            let page = connection.call(async |client| client.tasks(&query).await).await?;
            // An empty page ends the loop, whatever `total` says: tasks may be pruned while we read.
            let last = page.tasks.is_empty();
            tasks.extend(page.tasks);
            if last || tasks.len() as u64 >= self.limit {
                break page.total;
            }
        };
        if self.json {
            show::json(&tasks)?;
            // On standard error, since standard output is the JSON.
            if self.search.is_some() {
                show::note(&found(total));
            }
        } else {
            self.print(&tasks, total)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, tasks: &[TaskView], total: u64) -> anyhow::Result<()> {
        if self.search.is_some() && !self.all && total == 0 {
            return show::line("No background tasks found; --all also searches cleared ones");
        }
        if total == 0 {
            return show::line("No background tasks found");
        }
        print(tasks, total)?;
        match self.search {
            Some(_) => show::line(&found(total)),
            None => Ok(()),
        }
    }
}

/// How many tasks a search has found, shown or not.
fn found(total: u64) -> String {
    format!("{} found", show::counted(total, "task"))
}

fn print(tasks: &[TaskView], total: u64) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = tasks.iter().map(row).collect();
    show::columns(&["ID", "STATUS", "AGENT", "TOOLS", "TOOK", "DESCRIPTION"], &rows)?;
    let hidden = total.saturating_sub(tasks.len() as u64);
    match hidden {
        0 => Ok(()),
        1 => show::line("… and 1 older one; --limit shows more"),
        hidden => show::line(&format!("… and {hidden} older ones; --limit shows more")),
    }
}

fn row(task: &TaskView) -> Vec<String> {
    let forked = if task.is_forked { " (forked)" } else { "" };
    let resumed = if task.resume_count > 0 { " (resumed)" } else { "" };
    let (status, took) = match task.completed_at {
        Some(end) => (task.status.clone(), say(end.since(task.started_at))),
        None => (format!("{}, {}", task.status, task.progress.phase.name()), String::new()),
    };
    vec![
        format!("{}{forked}{resumed}", task.short_id),
        status,
        task.agent.clone(),
        task.progress.tool_calls.to_string(),
        took,
        task.description.clone(),
    ]
}
