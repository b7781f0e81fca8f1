//! From the configured host to one that can be talked to.

use std::collections::BTreeMap;
use std::path::Path;

use super::home::Home;
use crate::agent::model::remote::Keys;
use crate::agent::model::{Models, Price};
use crate::agent::turn::Limits;
use crate::clock::Clock;
use crate::config::Settings;
use crate::host::AnyHost;
use crate::host::embedded::{Embedded, Setup};
use crate::host::scripted::{Remote, Scripted, World};
use crate::store::Store;
use crate::supervisor::Hosts;

const EMBEDDED: &str = "embedded";

/// The embedded host is always there; what is configured is the default.
pub(super) fn connect(
    settings: &Settings,
    home: &Home,
    store: &Store,
    clock: &Clock,
) -> anyhow::Result<(Hosts, Embedded)> {
    let config = &settings.config;
    let embedded = Embedded::start(store.clone(), clock.clone(), setup(settings, home))?;
    let own = (EMBEDDED.to_owned(), AnyHost::Embedded(embedded.clone()));
    let mut all = BTreeMap::from([own]);
    let (name, host) = match config.host.split_once(':') {
        None if config.host.is_empty() || config.host == EMBEDDED => {
            return Ok((Hosts { all, default: Some(EMBEDDED.to_owned()) }, embedded));
        }
        None if config.host == "scripted" => {
            ("scripted", AnyHost::Scripted(Scripted::Here(World::new(clock.clone()))))
        }
        Some(("scripted", socket)) => {
            let remote = Remote::new(Path::new(socket))?;
            ("scripted", AnyHost::Scripted(Scripted::Process(remote)))
        }
        None | Some(_) => anyhow::bail!(
            "no host `{}`; ASYNCAGENTS_HOST (or `host` in the configuration file) can be \
             `embedded`, `scripted` or `scripted:<socket>`",
            config.host
        ),
    };
    all.insert(name.to_owned(), host);
    Ok((Hosts { all, default: Some(name.to_owned()) }, embedded))
}

fn keys(settings: &Settings) -> Keys {
    let providers = &settings.providers;
    Keys {
        openai_key: providers.openai_key.as_ref().map(|key| key.reveal().to_owned()),
        openai_base_url: providers.openai_base_url.clone(),
    }
}

fn priced((model, [input, output]): (&String, &[f64; 2])) -> (String, Price) {
    (model.clone(), Price { input: *input, output: *output })
}

fn setup(settings: &Settings, home: &Home) -> Setup {
    let config = &settings.config;
    let config_dir = settings.config_file.parent().unwrap_or(Path::new("/"));
    Setup {
        config_dir: config_dir.to_owned(),
        overflow: home.path().join("output"),
        default_model: config.model.clone(),
        models: Models::new(keys(settings), config.agent.silence),
        prices: config.agent.prices.iter().map(priced).collect(),
        limits: Limits {
            steps: config.agent.max_steps,
            retries: config.agent.model_retries,
            compact_at: config.agent.compact_at_tokens,
        },
    }
}
