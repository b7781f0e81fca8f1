//! The checks of `asyncagents doctor` about models: whether the daemon can use the default model and each provider
//! that is set up, and whether launches from this shell can. The two differ: the shell hands its own models and
//! keys over with its launches, and the daemon keeps the environment it was started in.

use super::Finding::{self, Absent, Fine, Warning, Wrong};
use crate::client::Client;
use crate::config::Settings;
use crate::daemon::hand_over;
use crate::wire::{ProviderView, ProvidersRequest, ProvidersView};

const OFFLINE: &str = "offline/explorer";

pub(super) async fn look(client: &Client, settings: &Settings, online: bool) -> Vec<Finding> {
    let of_daemon = ProvidersRequest { check: true, online, ..ProvidersRequest::default() };
    let of_shell = ProvidersRequest { hand_over: hand_over(settings), ..of_daemon.clone() };
    let (daemon, shell) =
        match (client.providers(&of_daemon).await, client.providers(&of_shell).await) {
            (Ok(daemon), Ok(shell)) => (daemon, shell),
            (Err(error), _) | (_, Err(error)) => return vec![Wrong(format!("models: {error}"))],
        };
    let mut findings = Vec::new();
    // When this shell has what the daemon lacks, launches from here work: a warning, not an error.
    let covered = shell.problem.is_none() && shell.model != OFFLINE;
    match &daemon.problem {
        Some(problem) if covered => findings.push(Warning(format!(
            "model: {}, which only clients with a key of their own can use, such as this shell: {problem}",
            daemon.model
        ))),
        Some(problem) => findings.push(Wrong(format!("model: {}: {problem}", daemon.model))),
        None => findings.push(model("model", &daemon)),
    }
    let is_shown = |provider: &ProviderView| !is_repeated(&daemon, provider);
    findings
        .extend(daemon.providers.iter().filter(|p| is_shown(p)).map(|p| provider("provider", p)));
    if shell.model != daemon.model || shell.problem.is_some() != daemon.problem.is_some() {
        findings.push(match &shell.problem {
            Some(problem) => Wrong(format!("model of this shell: {}: {problem}", shell.model)),
            None => model("model of this shell", &shell),
        });
        let its = shell.model.split_once('/').map_or("", |(provider, _)| provider);
        let own = shell.providers.iter().filter(|provider| provider.name == its);
        let own = own.filter(|p| !daemon.providers.contains(p) && !is_repeated(&shell, p));
        findings.extend(own.map(|p| provider("provider of this shell", p)));
    }
    findings
}

/// Whether the line about the model has already reported this provider's problem.
fn is_repeated(view: &ProvidersView, provider: &ProviderView) -> bool {
    provider.problem.is_some() && provider.problem == view.problem
}

fn model(what: &str, view: &ProvidersView) -> Finding {
    let name = &view.model;
    if name == OFFLINE {
        return Absent(format!(
            "{what}: none is set, so agents use {OFFLINE}, a rule-based search (set ASYNCAGENTS_MODEL, or \
             `model` in the configuration file)"
        ));
    }
    match view.providers.iter().find_map(|provider| provider.has_model) {
        Some(false) => Warning(format!("{what}: {name} is not in its provider's list of models")),
        Some(true) | None => Fine(format!("{what}: {name}")),
    }
}

fn provider(what: &str, view: &ProviderView) -> Finding {
    let ProviderView { name, key, address, problem, models, more_models, .. } = view;
    if let Some(problem) = problem {
        return Wrong(format!("{what} {name}: {problem}"));
    }
    let key = key.as_ref().map_or("no key".to_owned(), |key| format!("key: {key}"));
    let address = address.as_deref().unwrap_or("–");
    let answer = match models {
        Some(n) if *more_models => format!(", answers with more than {n} models"),
        Some(1) => ", answers with 1 model".to_owned(),
        Some(n) => format!(", answers with {n} models"),
        None => String::new(),
    };
    Fine(format!("{what} {name} at {address}, {key}{answer}"))
}
