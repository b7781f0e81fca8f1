//! The checks of `asyncagents doctor` that look at files alone: storage, port, clients of MCP, notifications. Neither a
//! token nor a secret is shown.

use std::path::Path;

use super::Finding::{self, Absent, Fine, Warning, Wrong};
use crate::cli::mcp::{Registration, registrations};
use crate::config::Settings;
use crate::wire::ServerView;

pub(super) fn storage(settings: &Settings) -> Finding {
    let home = settings.home.display();
    match std::fs::metadata(settings.home.join("asyncagents.db")) {
        Ok(file) => {
            Fine(format!("storage: {home}, task store of {} KiB", file.len().div_ceil(1024)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Absent(format!("storage: no task store in {home} yet"))
        }
        Err(error) => Wrong(format!("storage: the task store in {home} cannot be read: {error}")),
    }
}

/// Where the status API listens, as the daemon has announced it.
pub(super) fn port(settings: &Settings) -> Finding {
    if !settings.config.api.enabled {
        return Absent("port: off (`api.enabled = false`)".into());
    }
    let file = settings.home.join("server.json");
    let server = std::fs::read_to_string(&file).ok();
    match server.and_then(|text| serde_json::from_str::<ServerView>(&text).ok()) {
        Some(server)
            if server.port == settings.config.api.port || settings.config.api.port == 0 =>
        {
            Fine(format!("port: {}", server.url))
        }
        Some(server) => Warning(format!(
            "port: {} instead of {}, which another program has; programs find it in {}",
            server.url,
            settings.config.api.port,
            file.display()
        )),
        None => Warning(format!(
            "port: the daemon has not announced one in {}; `asyncagents daemon restart`",
            file.display()
        )),
    }
}

/// Which clients of MCP name our server.
pub(super) fn clients(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Registration { client, file, state } in registrations(settings) {
        let file = file.display();
        match state {
            Ok(true) => findings.push(Fine(format!("MCP client {client}: registered in {file}"))),
            Ok(false) => {}
            Err(error) => findings.push(Warning(format!(
                "MCP client {client}: {file} cannot be understood: {error:#}"
            ))),
        }
    }
    if findings.is_empty() {
        findings.push(Absent(
            "MCP clients: none is registered (`asyncagents mcp install CLIENT --write`)".into(),
        ));
    }
    findings
}

/// The channels that notify people of ends.
pub(super) fn notifications(settings: &Settings) -> Vec<Finding> {
    let config = &settings.config.notify;
    let mut findings = Vec::new();
    if config.desktop {
        let path = settings.search_path.clone().unwrap_or_default();
        let found = std::env::split_paths(&path).find(|dir| dir.join("notify-send").is_file());
        findings.push(match found {
            Some(_) => Fine("notifications: desktop, by `notify-send`".into()),
            None => Warning(
                "notifications: `notify.desktop` is on, and there is no `notify-send` on the PATH; install \
                 it (libnotify)"
                    .into(),
            ),
        });
    }
    if !config.webhook_url.trim().is_empty() {
        findings.push(webhook(settings));
    }
    if !config.command.trim().is_empty() {
        findings.push(Fine("notifications: `notify.command`".into()));
    }
    if findings.is_empty() {
        findings.push(Absent("notifications: none (`[notify]` in the configuration file)".into()));
    }
    findings
}

/// Its address may hold a token: only the host is shown.
fn webhook(settings: &Settings) -> Finding {
    let config = &settings.config.notify;
    let url = reqwest::Url::parse(config.webhook_url.trim()).ok();
    let Some(host) = url.as_ref().and_then(|url| url.host_str()) else {
        return Wrong("notifications: `notify.webhook_url` is not a URL; set one like `https://example.org/hook`".into());
    };
    let file = config.webhook_secret_file.trim();
    if file.is_empty() {
        return match config.webhook_secret_command.trim() {
            "" => Wrong(
                "notifications: the webhook has no secret; set `notify.webhook_secret_file`".into(),
            ),
            _ => Fine(format!("notifications: webhook at {host}, secret from a command")),
        };
    }
    let file = settings.config_file.parent().unwrap_or(Path::new("/")).join(file);
    match std::fs::read_to_string(&file) {
        Ok(secret) if !secret.trim().is_empty() => {
            Fine(format!("notifications: webhook at {host}, secret from a file"))
        }
        Ok(_) => Wrong(format!("notifications: the webhook's secret {} is empty", file.display())),
        Err(error) => Wrong(format!(
            "notifications: the webhook's secret {} cannot be read: {error}",
            file.display()
        )),
    }
}
