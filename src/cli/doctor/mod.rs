//! `asyncagents doctor`: checks configuration, trust, sandbox, daemon, task store, hosts, models, clients and
//! notifications, and says for each problem what to do. With `--repair` it rebuilds a damaged task store,
//! without the daemon.
//!
//! It starts the daemon and asks it, since what counts is how things look from there: its environment may be
//! another one than that of this shell.

mod models;
mod setup;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anstyle::Style;
use clap::Args;
use serde::Serialize;

use super::agents::WorkspaceAgents;
use super::show::{BAD, DIM, GOOD, Kind, Line, Screen, WARNING};
use super::spinner::Spinner;
use super::{opencode, show};
use crate::config::Settings;
use crate::daemon::{self, RepairReport, start};
use crate::host::{SUPPORTED_OPENCODE, Support};
use crate::sandbox::Level;
use crate::trust::TrustStatus;
use crate::wire::{HostView, HostsView, OpenCodeView};

#[derive(Args)]
#[command(after_help = "\
It reads the whole task store, and exits with 1 when something is wrong; a warning (!) is no
failure, nor is what is not there (–). Models and keys are checked as the daemon has them,
and never shown.

--repair copies what can be read of a damaged task store into a new one, and keeps the old file.
The daemon has to be stopped for it. A task store that is sound is only compacted.

Example:
  asyncagents doctor --online
  asyncagents daemon stop && asyncagents doctor --repair")]
pub(super) struct Doctor {
    /// Rebuild the task store from what can be read of it
    #[arg(long)]
    repair: bool,
    /// Ask the providers of models for their models, with their keys
    #[arg(long, conflicts_with = "repair")]
    online: bool,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

/// One line of the report.
enum Finding {
    Fine(String),
    /// It is not set up, and need not be.
    Absent(String),
    Warning(String),
    Wrong(String),
}

use Finding::{Absent, Fine, Warning, Wrong};

/// The JSON of the report.
#[derive(Serialize)]
struct ReportView<'a> {
    /// Nothing is wrong; there may be warnings.
    sound: bool,
    findings: Vec<FindingView<'a>>,
}

#[derive(Serialize)]
struct FindingView<'a> {
    /// `ok`, `absent`, `warning` or `wrong`.
    status: &'static str,
    text: &'a str,
}

impl Finding {
    /// Its sign, its word, and what was found.
    fn parts(&self) -> (char, &'static str, &str) {
        match self {
            Fine(text) => ('✓', "ok", text),
            Absent(text) => ('–', "absent", text),
            Warning(text) => ('!', "warning", text),
            Wrong(text) => ('✗', "wrong", text),
        }
    }

    fn style(&self) -> Style {
        match self {
            Fine(_) => GOOD,
            Absent(_) => DIM,
            Warning(_) => WARNING,
            Wrong(_) => BAD,
        }
    }
}

impl Doctor {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        if self.repair {
            return repair(settings, self.json);
        }
        let mut findings = vec![Fine(format!("asyncagents {}", env!("CARGO_PKG_VERSION")))];
        findings.push(configuration(settings));
        findings.extend(workspace(settings));
        findings.extend(sandbox(settings));
        let checking = Spinner::start("reading the whole task store");
        findings.extend(daemon_and_store(settings, self.online).await);
        drop(checking);
        findings.push(setup::storage(settings));
        findings.push(setup::port(settings));
        findings.extend(setup::clients(settings));
        findings.push(opencode_program());
        findings.push(plugin(settings));
        findings.extend(setup::notifications(settings));
        let sound = !findings.iter().any(|finding| matches!(finding, Wrong(_)));
        match self.json {
            true => show::json(&report(sound, &findings))?,
            false => print(&findings)?,
        }
        Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn report(sound: bool, findings: &[Finding]) -> ReportView<'_> {
    let view = |finding| {
        let (_, status, text) = Finding::parts(finding);
        FindingView { status, text }
    };
    ReportView { sound, findings: findings.iter().map(view).collect() }
}

/// A line for each, and in words how many there are of which sign.
fn print(findings: &[Finding]) -> anyhow::Result<()> {
    let (width, indent) = (Screen::stdout().width, Line::plain("  "));
    for finding in findings {
        let (sign, _, text) = finding.parts();
        let sign = Line::new(finding.style(), &format!("{sign} "));
        // A host may have written part of the text: none of its lines looks like a finding of ours.
        let lines = show::body(text, Kind::Plain, width, &sign, &indent);
        lines.iter().try_for_each(show::print)?;
    }
    let count = |word: &str| findings.iter().filter(|finding| finding.parts().1 == word).count();
    show::line(&format!(
        "\n✓ ok: {}, – absent: {}, ! warning: {}, ✗ wrong: {}",
        count("ok"),
        count("absent"),
        count("warning"),
        count("wrong")
    ))
}

