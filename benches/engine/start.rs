//! Start-up time: from the start of the process to its first response, with histories of different sizes.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::ensure;

use crate::history::Histories;
use crate::processes::{Daemon, Host, PROGRAM};
use crate::table::{Row, Table, median, millis, quantile};
use crate::{Scale, progress};

const MOST_MILLIS: f64 = 100.0;

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let host = Host::start(&histories.place()?).await?;
    let floor = median(&run_and_end(scale.starts)?);
    let mut row = |what: String, samples: &[f64]| {
        let figure = median(samples);
        table.add(Row {
            what,
            figure: format!("{figure:.1} ms"),
            limit: format!("{floor:.1} ms"),
            ratio: Some(figure / floor),
            target: format!("≤ {MOST_MILLIS} ms"),
            met: Some(figure <= MOST_MILLIS),
        });
        quantile(samples, 1.0)
    };
    let mut slowest = Vec::new();
    let mut samples = Vec::new();
    for _ in 0..scale.starts {
        let daemon = Daemon::start(&histories.place()?, &host, "").await?;
        samples.push(millis(daemon.ready_after));
        daemon.stop().await?;
    }
    slowest.push(row("start → ready, the very first".to_owned(), &samples));
    let most = scale.present.last().copied().unwrap_or(0);
    for present in [0, most] {
        progress(format!("starts with {present} tasks present"));
        let home = histories.with(present)?;
        let mut samples = Vec::new();
        for _ in 0..scale.starts {
            let daemon = Daemon::start(&home, &host, "").await?;
            samples.push(millis(daemon.ready_after));
            daemon.stop().await?;
        }
        slowest.push(row(format!("start → ready, {present} present"), &samples));
    }
    let slowest: Vec<String> = slowest.iter().map(|millis| format!("{millis:.0} ms")).collect();
    table.note(format!(
        "start: the limit is `asyncagents --version`, from start to exit; slowest starts {}",
        slowest.join(", "),
    ));
    Ok(())
}

fn run_and_end(times: usize) -> anyhow::Result<Vec<f64>> {
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        let status = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status()?;
        ensure!(status.success(), "`--version` failed");
        samples.push(millis(began.elapsed()));
    }
    Ok(samples)
}
