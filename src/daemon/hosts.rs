//! Builds the hosts from the configuration: the embedded one with its models, credentials and sandbox, the OpenCode
//! servers with their logins, and the scripted one for tests. All the translation from configuration to the types of
//! `host`, `agent` and `sandbox` is here, so that those know no configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::home::Home;
use crate::agent::definition;
use crate::agent::model::provider::{Key, Provider, ProviderAccess, Sources};
use crate::agent::model::{Models, Price, StoredKey, StoredKeys};
use crate::agent::turn::Limits;
use crate::auth::{Auth, Credential};
use crate::clock::Clock;
use crate::config::{self, Settings};
use crate::host::embedded::{Embedded, Setup, TaskLookup, TaskPresence};
use crate::host::opencode::{self, Login, OpenCode};
use crate::host::scripted::{Remote, Scripted, World};
use crate::host::{Host, Servers};
use crate::process::{self, Variables};
use crate::sandbox::{self, Sandbox, UserPlaces};
use crate::store::Store;
use crate::supervisor::Hosts;
use crate::task::Slot;
use crate::trust::Trust;

const EMBEDDED: &str = "embedded";
const OPENCODE: &str = "opencode";
const SCRIPTED: &str = "scripted";

/// The hosts, and the parts of them that the daemon needs itself: to stop the embedded one, to probe the sandbox.
pub(super) struct HostSet {
    pub(super) hosts: Hosts,
    pub(super) embedded: Embedded,
    pub(super) sandbox: Sandbox,
}

/// The embedded host and OpenCode are always there; what is configured is the default.
pub(super) fn connect(
    settings: &Settings,
    home: &Home,
    store: &Store,
    clock: &Clock,
) -> anyhow::Result<HostSet> {
    let config = &settings.config;
    let setup = setup(settings, home, task_lookup(store));
    let sandbox = setup.sandbox.clone();
    let embedded = Embedded::start(store.clone(), clock.clone(), setup)?;
    let opencode = opencode(settings, store, clock)?;
    let mut all: BTreeMap<String, Arc<dyn Host>> = BTreeMap::new();
    all.insert(EMBEDDED.to_owned(), Arc::new(embedded.clone()));
    all.insert(OPENCODE.to_owned(), Arc::new(opencode));
    // Those of the configuration alone: adding a server by `hosts add` does not move what is launched
    // elsewhere, neither now nor at the next start.
    let has_server = !config.opencode.url.is_empty() || !config.opencode.servers.is_empty();
    let default = match config.host.split_once(':') {
        None if config.host.is_empty() && has_server => OPENCODE,
        None if config.host.is_empty() || config.host == EMBEDDED => EMBEDDED,
        None if config.host == OPENCODE => OPENCODE,
        None if config.host == SCRIPTED => {
            let world = Scripted::Here(World::new(clock.clone()));
            all.insert(SCRIPTED.to_owned(), Arc::new(world));
            SCRIPTED
        }
        Some((SCRIPTED, socket)) => {
            let remote = Scripted::Process(Remote::new(Path::new(socket))?);
            all.insert(SCRIPTED.to_owned(), Arc::new(remote));
            SCRIPTED
        }
        None | Some(_) => anyhow::bail!(
            "no host `{}`; ASYNCAGENTS_HOST (or `host` in the configuration file) can be \
             `embedded`, `opencode`, `scripted` or `scripted:<socket>`",
            config.host
        ),
    };
    let hosts = Hosts { all, default: Some(default.to_owned()) };
    Ok(HostSet { hosts, embedded, sandbox })
}

