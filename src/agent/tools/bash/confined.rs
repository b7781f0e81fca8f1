//! Runs commands inside the sandbox, or outside with a permission, and explains the sandbox to the model:
//! what was repaired after the command, and a hint when the sandbox may be why it failed.

use serde_json::Value;

use super::super::{Context, Error};
use super::Arguments;
use crate::process::{Cause, Report, Status};
use crate::sandbox::{Level, Plan, RepairOutcome, SessionSandbox};
use crate::threads;

/// Error messages of programs that the sandbox is in the way of.
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

/// The permission that a call would need, if any.
pub(in super::super) fn leaves(arguments: &Value, context: &Context) -> Option<String> {
    let command = arguments.get("command")?.as_str()?;
    let wants = arguments.get("outside").and_then(Value::as_bool) == Some(true);
    (wants && is_confined(context)).then(|| permission(command))
}

/// Whether there is a sandbox. Without one, `outside` means nothing and needs no permission.
fn is_confined(context: &Context) -> bool {
    !context.session_sandbox.sandbox.detected().is_ok_and(|found| found.level == Level::Off)
}

fn permission(command: &str) -> String {
    format!("outside_sandbox {command}")
}

/// Plans the command, on a blocking thread: it looks at the file system.
pub(super) async fn plan(arguments: &Arguments, context: &Context) -> Result<Plan, Error> {
    let (context, command) = (context.clone(), arguments.command.clone());
    let outside = arguments.outside == Some(true);
    let plan = move || {
        if outside && is_confined(&context) {
            // The permission is for this very command: it was shown to a person as it is.
            return match context.may_leave == Some(permission(&command)) {
                true => Ok(Plan::bare(&command)),
                false => Err(Error::InSandbox),
            };
        }
        let planned =
            context.session_sandbox.plan(context.workspace.root(), &[&context.overflow], &command);
        planned.map_err(|error| Error::failed("run", "bash", error))
    };
    let planned = threads::within(threads::LIMIT, plan).await;
    planned.map_err(|stuck| Error::failed("run", "bash", stuck))?
}

/// bubblewrap's own init process lives as long as what the command left behind; it is not counted.
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

/// The error if the sandbox itself failed before the command ran: then its message is the only output.
pub(super) fn not_set_up(level: Level, text: &str, status: Option<Status>) -> Option<String> {
    let said = match level {
        Level::BwrapUser | Level::BwrapRoot => text.strip_prefix("bwrap: "),
        Level::Landlock => text.strip_prefix("asyncagents: the sandbox could not be set up: "),
        Level::Off => None,
    };
    // Only an exit with 1 and a single line: a command may print the same prefix itself.
    let failed = status == Some(Status::Code(1));
    let why = said.filter(|why| failed && why.lines().count() == 1)?;
    Some(format!("its sandbox could not be set up: {}", why.trim_end()))
}

/// What was repaired after the command, for the model. Usually the guard did it; if the guard was lost or
/// had no list, it is done here, however the command ended.
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
            // Left as it is, the next command's plan takes it for the user's own file.
            tracing::warn!(path, error = %why, "protected path restore failed; the command's change stays");
            format!(
                "\n(`{path}` could not be put back as it was: {why}; agents may not change it: undo it, \
                 or tell the person)"
            )
        }
    }
}

/// A hint if the session's scratch directories are over their limit. No refusal, because only a command
/// can free the room again.
pub(super) async fn room(level: Level, session_sandbox: &SessionSandbox) -> String {
    if level == Level::Off {
        return String::new();
    }
    let session_sandbox = session_sandbox.clone();
    match threads::within(threads::LIMIT, move || session_sandbox.is_over()).await {
        Ok(Some(limit)) => format!(
            "\n(`/tmp` and the home directory of this session hold more than {} MiB, their limit; remove \
             what is no longer needed there before you go on)",
            limit >> 20
        ),
        // Only a hint: if it cannot be told in time, the result of the command matters more.
        Ok(None) | Err(_) => String::new(),
    }
}

/// The hint that the sandbox may be why a command failed, if its output looks like that.
pub(super) fn hint(level: Level, text: &str, status: Option<Status>) -> &'static str {
    let failed = status != Some(Status::Code(0));
    let in_the_way = SYMPTOMS.iter().any(|symptom| text.contains(symptom));
    if level != Level::Off && failed && in_the_way { HINT } else { "" }
}