/// The JSON of a repair.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RepairView {
    /// It was sound, and only compacted.
    sound: bool,
    tasks: u64,
    other_rows: u64,
    /// Places in the file that could not be read.
    lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged_file: Option<PathBuf>,
}

fn repair(settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    let repairing = Spinner::start("rewriting the task store");
    let repaired = daemon::repair(&settings.home, &mut |rows| {
        repairing.say(format!("rewriting the task store: {} saved", show::counted(rows, "row")));
    })?;
    drop(repairing);
    if json {
        show::json(&match repaired {
            RepairReport::Sound => {
                RepairView { sound: true, tasks: 0, other_rows: 0, lost: 0, damaged_file: None }
            }
            RepairReport::Rebuilt { tasks, other_rows, lost, aside } => {
                RepairView { sound: false, tasks, other_rows, lost, damaged_file: Some(aside) }
            }
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    match repaired {
        RepairReport::Sound => show::line("The task store is sound; it was only compacted.")?,
        RepairReport::Rebuilt { tasks, other_rows, lost, aside } => {
            let saved = show::counted(tasks, "task");
            let rows = show::counted(other_rows, "row");
            let lost = match lost {
                0 => "nothing was lost".to_owned(),
                lost => format!("{} could not be read", show::counted(lost, "place")),
            };
            show::line(&format!(
                "The task store was rebuilt: {saved} and {rows} about them were saved, {lost}.\n\
                 The damaged file is kept as {}.",
                aside.display()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn configuration(settings: &Settings) -> Finding {
    let file = settings.config_file.display();
    match settings.config_file.exists() {
        true => Fine(format!("configuration: {file}")),
        false => Absent(format!("configuration: defaults ({file} does not exist)")),
    }
}

/// Whether the agent files of this directory can be used, if there are any.
fn workspace(settings: &Settings) -> Option<Finding> {
    let here = WorkspaceAgents::here(settings).ok()?;
    let count = here.loaded.untrusted.len();
    let agents = show::counted(count as u64, "agent");
    match &here.workspace.status {
        TrustStatus::Unknown(error) => Some(Wrong(format!("trust: {error}"))),
        TrustStatus::Undecided if count > 0 => Some(Warning(format!(
            "trust: files of this directory define {agents} that cannot be used yet; `asyncagents \
             agents` shows what they would be allowed, `asyncagents trust` allows it"
        ))),
        TrustStatus::Declined if count > 0 => Some(Fine(format!(
            "trust: declined for this directory, whose files define {agents} (`asyncagents trust` \
             changes that)"
        ))),
        // Without agent files there is nothing to decide, and no line.
        TrustStatus::Trusted | TrustStatus::Declined | TrustStatus::Undecided => None,
    }
}

/// The sandbox around the commands of embedded agents, and what commands can still do in spite of it.
fn sandbox(settings: &Settings) -> Vec<Finding> {
    let found = match daemon::sandbox(settings).detected() {
        Ok(found) => found,
        Err(error) => return vec![Wrong(format!("sandbox: {error}"))],
    };
    let level = found.level.name();
    let mut findings = vec![match (found.level, &found.because) {
        // A warning and no failure: agents do run. But the level that was wanted is not there, and why is the clue.
        (Level::Off, Some(why)) => Warning(format!(
            "sandbox: none, commands of agents run as you: {why}; install `bubblewrap`, or set \
             `sandbox = \"off\"` if that is meant"
        )),
        (Level::Off, None) => Warning(
            "sandbox: off in the configuration; commands of agents can do all that you can".into(),
        ),
        (_, Some(why)) => Warning(format!("sandbox: {level}, because {why}")),
        (_, None) => Fine(format!("sandbox: {level}")),
    }];
    if found.level != Level::Off {
        let gaps = found.level.gaps(found.landlock).into_iter();
        findings.extend(gaps.map(|gap| Warning(format!("sandbox: commands can still {gap}"))));
    }
    findings
}

async fn daemon_and_store(settings: &Settings, online: bool) -> Vec<Finding> {
    let start::ReadyDaemon { client, notes, .. } = match start::ensure(settings).await {
        Ok(found) => found,
        Err(error) => return vec![Wrong(format!("daemon: {error:#}"))],
    };
    let mut findings = Vec::new();
    match client.health().await {
        Ok(health) => {
            let home = settings.home.display();
            let (pid, version) = (health.pid, &health.version);
            findings.push(Fine(format!("daemon: pid {pid}, version {version}, in {home}")));
            findings.extend(health.warnings.into_iter().chain(notes).map(Warning));
            // Other commands say nothing about another patch version; here any difference may be the clue.
            let ours = env!("CARGO_PKG_VERSION");
            if version != ours {
                findings.push(Warning(format!(
                    "daemon: version {version}, this program: version {ours}; `asyncagents daemon \
                     restart` replaces it, and live runs go on"
                )));
            }
        }
        Err(error) => findings.push(Wrong(format!("daemon: {error}"))),
    }
    // Checked by the daemon and not by opening the file here: it has the file open, and remembers damage that it has
    // already met.
    match client.check().await {
        Ok(check) if check.problems.is_empty() => {
            let warnings = check.warnings.iter().map(|text| Warning(format!("task store: {text}")));
            findings.extend(warnings);
            if check.warnings.is_empty() {
                findings.push(Fine("task store: sound".into()));
            }
        }
        Ok(check) => {
            let problems = check.problems.join("; ");
            findings.push(Wrong(format!(
                "task store: damaged: {problems}; `asyncagents daemon stop`, then `asyncagents doctor \
                 --repair` saves what can be read"
            )));
        }
        Err(error) => findings.push(Wrong(format!("task store: cannot be checked: {error}"))),
    }
    match client.hosts().await {
        Ok(HostsView { hosts }) => {
            findings.push(places(&hosts));
            findings.extend(hosts.iter().flat_map(|host| &host.servers).map(server));
        }
        Err(error) => findings.push(Wrong(format!("hosts: {error}"))),
    }
    findings.extend(models::look(&client, settings, online).await);
    findings
}

/// Where agents can run.
fn places(hosts: &[HostView]) -> Finding {
    let named = |host: &HostView| match host.is_default {
        true => format!("{} (default)", host.name),
        false => host.name.clone(),
    };
    Fine(format!("hosts: {}", hosts.iter().map(named).collect::<Vec<_>>().join(", ")))
}

/// Reachability, password and version of one server.
fn server(server: &OpenCodeView) -> Finding {
    let OpenCodeView { name, url, .. } = server;
    match (&server.version, &server.error) {
        (Some(version), _) => judge(&format!("OpenCode server `{name}` at {url}"), version),
        // An OpenCode process with our plugin that the user has closed: not there, and no problem: it
        // reconnects by itself.
        (None, Some(_)) if name.starts_with("plugin-") => {
            Absent(format!("OpenCode `{name}` ({url}): closed"))
        }
        (None, Some(error)) => Wrong(format!("OpenCode server `{name}` at {url}: {error}")),
        (None, None) => Warning(format!("OpenCode server `{name}` at {url}: not known yet")),
    }
}

fn opencode_program() -> Finding {
    match Command::new("opencode").arg("--version").output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout);
            judge("OpenCode program on the PATH", version.trim())
        }
        Ok(output) => {
            Warning(format!("OpenCode program: `opencode --version` failed: {}", output.status))
        }
        Err(_) => Absent("OpenCode program: none on the PATH (only needed for its agents)".into()),
    }
}

fn plugin(settings: &Settings) -> Finding {
    let file = opencode::plugin_file(settings);
    match opencode::is_current(settings) {
        Some(true) => Fine(format!("OpenCode plugin: {}", file.display())),
        Some(false) => Warning(
            "OpenCode plugin: of another version than this program; `asyncagents opencode install` \
             renews it"
                .into(),
        ),
        None => Absent("OpenCode plugin: not installed (`asyncagents opencode install`)".into()),
    }
}

/// Compares a version of OpenCode with those that are supported.
fn judge(what: &str, version: &str) -> Finding {
    match Support::of(version) {
        Support::Supported => Fine(format!("{what}: version {version}")),
        Support::TooOld => Warning(format!(
            "{what}: version {version} is too old; supported is {SUPPORTED_OPENCODE}, please upgrade \
             it"
        )),
        Support::TooNew => Warning(format!(
            "{what}: version {version} is of a generation that asyncagents does not know yet; \
             supported is {SUPPORTED_OPENCODE}"
        )),
        Support::Unreadable => Warning(format!("{what}: version `{version}` cannot be read")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_below_1_18_or_of_another_generation_is_warned_of() {
        let check = |version: &str, mark: char| {
            let found = match judge("it", version) {
                Fine(_) => '✓',
                Absent(_) => '–',
                Warning(_) => '!',
                Wrong(_) => '✗',
            };
            assert_eq!(found, mark, "{version}");
        };
        for version in ["1.18.0", "1.18.34", "1.19.3"] {
            check(version, '✓');
        }
        for version in ["1.17.9", "0.99.1", "2.0.0", "local", ""] {
            check(version, '!');
        }
    }
}
