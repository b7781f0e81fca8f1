//! Precedence of credentials: the caller's environment, the credential store, the configuration, the
//! daemon's environment. Key and address always come from the same place, so that a key is never sent to
//! a server that was named for another key; a key from one place and an address from another is an error.

use super::Wire;
use super::{Key, Provider, known};
use crate::agent::model::Error;

/// The key and address that one place has for a provider.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProviderAccess {
    pub key: Key,
    pub base_url: Option<String>,
}

/// Where a key came from, or the address of a server that needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// The environment of the client that launches.
    Call,
    /// The credential store of `asyncagents auth set`.
    Stored,
    /// `[providers.NAME]` in the configuration file.
    Section,
    /// The environment of the daemon.
    Daemon,
}

/// What is known of a provider without a caller.
#[derive(Clone)]
pub struct Sources {
    pub name: String,
    pub wire: Wire,
    pub section: ProviderAccess,
    pub daemon: ProviderAccess,
}

/// Which of key and address a place has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessParts {
    Nothing,
    Key,
    Address,
    Both,
}

impl ProviderAccess {
    pub fn is_empty(&self) -> bool {
        self.given() == AccessParts::Nothing
    }

    fn given(&self) -> AccessParts {
        match (self.key.is_given(), self.base_url.is_some()) {
            (false, false) => AccessParts::Nothing,
            (true, false) => AccessParts::Key,
            (false, true) => AccessParts::Address,
            (true, true) => AccessParts::Both,
        }
    }
}

impl KeyOrigin {
    fn describe(self) -> &'static str {
        match self {
            KeyOrigin::Call => "your environment",
            KeyOrigin::Stored => "`asyncagents auth`",
            KeyOrigin::Section => "the configuration file",
            KeyOrigin::Daemon => "the environment of the daemon",
        }
    }
}

impl Sources {
    /// A built-in provider, or one that speaks OpenAI's chat completions, as most servers do.
    pub fn named(name: &str) -> Sources {
        let wire = known(name).map_or(Wire::OpenAi, |known| known.wire);
        Sources {
            name: name.to_owned(),
            wire,
            section: ProviderAccess::default(),
            daemon: ProviderAccess::default(),
        }
    }

    /// Chooses the key and address to use. The caller's environment comes before the configuration, and
    /// that before the daemon's environment, which counts only for callers that have nothing set: it is
    /// that of whoever happened to start the daemon. A complete configuration comes before only a key or
    /// only an address in the caller's environment, which may be set for other programs. A key from one
    /// place is never combined with an address from another: nobody said that they belong together.
    pub fn choose(&self, call: &ProviderAccess, kept: Key) -> Result<Provider, Error> {
        let origin = if kept.is_given() { KeyOrigin::Stored } else { KeyOrigin::Section };
        let key = if kept.is_given() { kept } else { self.section.key.clone() };
        let configured = (origin, ProviderAccess { key, base_url: self.section.base_url.clone() });
        let (first, second) = match call.is_empty() {
            false => ((KeyOrigin::Call, call.clone()), configured),
            true => (configured, (KeyOrigin::Daemon, self.daemon.clone())),
        };
        // `first` is preferred, unless it has only a half and `second` both; see above.
        let (origin, access) = match (first.1.given(), second.1.given()) {
            (AccessParts::Nothing, _) => second,
            (_, AccessParts::Nothing) | (AccessParts::Both, _) => first,
            // The daemon's environment never takes precedence over the configuration.
            (AccessParts::Key | AccessParts::Address, AccessParts::Both)
                if second.0 == KeyOrigin::Daemon =>
            {
                first
            }
            (AccessParts::Key | AccessParts::Address, AccessParts::Both) => second,
            (AccessParts::Key, AccessParts::Key) | (AccessParts::Address, AccessParts::Address) => {
                first
            }
            (AccessParts::Key, AccessParts::Address) => return Err(self.torn(first.0, second.0)),
            (AccessParts::Address, AccessParts::Key) => return Err(self.torn(second.0, first.0)),
        };
        let ProviderAccess { key, base_url } = access;
        Ok(Provider { name: self.name.clone(), wire: self.wire, base_url, key, origin })
    }

    /// The error for a key and an address from different places.
    fn torn(&self, key: KeyOrigin, address: KeyOrigin) -> Error {
        let name = &self.name;
        // A stored key goes together with the section's address, so the address is the section's.
        let address = if address == KeyOrigin::Stored { KeyOrigin::Section } else { address };
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

    fn access(key: &str, base_url: &str) -> ProviderAccess {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ProviderAccess { key: given(key).map_or(Key::None, Key::Text), base_url: given(base_url) }
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
        let chosen =
            chosen.map(|chosen| ProviderAccess { key: chosen.key, base_url: chosen.base_url });
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