/// Servers from the configuration, and those that were added since.
fn opencode(settings: &Settings, store: &Store, clock: &Clock) -> anyhow::Result<OpenCode> {
    let config::OpenCode { url, gone, servers } = &settings.config.opencode;
    let providers = &settings.providers;
    let login = providers.opencode_password.as_ref().map(|password| Login {
        name: providers.opencode_name.clone().unwrap_or_else(|| OPENCODE.to_owned()),
        password: password.reveal().to_owned(),
    });
    let opencode = OpenCode::new(store.clone(), clock.clone(), login, *gone);
    let configured = servers.iter().map(|(name, url)| (name.clone(), url.clone()));
    let first = (!url.is_empty()).then(|| (opencode::DEFAULT.to_owned(), url.clone()));
    let (handed, added): (Vec<_>, Vec<_>) =
        store.instances().all()?.into_iter().partition(|(name, _)| OpenCode::is_handed(name));
    // Servers that clients handed over are only connected again for tasks that still run there. They go first, so
    // that the configuration overrides what was stored under the same name.
    let live = store.tasks().live(None)?;
    for (name, address) in handed {
        if live.iter().any(|task| task.origin.host_instance == name) {
            opencode.put_again(&name, &address)?;
        }
    }
    for (name, address) in added.into_iter().chain(configured).chain(first) {
        opencode.put(&name, &address).with_context(|| format!("OpenCode server `{name}`"))?;
    }
    Ok(opencode)
}

/// What the embedded host needs to know of tasks, as a callback: hosts do not know tasks themselves.
fn task_lookup(store: &Store) -> TaskLookup {
    let store = store.clone();
    Arc::new(move |session| {
        Ok(match store.tasks().get(session)? {
            None => TaskPresence::Absent,
            Some(task) if task.slot == Slot::Parked => TaskPresence::Parked,
            Some(task) if task.is_live() => TaskPresence::Live,
            Some(_) => TaskPresence::Ended,
        })
    })
}

fn providers(settings: &Settings) -> Vec<Sources> {
    let sections = settings.config.providers.keys().map(String::as_str);
    let mut names: BTreeSet<&str> = Provider::known_names().collect();
    names.extend(sections);
    names.into_iter().map(|name| sources(settings, name)).collect()
}

/// Where key and address of one provider come from, by precedence: the file's section, then the daemon's environment.
/// What a client hands over comes before both, and is decided on where it is used.
fn sources(settings: &Settings, name: &str) -> Sources {
    let known = Sources::named(name);
    let access = settings.providers.models.get(name).cloned().unwrap_or_default();
    let section = settings.config.providers.get(name).cloned().unwrap_or_default();
    let given = |text: String| Some(text).filter(|text| !text.trim().is_empty());
    let beside = settings.config_file.parent().unwrap_or(Path::new("/"));
    let key = match (given(section.key_file), given(section.key_command)) {
        (Some(file), _) => Key::File(beside.join(file)),
        (None, Some(command)) => Key::Command(command, key_variables(settings)),
        (None, None) => Key::None,
    };
    Sources {
        wire: section.kind.unwrap_or(known.wire),
        section: ProviderAccess { key, base_url: given(section.base_url) },
        daemon: ProviderAccess {
            key: access.key.map_or(Key::None, |key| Key::Text(key.reveal().to_owned())),
            base_url: access.base_url,
        },
        ..known
    }
}

/// Keys from `asyncagents auth`, read from the file at each use, so that a change needs no restart.
fn kept_keys(settings: &Settings, home: &Home) -> StoredKeys {
    let auth = Auth::in_home(home.path());
    let variables = key_variables(settings);
    Arc::new(move |name| {
        let key = match auth.get(name).map_err(|error| error.to_string())? {
            None => Key::None,
            Some(Credential::Key(key)) => Key::Text(key),
            Some(Credential::Command(command)) => Key::Command(command, Arc::clone(&variables)),
        };
        Ok(StoredKey { key, changed_at: auth.changed_at() })
    })
}

fn child_variables(settings: &Settings) -> Variables {
    shared(&settings.child_variables)
}

pub(super) fn key_variables(settings: &Settings) -> Variables {
    shared(&settings.key_variables)
}

