//! Where the key and the address of a provider come from: always both from one place, so that a key is
//! never sent to a server that somebody named for another key.

use super::Wire;
use super::{Key, Provider, known};
use crate::agent::model::Error;

/// What one place says about a provider.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    pub key: Key,
    pub base_url: Option<String>,
}

/// Where a key was found, or the address of a server that needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the environment of the client that launches.
    Call,
    /// Kept by `asyncagents auth set`.
    Kept,
    /// In `[providers.NAME]` of the configuration file.
    Section,
    /// In the environment of the daemon.
    Daemon,
}

/// Everything that is known of a provider before somebody calls.
#[derive(Clone)]
pub struct Sources {
    pub name: String,
    pub wire: Wire,
    pub section: Access,
    pub daemon: Access,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Nothing,
    Key,
    Address,
    Both,
}

impl Access {
    pub fn is_empty(&self) -> bool {
        self.given() == Given::Nothing
    }

    fn given(&self) -> Given {
        match (self.key.is_given(), self.base_url.is_some()) {
            (false, false) => Given::Nothing,
            (true, false) => Given::Key,
            (false, true) => Given::Address,
            (true, true) => Given::Both,
        }
    }
}

impl Place {
    fn describe(self) -> &'static str {
        match self {
            Place::Call => "your environment",
            Place::Kept => "`asyncagents auth`",
            Place::Section => "the configuration file",
            Place::Daemon => "the environment of the daemon",
        }
    }
}

impl Sources {
    /// A provider as it is known, or else one that speaks as most do.
    pub fn named(name: &str) -> Sources {
        let wire = known(name).map_or(Wire::OpenAi, |known| known.wire);
        Sources {
            name: name.to_owned(),
            wire,
            section: Access::default(),
            daemon: Access::default(),
        }
    }

    /// The caller's environment comes before the configuration, and that before the environment of the
    /// daemon, which counts only for callers that say nothing: it is that of whoever happened to start
    /// it. A configuration with key and address comes before half of that in the caller's environment,
    /// which may be there for other programs. Two halves are not put together: nobody has said that the
    /// one is meant for the other.
    pub fn choose(&self, call: &Access, kept: Key) -> Result<Provider, Error> {
        let place = if kept.is_given() { Place::Kept } else { Place::Section };
        let key = if kept.is_given() { kept } else { self.section.key.clone() };
        let configured = (place, Access { key, base_url: self.section.base_url.clone() });
        let (first, second) = match call.is_empty() {
            false => ((Place::Call, call.clone()), configured),
            true => (configured, (Place::Daemon, self.daemon.clone())),
        };
        let (place, access) = match (first.1.given(), second.1.given()) {
            (Given::Nothing, _) => second,
            (_, Given::Nothing) | (Given::Both, _) => first,
            (Given::Key | Given::Address, Given::Both) if second.0 == Place::Daemon => first,
            (Given::Key | Given::Address, Given::Both) => second,
            (Given::Key, Given::Key) | (Given::Address, Given::Address) => first,
            (Given::Key, Given::Address) => return Err(self.torn(first.0, second.0)),
            (Given::Address, Given::Key) => return Err(self.torn(second.0, first.0)),
        };
        let Access { key, base_url } = access;
        Ok(Provider { name: self.name.clone(), wire: self.wire, base_url, key, place })
    }

    fn torn(&self, key: Place, address: Place) -> Error {
        let name = &self.name;
        // What `auth` keeps goes with the section, also when that says nothing but the address.
        let address = if address == Place::Kept { Place::Section } else { address };
        let (key, address) = (key.describe(), address.describe());
        let variables = known(name).and_then(|known| {
            let key = known.key_variable?;
            Some(format!(", or set `{key}` and `{}` together", known.url_variable))
        });
        Error::Unusable(format!(
            "`{name}` has a key from {key} and an address from {address}, and a key is sent only to an \
             address from the same place; run `asyncagents auth set {name}` and name the address in \
             `[providers.{name}]`{}",
            variables.unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(key: &str, base_url: &str) -> Access {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Access { key: given(key).map_or(Key::None, Key::Text), base_url: given(base_url) }
    }

    /// Each place gives a key and an address, both of which may be empty.
    type Pair = (&'static str, &'static str);

    fn check(call: Pair, kept: &str, section: Pair, daemon: Pair, expected: Result<Pair, Pair>) {
        let sources = Sources {
            section: access(section.0, section.1),
            daemon: access(daemon.0, daemon.1),
            ..Sources::named("openai")
        };
        let chosen = sources.choose(&access(call.0, call.1), access(kept, "").key);
        let chosen = chosen.map(|chosen| Access { key: chosen.key, base_url: chosen.base_url });
        let expected = expected.map(|(key, url)| access(key, url)).map_err(|(key, address)| {
            Error::Unusable(format!(
                "`openai` has a key from {key} and an address from {address}, and a key is sent only to \
                 an address from the same place; run `asyncagents auth set openai` and name the address \
                 in `[providers.openai]`, or set `OPENAI_API_KEY` and `OPENAI_BASE_URL` together"
            ))
        });
        assert!(chosen == expected, "{call:?} {kept} {section:?} {daemon:?}: {:?}", chosen.err());
    }

    #[test]
    fn the_key_and_the_address_of_one_provider_come_from_one_place_together() {
        let (none, call, both) = (("", ""), ("c", ""), ("c", "http://call"));
        let (section, daemon) = (("s", "http://section"), ("d", "http://daemon"));
        check(none, "", none, none, Ok(none));
        // The first place that says anything.
        check(both, "k", section, daemon, Ok(both));
        check(none, "", section, daemon, Ok(section));
        check(none, "", none, daemon, Ok(daemon));
        check(call, "", none, daemon, Ok(call));
        check(("", "http://call"), "", none, daemon, Ok(("", "http://call")));
        check(call, "k", none, none, Ok(call));
        // A key that is kept goes with the section, before the section's own.
        check(none, "k", ("s", "http://section"), none, Ok(("k", "http://section")));
        check(none, "k", none, ("d", ""), Ok(("k", "")));
        // A whole configuration before half of an environment.
        check(call, "", section, none, Ok(section));
        check(("", "http://call"), "", section, none, Ok(section));
        check(none, "k", none, daemon, Ok(("k", "")));
        check(none, "", ("", "http://section"), daemon, Ok(("", "http://section")));
        // Two halves do not make a whole.
        let torn = |key, address| Err((key, address));
        let (yours, file) = ("your environment", "the configuration file");
        check(call, "", ("", "http://section"), none, torn(yours, file));
        check(("", "http://call"), "k", none, none, torn("`asyncagents auth`", yours));
        check(("", "http://call"), "", ("s", ""), none, torn(file, yours));
        let daemons = "the environment of the daemon";
        check(none, "", ("", "http://section"), ("d", ""), torn(daemons, file));
        check(none, "", ("s", ""), ("", "http://daemon"), torn(file, daemons));
    }
}
