//! A command through its guard, beside the same command started directly.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use asyncagents::process::{self, Cause, Journal, Launcher, Record, Status};
use futures_util::future::BoxFuture;

use crate::processes::PROGRAM;
use crate::table::{Row, Table, median, millis, quantile};
use crate::{Scale, progress};

const MOST_MORE_MILLIS: f64 = 5.0;

/// The disk is measured elsewhere.
struct NoJournal;

impl Journal for NoJournal {
    fn record(&self, _: &Record) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn erase(&self, _: &Record) {}
}

pub(crate) async fn measure(scale: &Scale, table: &mut Table) -> anyhow::Result<()> {
    progress("commands");
    let environment = Arc::new(std::env::vars_os().collect());
    let lease = Duration::from_secs(30);
    let launcher = Launcher::new(PROGRAM.into(), lease, environment, Arc::new(NoJournal));
    let (mut direct, mut guarded) = (Vec::new(), Vec::new());
    // In turns, so that both see the same machine.
    for _ in 0..scale.commands {
        let began = Instant::now();
        let mut command = Command::new("bash");
        command.args(["-c", "true"]).stdin(Stdio::null()).stdout(Stdio::null());
        ensure!(command.status()?.success(), "`true` failed");
        direct.push(millis(began.elapsed()));

        let began = Instant::now();
        let mut process = launcher.start(process::Command {
            program: "bash".into(),
            arguments: vec!["-c".into(), "true".into()],
            directory: "/".into(),
            environment: Vec::new(),
            output: std::fs::File::create("/dev/null")?.into(),
        })?;
        let report = process.report().await;
        let ended = (report.cause, report.status);
        ensure!(ended == (Cause::Exited, Some(Status::Code(0))), "{ended:?}");
        guarded.push(millis(began.elapsed()));
    }
    let (floor, figure) = (median(&direct), median(&guarded));
    table.add(Row {
        what: "command `true` through its guard".to_owned(),
        figure: format!("{figure:.1} ms"),
        limit: format!("{floor:.1} ms"),
        ratio: Some(figure / floor),
        target: format!("≤ {MOST_MORE_MILLIS} ms more"),
        met: Some(figure - floor <= MOST_MORE_MILLIS),
    });
    table.note(format!(
        "commands: the limit is `bash -c true` without a guard; 95% take less than {:.1} ms, and \
         {:.1} ms without",
        quantile(&guarded, 0.95),
        quantile(&direct, 0.95),
    ));
    Ok(())
}
