//! What is known of providers, for people: where a key comes from and where it is sent, never the key.

use std::collections::BTreeMap;

use super::provider::{Access, Key, Place, Provider};
use super::{Error, Models};

/// A provider that somebody has said something about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub name: String,
    /// Where its key comes from; `None` when there is none.
    pub key: Option<String>,
    /// Without a login; `None` when there is none.
    pub address: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At what is said, without reading keys.
    Glance,
    /// Keys are read, and commands run for them.
    Closely,
}

impl Models {
    /// All that somebody has said something about, and `also` this one. With [`Look::Closely`], call it on
    /// a thread that may block.
    pub fn standings(
        &self,
        call: &BTreeMap<String, Access>,
        also: &str,
        look: Look,
    ) -> Vec<Standing> {
        let none = Access::default();
        let mut standings = Vec::new();
        for (name, known) in self.providers.iter() {
            let chosen = self.choose(&known.sources, call.get(name).unwrap_or(&none));
            let provider = match chosen {
                Ok(provider) => provider,
                Err(error) => {
                    standings.push(Standing::of_a_problem(name, &error));
                    continue;
                }
            };
            let is_told_of = provider.key.is_given() || provider.base_url.is_some();
            if !is_told_of && name != also {
                continue;
            }
            let address = provider.url();
            let problem = match look {
                Look::Glance => address.as_ref().err().cloned(),
                Look::Closely => self.connect(&known.connection(provider.clone())).err(),
            };
            standings.push(Standing {
                name: name.clone(),
                key: key_source(&provider),
                address: address.ok().map(|url| {
                    let place = format!("{}{}", url.origin().ascii_serialization(), url.path());
                    place.trim_end_matches('/').to_owned()
                }),
                problem: problem.map(|error| error.to_string()),
            });
        }
        standings
    }
}

impl Standing {
    fn of_a_problem(name: &str, error: &Error) -> Standing {
        let problem = Some(error.to_string());
        Standing { name: name.to_owned(), key: None, address: None, problem }
    }
}

fn key_source(provider: &Provider) -> Option<String> {
    let told = match (provider.place, &provider.key) {
        (_, Key::None) => return None,
        (Place::Call, _) => "handed over by the client".to_owned(),
        (Place::Daemon, _) => "environment of the daemon".to_owned(),
        (Place::Kept, Key::Command(..)) => "command (asyncagents auth)".to_owned(),
        (Place::Kept, Key::Text(_) | Key::File(_)) => "file (asyncagents auth)".to_owned(),
        (Place::Section, Key::File(file)) => format!("file ({})", file.display()),
        (Place::Section, Key::Command(..) | Key::Text(_)) => "command (configuration)".to_owned(),
    };
    Some(told)
}
