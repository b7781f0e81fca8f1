//! Access to model servers: the providers' own environment variables, and the sections `providers.NAME` of the file.
//! Keys are wrapped in [`Secret`], which has no readable `Debug`, so that no log or error shows one by accident.

use std::collections::BTreeMap;

use super::section::{Rule, section};
use super::{Environment, Error};
use crate::agent::model::provider::Wire;

/// Provider, variables of its key (the first that is set counts), variable of its address.
const VARIABLES: [(&str, &[&str], &str); 6] = [
    ("anthropic", &["ANTHROPIC_API_KEY"], "ANTHROPIC_BASE_URL"),
    ("gemini", &["GEMINI_API_KEY", "GOOGLE_API_KEY"], "GEMINI_BASE_URL"),
    ("ollama", &[], "OLLAMA_HOST"),
    ("openai", &["OPENAI_API_KEY"], "OPENAI_BASE_URL"),
    ("openai-responses", &["OPENAI_API_KEY"], "OPENAI_BASE_URL"),
    ("openrouter", &["OPENROUTER_API_KEY"], "OPENROUTER_BASE_URL"),
];

/// The names of all of them: they are kept from commands and from a daemon that is started on demand.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    VARIABLES.into_iter().flat_map(|(_, keys, address)| keys.iter().copied().chain([address]))
}

/// How to reach servers, in the providers' own variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Providers {
    /// By the name of the provider; one without any variable is left out.
    pub models: BTreeMap<String, ProviderVariables>,
    /// `ASYNCAGENTS_OPENCODE_URL`, which may hold a login.
    pub opencode_url: Option<Secret>,
    /// `OPENCODE_SERVER_PASSWORD`
    pub opencode_password: Option<Secret>,
    /// `OPENCODE_SERVER_USERNAME`
    pub opencode_name: Option<String>,
}

/// What the environment says about one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderVariables {
    pub key: Option<Secret>,
    pub base_url: Option<String>,
}

/// A secret, redacted in `Debug`; without `Display` or `Serialize`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

section! {
    /// What is empty is not set. The commented file has an example instead.
    pub struct Provider {
        kind: Option<Wire> = None,
        base_url: String = String::new(),
        key_file: String = String::new(),
        #[rule(Rule::NotWith("key_file"))]
        key_command: String = String::new(),
    }
}

impl Providers {
    pub(super) fn of(environment: &Environment) -> Result<Providers, Error> {
        let text = |name: &str| Ok::<_, Error>(environment.get(name)?.map(str::to_owned));
        let mut models = BTreeMap::new();
        for (name, keys, address) in VARIABLES {
            let mut access = ProviderVariables { key: None, base_url: text(address)? };
            // The first variable that is set wins. Empty ones count as unset (`Environment::get`).
            for key in keys {
                access.key = access.key.or(text(key)?.map(Secret));
            }
            if access != ProviderVariables::default() {
                models.insert(name.to_owned(), access);
            }
        }
        Ok(Providers {
            models,
            opencode_url: text("ASYNCAGENTS_OPENCODE_URL")?.map(Secret),
            opencode_password: text("OPENCODE_SERVER_PASSWORD")?.map(Secret),
            opencode_name: text("OPENCODE_SERVER_USERNAME")?,
        })
    }
}

impl Secret {
    #[cfg(test)]
    pub(super) fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}