pub(super) fn shared(variables: &config::Variables) -> Variables {
    Arc::new(variables.iter().map(|(name, value)| (name.into(), value.clone())).collect())
}

fn priced((model, price): (&String, &config::Price)) -> (String, Price) {
    let price = match *price {
        config::Price::Pair([input, output]) => Price::flat(input, output),
        config::Price::Table { input, output, cached_input, cache_write } => Price {
            input,
            output,
            cached_input: cached_input.unwrap_or(input),
            cache_write: cache_write.unwrap_or(input),
        },
    };
    (model.clone(), price)
}

/// How much of the files that define agents is read.
pub fn definition_bounds(agent: &config::Agent) -> definition::Bounds {
    definition::Bounds {
        files: agent.definition_files,
        file_bytes: agent.definition_bytes,
        folder_bytes: agent.definition_folder_bytes,
    }
}

fn setup(settings: &Settings, home: &Home, task_lookup: TaskLookup) -> Setup {
    let config = &settings.config;
    let config_dir = settings.config_file.parent().unwrap_or(Path::new("/"));
    Setup {
        config_dir: config_dir.to_owned(),
        trust: Trust::in_home(home.path()),
        bounds: definition_bounds(&config.agent),
        overflow: home.path().join("output"),
        default_model: config.model.clone(),
        output_bytes: config.agent.output_bytes,
        models: Models::new(providers(settings), config.agent.silence, config.agent.answer_bytes)
            .with_stored_keys(kept_keys(settings, home))
            .with_aliases(config.agent.aliases.clone())
            .with_effort(config.agent.thinking),
        prices: config.agent.prices.iter().map(priced).collect(),
        limits: Limits {
            steps: config.agent.max_steps,
            retries: config.agent.model_retries,
            compact_at: config.agent.compact_at_tokens,
            answer_bytes: config.agent.answer_bytes,
            parallel_calls: config.agent.parallel_calls,
            transcript_bytes: config.agent.transcript_bytes,
        },
        gone: config.supervisor.gone,
        guard: process::own_program(),
        environment: child_variables(settings),
        command_lease: config.agent.command_lease,
        task_lookup,
        sweep: process::sweep,
        sandbox: sandbox(settings),
        scratch: home.path().join("scratch"),
        scratch_age: config.agent.scratch_age,
    }
}

/// What holds our secrets: storage, configuration, keys and token.
fn own_files(settings: &Settings) -> Vec<PathBuf> {
    let beside = settings.config_file.parent().unwrap_or(Path::new("/"));
    let mut own = vec![settings.home.clone(), settings.config_file.clone()];
    // Only our own directory: a file named by `--config` may be in any, beside things that commands need.
    if beside.ends_with("asyncagents") {
        own.push(beside.to_owned());
    }
    let keys = settings.config.providers.values().map(|provider| &provider.key_file);
    let files = keys.chain([&settings.config.api.token_file]);
    own.extend(files.filter(|file| !file.is_empty()).map(|file| beside.join(file)));
    own
}

/// What is around commands, with everything of ours hidden from them.
pub fn sandbox(settings: &Settings) -> Sandbox {
    let config::Config { agent, sandbox, .. } = &settings.config;
    let expanded = |paths: &[String]| paths.iter().map(|path| settings.user.expand(path)).collect();
    let config::User { home: user_home, toolchains, path } = settings.user.clone();
    Sandbox::new(sandbox::Settings {
        choice: *sandbox,
        program: process::own_program(),
        network: agent.command_network,
        readable: expanded(&agent.command_readable),
        writable: expanded(&agent.command_writable),
        caches: agent.command_caches,
        limits: sandbox::Limits {
            processes: agent.command_processes,
            memory: agent.command_memory_bytes,
            file: agent.command_file_bytes,
            scratch: agent.scratch_bytes,
        },
        user: UserPlaces { home: user_home, toolchains, path },
        own: own_files(settings),
    })
}
