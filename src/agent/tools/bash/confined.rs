//! A command and its sandbox: the way in, the way out with a permission, and what the model is told when
//! the sandbox may be why something failed.

use serde_json::Value;

use super::super::{Context, Error};
use super::Arguments;
use crate::process::{Cause, Report, Status};
use crate::sandbox::{Cell, Level, Plan, RepairOutcome};
use crate::threads;

/// What programs say when the sandbox is in their way.
const SYMPTOMS: [&str; 13] = [
    "Read-only file system",
    "Permission denied",
    "Operation not permitted",
    "Device or resource busy",
    "Network is unreachable",
    "Could not resolve host",
    "Temporary failure in name resolution",
    "Resource temporarily unavailable",
    "File size limit exceeded",
    "EROFS",
    "EACCES",
    "EPERM",
    "EBUSY",
];

const HINT: &str = "\n(it ran in a sandbox, which may be why it failed: commands write in the workspace \
    and in `/tmp` only, and not to `.git/hooks`, `.git/config` and settings of agents there; of the home \
    directory they see only programs. If it cannot be done inside, call again with `outside: true`: a \
    person is asked)";

/// What a call would need a permission for.
pub(in super::super) fn leaves(arguments: &Value, context: &Context) -> Option<String> {
    let command = arguments.get("command")?.as_str()?;
    let wants = arguments.get("outside").and_then(Value::as_bool) == Some(true);
    (wants && is_confined(context)).then(|| permission(command))
}

/// Where there is no sandbox, there is no outside.
fn is_confined(context: &Context) -> bool {
    !context.cell.sandbox.detected().is_ok_and(|found| found.level == Level::Off)
}

fn permission(command: &str) -> String {
    format!("outside_sandbox {command}")
}

/// Looks at the file system, which may block.
pub(super) async fn plan(arguments: &Arguments, context: &Context) -> Result<Plan, Error> {
    let (context, command) = (context.clone(), arguments.command.clone());
    let outside = arguments.outside == Some(true);
    let plan = move || {
        if outside && is_confined(&context) {
            return match context.may_leave == Some(permission(&command)) {
                true => Ok(Plan::bare(&command)),
                false => Err(Error::InSandbox),
            };
        }
        let planned = context.cell.plan(context.workspace.root(), &[&context.overflow], &command);
        planned.map_err(|error| Error::failed("run", "bash", error))
    };
    let planned = threads::within(threads::LIMIT, plan).await;
    planned.map_err(|stuck| Error::failed("run", "bash", stuck))?
}

/// bubblewrap leaves a process of its own with what the command left behind.
pub(super) fn without_its_own(plan: &Plan, report: &mut Report) {
    if is_bwrap(plan) {
        report.killed = report.killed.saturating_sub(1);
    }
}

fn is_bwrap(plan: &Plan) -> bool {
    match plan.level {
        Level::BwrapUser | Level::BwrapRoot => true,
        Level::Landlock | Level::Off => false,
    }
}

/// The sandbox itself failed, before there was a command.
pub(super) fn not_set_up(level: Level, text: &str, status: Option<Status>) -> Option<String> {
    let said = match level {
        Level::BwrapUser | Level::BwrapRoot => text.strip_prefix("bwrap: "),
        Level::Landlock => text.strip_prefix("asyncagents: the sandbox could not be set up: "),
        Level::Off => None,
    };
    let failed = status == Some(Status::Code(1));
    let why = said.filter(|why| failed && why.lines().count() == 1)?;
    Some(format!("its sandbox could not be set up: {}", why.trim_end()))
}

/// Whatever ended the command, what it did to protected paths is put right; the model is told what.
pub(super) async fn repair(plan: Plan, report: &Report) -> String {
    let by_the_guard = !plan.repairs.is_empty() && report.cause != Cause::GuardLost;
    let outcomes = match by_the_guard {
        true => RepairOutcome::read(&report.cleanup),
        false => {
            let outcomes = threads::within(threads::LIMIT, move || plan.repair()).await;
            outcomes.unwrap_or_default()
        }
    };
    outcomes.iter().map(said).collect()
}

fn said(RepairOutcome { path, failure }: &RepairOutcome) -> String {
    match failure {
        None => format!("\n(`{path}` was put back as it was: agents may not change it)"),
        Some(why) => {
            // The next command finds it there, and takes it for the person's own.
            tracing::warn!(path, why, "a command changed a protected path, which stays changed");
            format!(
                "\n(`{path}` could not be put back as it was: {why}; agents may not change it: undo it, \
                 or tell the person)"
            )
        }
    }
}

/// A hint and no refusal: only a command can free the room again.
pub(super) async fn room(level: Level, cell: &Cell) -> String {
    if level == Level::Off {
        return String::new();
    }
    let cell = cell.clone();
    match threads::within(threads::LIMIT, move || cell.is_over()).await {
        Ok(Some(limit)) => format!(
            "\n(`/tmp` and the home directory of this session hold more than {} MiB, their limit; remove \
             what is no longer needed there before you go on)",
            limit >> 20
        ),
        Ok(None) | Err(_) => String::new(),
    }
}

pub(super) fn hint(level: Level, text: &str, status: Option<Status>) -> &'static str {
    let failed = status != Some(Status::Code(0));
    let in_the_way = SYMPTOMS.iter().any(|symptom| text.contains(symptom));
    if level != Level::Off && failed && in_the_way { HINT } else { "" }
}
