//! A command run by its guard, compared with the same command started directly.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use asyncagents::process::{self, Cause, Journal, Launcher, Record, Status};
use asyncagents::sandbox::{
    self, Caches, Choice, Grants, Limits, Network, Sandbox, SessionSandbox, UserPlaces,
};
use futures_util::future::BoxFuture;

use crate::processes::PROGRAM;
use crate::table::{Row, Table, median, millis, quantile};
use crate::{Scale, progress};

const MOST_MORE_MILLIS: f64 = 5.0;
const MOST_TIMES_BARE: f64 = 1.5;

/// Records nothing: the cost of the disk is measured elsewhere.
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
    // Interleaved, so that both see the same background load.
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
            processes: 0,
            cleanup: String::new(),
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
    sandboxed(scale, table, &launcher).await
}

/// The whole path of an agent's command: planning from the workspace, the guard, bubblewrap with
/// all mounts.
async fn sandboxed(scale: &Scale, table: &mut Table, launcher: &Launcher) -> anyhow::Result<()> {
    let place = tempfile::tempdir()?;
    let workspace = place.path().canonicalize()?.join("workspace");
    std::fs::create_dir_all(workspace.join(".git"))?;
    std::fs::write(workspace.join(".git/config"), "")?;
    let session_sandbox = session_sandbox(place.path().join("scratch"));
    if session_sandbox.sandbox.detected().is_err() {
        table.note("commands: there is no bubblewrap here, so its cost is not measured".to_owned());
        return Ok(());
    }
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    let (mut mounted, mut looked) = (Vec::new(), Vec::new());
    for _ in 0..scale.commands {
        let began = Instant::now();
        let mut command = Command::new("bwrap");
        command.args(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
        command.args([
            "--cap-drop",
            "ALL",
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
        ]);
        command.args(["--", "bash", "-c", "true"]).stdin(Stdio::null()).stdout(Stdio::null());
        ensure!(command.status()?.success(), "`true` failed in bubblewrap");
        bare.push(millis(began.elapsed()));

        let began = Instant::now();
        let plan = session_sandbox.plan(&workspace, &[], "true")?;
        let planning = began.elapsed();
        let mut process = launcher.start(process::Command {
            program: plan.program.clone(),
            arguments: plan.arguments.clone(),
            directory: workspace.clone(),
            environment: Vec::new(),
            output: std::fs::File::create("/dev/null")?.into(),
            processes: plan.processes,
            cleanup: plan.repairs.clone(),
        })?;
        let report = process.report().await;
        let ended = (report.cause, report.status);
        ensure!(ended == (Cause::Exited, Some(Status::Code(0))), "{ended:?}");
        looked.push(millis(planning));
        whole.push(millis(began.elapsed()));

        let began = Instant::now();
        let mut command = Command::new(&plan.program);
        command.args(&plan.arguments).current_dir(&workspace);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        ensure!(command.status()?.success(), "`true` failed with all mounts");
        mounted.push(millis(began.elapsed()));
    }
    let (floor, figure) = (median(&bare), median(&whole));
    // bubblewrap with the same mounts is the lower bound of this policy; only the difference is
    // ours.
    let same = median(&mounted);
    table.add(Row {
        what: "command `true` in its sandbox, beside the same `bwrap` by hand".to_owned(),
        figure: format!("{figure:.1} ms"),
        limit: format!("{same:.1} ms"),
        ratio: Some(figure / same),
        target: format!("≤ {MOST_TIMES_BARE} ×"),
        met: Some(figure / same <= MOST_TIMES_BARE),
    });
    table.add(Row {
        what: "  beside `bwrap` with the same namespaces and no mounts".to_owned(),
        figure: format!("{figure:.1} ms"),
        limit: format!("{floor:.1} ms"),
        ratio: Some(figure / floor),
        target: String::new(),
        met: None,
    });
    table.note(format!(
        "commands in the sandbox: 95% take less than {:.1} ms, and {:.1} ms with no mounts and no guard; \
         planning takes {:.1} ms, and the rest over the same `bwrap` is the guard",
        quantile(&whole, 0.95),
        quantile(&bare, 0.95),
        median(&looked),
    ));
    Ok(())
}

fn session_sandbox(scratch: PathBuf) -> SessionSandbox {
    let home = std::env::home_dir();
    SessionSandbox {
        sandbox: Sandbox::new(sandbox::Settings {
            choice: Choice::Bwrap,
            program: PROGRAM.into(),
            network: Network::On,
            readable: Vec::new(),
            writable: Vec::new(),
            caches: Caches::Readable,
            limits: Limits { processes: 4096, memory: 16 << 30, file: 16 << 30, scratch: 0 },
            user: UserPlaces { home, ..UserPlaces::default() },
            own: Vec::new(),
        }),
        scratch,
        grants: Grants::default(),
        trusted: false,
    }
}
