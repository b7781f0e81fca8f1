//! Commands as a person waits for them: the whole process, from its start to its exit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::history::Histories;
use crate::processes::{Daemon, Host, PROGRAM};
use crate::table::{Row, Table, median, millis, quantile};
use crate::{Scale, progress};

/// Beyond the start and the exit of a process that does nothing.
const MOST_MILLIS: f64 = 30.0;

const TIMES: usize = 50;

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let host = Host::start(&histories.place()?).await?;
    let present = scale.present.last().copied().unwrap_or(0);
    progress(format!("commands with {present} tasks present"));
    let home = histories.with(present)?;
    let daemon = Daemon::start(&home, &host, "").await?;
    // In turns: what else the machine does falls on both.
    let (mut listing, mut nothing) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        nothing.push(started(&home, "true", &[])?);
        listing.push(started(&home, PROGRAM, &["list"])?);
    }
    daemon.stop().await?;
    let (figure, floor) = (median(&listing), median(&nothing));
    table.add(Row {
        what: format!("asyncagents list, {present} present"),
        figure: format!("{figure:.1} ms"),
        limit: format!("{floor:.1} ms"),
        ratio: Some(figure / floor),
        target: format!("≤ {MOST_MILLIS} ms above"),
        met: Some(figure - floor <= MOST_MILLIS),
    });
    table.note(format!(
        "cli: the limit is `true`, started in the same way; 95 % of the lists took {:.1} ms at most",
        quantile(&listing, 0.95),
    ));
    Ok(())
}

fn started(home: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<f64> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command.env("ASYNCAGENTS_HOME", home).env("ASYNCAGENTS_CONFIG", home.with_extension("toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let began = Instant::now();
    let status = command.status().with_context(|| format!("cannot start `{program}`"))?;
    let took = millis(began.elapsed());
    ensure!(status.success(), "`{program}` failed");
    Ok(took)
}
