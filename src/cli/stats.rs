//! `asyncagents stats`: counts and durations over the whole history.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::connect;
use super::show::{self, Column, Line, Table};
use crate::client::Client;
use crate::config::Settings;
use crate::task::Status;
use crate::task::time::say;
use crate::wire::StatsView;

/// How many tools are listed; the JSON has all of them.
const MOST_TOOLS: usize = 10;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents stats
  asyncagents stats --json | jq .byAgent")]
pub(super) struct Stats {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

impl Stats {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let connection = connect(settings).await?;
        let stats = connection.call(Client::stats).await?;
        match self.json {
            true => show::json(&stats)?,
            false => print(&stats)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(stats: &StatsView) -> anyhow::Result<()> {
    let mut total = Line::new(show::BOLD, &show::counted(stats.total_tasks, "task"));
    for status in Status::ALL {
        let word = status.name();
        match stats.by_status.get(word) {
            None | Some(0) => {}
            Some(n) => {
                total.push(show::PLAIN, ", ");
                total.push(show::status_style(status), &format!("{n} {word}"));
            }
        }
    }
    show::print(&total)?;
    if stats.total_tasks > stats.active_tasks {
        let [avg, min, max] = [stats.duration.avg, stats.duration.min, stats.duration.max]
            .map(|millis| say(Duration::from_millis(millis)));
        show::line(&format!("from launch to end: {avg} on average, {min} to {max}"))?;
    }
    if stats.total_tasks == 0 {
        return Ok(());
    }
    show::line("")?;
    let mut table = Table::new([
        Column::new("AGENT"),
        Column::new("TASKS").right(),
        Column::new("TOOL CALLS").right(),
    ]);
    for (agent, tasks) in most(&stats.by_agent) {
        let calls = stats.tool_calls_by_agent.get(agent).copied().unwrap_or(0);
        let cells = [agent.to_owned(), tasks.to_string(), calls.to_string()];
        table.row(cells.iter().map(|cell| Line::plain(cell)).collect());
    }
    table.print()?;
    if stats.tool_calls_by_name.is_empty() {
        return Ok(());
    }
    show::line("")?;
    let mut table = Table::new([Column::new("TOOL"), Column::new("CALLS").right()]);
    for (tool, calls) in most(&stats.tool_calls_by_name).into_iter().take(MOST_TOOLS) {
        table.row(vec![Line::plain(tool), Line::plain(&calls.to_string())]);
    }
    table.print()
}

/// The largest first.
fn most(counts: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut counts: Vec<(&str, u64)> = counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    counts
}
