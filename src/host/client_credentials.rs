//! Per-call credentials and defaults, taken from the calling client's environment and handed over with its
//! launches. They live in memory only: nothing here implements `Serialize`, and `Debug` shows names, never
//! values, so that no key can reach the store or a log. A restart of the daemon loses them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::agent::model::provider::{Key, ProviderAccess};

/// A handle; cloning it is cheap.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientCredentials(Arc<Inner>);

#[derive(Default, PartialEq, Eq)]
struct Inner {
    model: Option<String>,
    host: Option<String>,
    opencode: Option<String>,
    providers: BTreeMap<String, ProviderAccess>,
}

/// The parts, as a client sends them. An empty string means "not set".
#[derive(Default)]
pub struct Parts {
    pub model: String,
    pub host: String,
    pub opencode: String,
    /// Name, key and address.
    pub providers: Vec<(String, String, String)>,
}

impl From<Parts> for ClientCredentials {
    fn from(parts: Parts) -> ClientCredentials {
        let given = |text: String| Some(text).filter(|text| !text.trim().is_empty());
        let access = |(name, key, base_url): (String, String, String)| {
            let key = given(key).map_or(Key::None, Key::Text);
            (name, ProviderAccess { key, base_url: given(base_url) })
        };
        let providers = parts.providers.into_iter().map(access);
        ClientCredentials(Arc::new(Inner {
            model: given(parts.model),
            host: given(parts.host),
            opencode: given(parts.opencode),
            providers: providers.filter(|(_, access)| !access.is_empty()).collect(),
        }))
    }
}

impl ClientCredentials {
    /// Merges: these values win, `earlier` fills the gaps.
    pub fn over(&self, earlier: &ClientCredentials) -> ClientCredentials {
        let mut providers = earlier.0.providers.clone();
        providers.extend(self.0.providers.clone());
        ClientCredentials(Arc::new(Inner {
            model: self.0.model.clone().or_else(|| earlier.0.model.clone()),
            host: self.0.host.clone().or_else(|| earlier.0.host.clone()),
            opencode: self.0.opencode.clone().or_else(|| earlier.0.opencode.clone()),
            providers,
        }))
    }

    /// Only the credentials of these providers; model, host and server are dropped.
    pub fn only(&self, names: impl Fn(&str) -> bool) -> ClientCredentials {
        let providers = self.0.providers.iter().filter(|(name, _)| names(name));
        let providers = providers.map(|(name, access)| (name.clone(), access.clone())).collect();
        ClientCredentials(Arc::new(Inner { providers, ..Inner::default() }))
    }

    /// The default model, for agents that name none.
    pub fn model(&self) -> Option<&str> {
        self.0.model.as_deref()
    }

    /// The default host, for launches that name none.
    pub fn host(&self) -> Option<&str> {
        self.0.host.as_deref()
    }

    /// The address of the server on which its launches are to work, for hosts that have servers.
    pub fn server(&self) -> Option<&str> {
        self.0.opencode.as_deref()
    }

    /// Keys and base URLs, by the name of the provider.
    pub fn providers(&self) -> &BTreeMap<String, ProviderAccess> {
        &self.0.providers
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address of an OpenCode server may hold a password, so only its presence is shown.
        let Inner { model, host, opencode, providers } = &*self.0;
        f.debug_struct("ClientCredentials")
            .field("model", model)
            .field("host", host)
            .field("opencode", &opencode.is_some())
            .field("providers", &providers.keys())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_output_of_credentials_contains_no_secret() {
        let handed = ClientCredentials::from(Parts {
            model: "openai/large".into(),
            opencode: "http://user:secret@host".into(),
            providers: vec![
                ("openai".into(), "secret".into(), "http://secret@host".into()),
                ("gemini".into(), " ".into(), String::new()),
            ],
            ..Parts::default()
        });
        let shown = "ClientCredentials { model: Some(\"openai/large\"), host: None, opencode: true, \
                     providers: [\"openai\"] }";
        assert_eq!(format!("{handed:?}"), shown);
    }
}
