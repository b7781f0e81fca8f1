//! The status of providers, for `doctor` and `asyncagents auth list`: where a key comes from and where it
//! is sent, never the key itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::provider::{Key, KeyOrigin, Provider, ProviderAccess};
use super::remote::{ModelList, Remote};
use super::{Error, Models};

/// The status of one provider that is configured in any way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderStatus {
    pub name: String,
    /// Where its key comes from; `None` when there is none.
    pub key: Option<String>,
    /// Without user name and password; `None` when it has no address.
    pub address: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// The models it offers, if it was asked for them.
    pub models: Option<ModelList>,
}

/// How closely to look at the providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDepth {
    /// Only at the settings, without reading keys.
    Settings,
    /// Read the keys, which may run commands.
    Keys,
    /// Also ask the providers for their models.
    Online,
}

/// The status of all providers, with connections to those that can be asked.
pub struct ProviderStatuses(Vec<(ProviderStatus, Option<Arc<Remote>>)>);

impl ProviderStatuses {
    /// Without asking the providers.
    pub fn into_statuses(self) -> Vec<ProviderStatus> {
        self.0.into_iter().map(|(status, _)| status).collect()
    }

    /// Asks all of them for their models, concurrently.
    pub async fn ask(self) -> Vec<ProviderStatus> {
        let asked = self.0.into_iter().map(|(status, remote)| async move {
            match remote {
                None => status,
                Some(remote) => match remote.models().await {
                    Ok(models) => ProviderStatus { models: Some(models), ..status },
                    Err(error) => ProviderStatus { problem: Some(error.to_string()), ..status },
                },
            }
        });
        join_all(asked).await
    }
}

impl Models {
    /// The status of every provider that has a key or an address from anywhere, and of the one named
    /// `also`. Blocking, unless it is a [`ProbeDepth::Settings`].
    pub fn statuses(
        &self,
        call: &BTreeMap<String, ProviderAccess>,
        also: &str,
        depth: ProbeDepth,
    ) -> ProviderStatuses {
        let none = ProviderAccess::default();
        let mut statuses = Vec::new();
        for (name, known) in self.providers.iter() {
            let chosen = self.choose(&known.sources, call.get(name).unwrap_or(&none));
            let provider = match chosen {
                Ok(provider) => provider,
                Err(error) => {
                    statuses.push((ProviderStatus::of_a_problem(name, &error), None));
                    continue;
                }
            };
            // Built-in providers without any configuration would only be noise.
            let is_told_of = provider.key.is_given() || provider.base_url.is_some();
            if !is_told_of && name != also {
                continue;
            }
            let address = provider.url();
            let connected = match depth {
                ProbeDepth::Settings => address.clone().map(|_| None),
                ProbeDepth::Keys | ProbeDepth::Online => {
                    self.connect(&known.connection(provider.clone())).map(Some)
                }
            };
            let (remote, problem) = match connected {
                Ok(remote) => (remote, None),
                Err(error) => (None, Some(error.to_string())),
            };
            let status = ProviderStatus {
                name: name.clone(),
                key: key_source(&provider),
                address: address.ok().map(|url| {
                    // Built from origin and path: user name, password and query may hold secrets.
                    let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
                    place.trim_end_matches('/').to_owned()
                }),
                problem,
                models: None,
            };
            statuses.push((status, remote));
        }
        ProviderStatuses(statuses)
    }
}

impl ProviderStatus {
    fn of_a_problem(name: &str, error: &Error) -> ProviderStatus {
        let problem = Some(error.to_string());
        ProviderStatus { name: name.to_owned(), key: None, address: None, problem, models: None }
    }
}

/// Where the key comes from, in words.
fn key_source(provider: &Provider) -> Option<String> {
    let source = match (provider.origin, &provider.key) {
        (_, Key::None) => return None,
        (KeyOrigin::Call, _) => "handed over by the client".to_owned(),
        (KeyOrigin::Daemon, _) => "environment of the daemon".to_owned(),
        (KeyOrigin::Stored, Key::Command(..)) => "command (asyncagents auth)".to_owned(),
        (KeyOrigin::Stored, Key::Text(_) | Key::File(_)) => "file (asyncagents auth)".to_owned(),
        (KeyOrigin::Section, Key::File(file)) => format!("file ({})", file.display()),
        (KeyOrigin::Section, Key::Command(..) | Key::Text(_)) => {
            "command (configuration)".to_owned()
        }
    };
    Some(source)
}
