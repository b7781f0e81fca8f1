//! The status of providers, for `doctor` and `asyncagents auth list`: where a key comes from and where it
//! is sent, never the key itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::provider::{Access, Key, Place, Provider};
use super::remote::{ModelList, Remote};
use super::{Error, Models};

/// The status of one provider that is configured in any way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
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
pub enum Look {
    /// Only at the settings, without reading keys.
    Glance,
    /// Read the keys, which may run commands.
    Closely,
    /// Also ask the providers for their models.
    Online,
}

/// The status of all providers, with connections to those that can be asked.
pub struct Standings(Vec<(Standing, Option<Arc<Remote>>)>);

impl Standings {
    /// Without asking the providers.
    pub fn told(self) -> Vec<Standing> {
        self.0.into_iter().map(|(standing, _)| standing).collect()
    }

    /// Asks all of them for their models, concurrently.
    pub async fn ask(self) -> Vec<Standing> {
        let asked = self.0.into_iter().map(|(standing, remote)| async move {
            match remote {
                None => standing,
                Some(remote) => match remote.models().await {
                    Ok(models) => Standing { models: Some(models), ..standing },
                    Err(error) => Standing { problem: Some(error.to_string()), ..standing },
                },
            }
        });
        join_all(asked).await
    }
}

impl Models {
    /// The status of every provider that has a key or an address from anywhere, and of the one named
    /// `also`. Blocking, unless it is a [`Look::Glance`].
    pub fn standings(&self, call: &BTreeMap<String, Access>, also: &str, look: Look) -> Standings {
        let none = Access::default();
        let mut standings = Vec::new();
        for (name, known) in self.providers.iter() {
            let chosen = self.choose(&known.sources, call.get(name).unwrap_or(&none));
            let provider = match chosen {
                Ok(provider) => provider,
                Err(error) => {
                    standings.push((Standing::of_a_problem(name, &error), None));
                    continue;
                }
            };
            // Built-in providers that nobody configured would only be noise.
            let is_told_of = provider.key.is_given() || provider.base_url.is_some();
            if !is_told_of && name != also {
                continue;
            }
            let address = provider.url();
            let connected = match look {
                Look::Glance => address.clone().map(|_| None),
                Look::Closely | Look::Online => {
                    self.connect(&known.connection(provider.clone())).map(Some)
                }
            };
            let (remote, problem) = match connected {
                Ok(remote) => (remote, None),
                Err(error) => (None, Some(error.to_string())),
            };
            let standing = Standing {
                name: name.clone(),
                key: key_source(&provider),
                address: address.ok().map(|url| {
                    let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
                    place.trim_end_matches('/').to_owned()
                }),
                problem,
                models: None,
            };
            standings.push((standing, remote));
        }
        Standings(standings)
    }
}

impl Standing {
    fn of_a_problem(name: &str, error: &Error) -> Standing {
        let problem = Some(error.to_string());
        Standing { name: name.to_owned(), key: None, address: None, problem, models: None }
    }
}

/// Where the key comes from, in words.
fn key_source(provider: &Provider) -> Option<String> {
    let told = match (provider.place, &provider.key) {
        (_, Key::None) => return None,
        (Place::Call, _) => "handed over by the client".to_owned(),
        (Place::Daemon, _) => "environment of the daemon".to_owned(),
        (Place::Stored, Key::Command(..)) => "command (asyncagents auth)".to_owned(),
        (Place::Stored, Key::Text(_) | Key::File(_)) => "file (asyncagents auth)".to_owned(),
        (Place::Section, Key::File(file)) => format!("file ({})", file.display()),
        (Place::Section, Key::Command(..) | Key::Text(_)) => "command (configuration)".to_owned(),
    };
    Some(told)
}
