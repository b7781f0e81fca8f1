//! Builds the channels by which people are told, from the configuration.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};

use super::hosts::{key_variables, shared};
use crate::agent::model::provider::Key;
use crate::config::{self, Settings};
use crate::notify::{Desktop, Hook, Notifier, Secret, Webhook};

pub(super) fn notifier(settings: &Settings) -> anyhow::Result<Notifier> {
    let config = &settings.config.notify;
    let environment = shared(&settings.hook_variables);
    let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let webhook = given(&config.webhook_url).map(|url| -> anyhow::Result<Webhook> {
        let webhook = Webhook::new(&url, secret(settings, config)?);
        webhook.map_err(anyhow::Error::msg).context("`notify.webhook_url` is not a URL")
    });
    Ok(Notifier {
        desktop: config.desktop.then(|| Desktop { environment: Arc::clone(&environment) }),
        webhook: webhook.transpose()?,
        hook: given(&config.command).map(|command| Hook { command, environment }),
        give_up: config.give_up,
    })
}

/// Read at each use, so that a new one needs no restart. The error never has the secret in it.
fn secret(settings: &Settings, config: &config::Notify) -> anyhow::Result<Secret> {
    let (file, command) = (config.webhook_secret_file.trim(), config.webhook_secret_command.trim());
    ensure!(
        !(file.is_empty() && command.is_empty()),
        "`notify.webhook_url` needs a secret to sign with; set `notify.webhook_secret_file` or \
         `notify.webhook_secret_command`"
    );
    ensure!(
        file.is_empty() || command.is_empty(),
        "`notify.webhook_secret_file` and `notify.webhook_secret_command` are both set; remove one of them"
    );
    let beside = settings.config_file.parent().unwrap_or(Path::new("/"));
    let (key, setting) = match command.is_empty() {
        true => (Key::File(beside.join(file)), "notify.webhook_secret_file"),
        false => {
            let variables = key_variables(settings);
            (Key::Command(command.to_owned(), variables), "notify.webhook_secret_command")
        }
    };
    Ok(Arc::new(move || {
        let read = key.read(setting).map_err(|error| error.to_string())?;
        read.ok_or_else(|| format!("it is empty; see `{setting}`"))
    }))
}
