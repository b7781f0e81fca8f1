//! Providers: the address, wire format and key of each. Built-in ones are rows of `KNOWN`; the
//! configuration can add others. Addresses come in many spellings (with or without the API version, with
//! the endpoint, `OLLAMA_HOST` as a bare port) and are normalized here.

mod key;
mod sources;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::Error;

pub use key::Key;
pub use sources::{KeyOrigin, ProviderAccess, Sources};

/// The wire format that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// OpenAI's chat completions.
    OpenAi,
    /// OpenAI's responses.
    #[serde(rename = "openai-responses")]
    Responses,
    /// Anthropic's messages.
    Anthropic,
    /// Google's `streamGenerateContent`.
    Gemini,
}

/// A provider with the one key and address that are to be used.
#[derive(Clone, PartialEq, Eq)]
pub struct Provider {
    pub name: String,
    pub wire: Wire,
    /// `None` for the provider's public address.
    pub base_url: Option<String>,
    pub key: Key,
    /// Where both came from.
    pub origin: KeyOrigin,
}

/// A built-in provider.
struct KnownProvider {
    name: &'static str,
    wire: Wire,
    base_url: &'static str,
    /// The environment variable for its key; `None` if it needs no key.
    key_variable: Option<&'static str>,
    url_variable: &'static str,
}

const KNOWN: [KnownProvider; 6] = [
    KnownProvider {
        name: "anthropic",
        wire: Wire::Anthropic,
        base_url: "https://api.anthropic.com",
        key_variable: Some("ANTHROPIC_API_KEY"),
        url_variable: "ANTHROPIC_BASE_URL",
    },
    KnownProvider {
        name: "gemini",
        wire: Wire::Gemini,
        base_url: "https://generativelanguage.googleapis.com",
        key_variable: Some("GEMINI_API_KEY"),
        url_variable: "GEMINI_BASE_URL",
    },
    KnownProvider {
        name: "ollama",
        wire: Wire::OpenAi,
        base_url: "http://127.0.0.1:11434",
        key_variable: None,
        url_variable: "OLLAMA_HOST",
    },
    KnownProvider {
        name: "openai",
        wire: Wire::OpenAi,
        base_url: "https://api.openai.com/v1",
        key_variable: Some("OPENAI_API_KEY"),
        url_variable: "OPENAI_BASE_URL",
    },
    KnownProvider {
        name: "openai-responses",
        wire: Wire::Responses,
        base_url: "https://api.openai.com/v1",
        key_variable: Some("OPENAI_API_KEY"),
        url_variable: "OPENAI_BASE_URL",
    },
    KnownProvider {
        name: "openrouter",
        wire: Wire::OpenAi,
        base_url: "https://openrouter.ai/api/v1",
        key_variable: Some("OPENROUTER_API_KEY"),
        url_variable: "OPENROUTER_BASE_URL",
    },
];

fn known(name: &str) -> Option<&'static KnownProvider> {
    KNOWN.iter().find(|known| known.name == name)
}

impl Wire {
    /// The version segment of its API, which addresses may leave out.
    pub(in crate::agent::model) fn version(self) -> &'static str {
        match self {
            Wire::OpenAi | Wire::Responses | Wire::Anthropic => "v1",
            Wire::Gemini => "v1beta",
        }
    }

    /// The path of the endpoint, below the version.
    pub(in crate::agent::model) fn endpoint(self) -> Option<&'static str> {
        match self {
            Wire::OpenAi => Some("/chat/completions"),
            Wire::Responses => Some("/responses"),
            Wire::Anthropic => Some("/messages"),
            // Its path contains the model's name.
            Wire::Gemini => None,
        }
    }
}

impl Provider {
    /// The built-in providers, which need no configuration besides their variables.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|known| known.name)
    }

    /// A built-in provider, or one that speaks OpenAI's chat completions, as most servers do.
    pub fn named(name: &str) -> Provider {
        let wire = known(name).map_or(Wire::OpenAi, |known| known.wire);
        let name = name.to_owned();
        Provider { name, wire, base_url: None, key: Key::None, origin: KeyOrigin::Daemon }
    }

    /// Whether it is a built-in provider at its public address. Only there its listed prices apply.
    pub(super) fn is_public(&self) -> bool {
        self.base_url.is_none() && known(&self.name).is_some()
    }

    /// The setting or variable that its address comes from, for error texts.
    pub(super) fn url_setting(&self) -> String {
        match (known(&self.name), self.origin) {
            (Some(known), KeyOrigin::Call | KeyOrigin::Daemon) => known.url_variable.to_owned(),
            (Some(_), KeyOrigin::Stored | KeyOrigin::Section) | (None, _) => {
                format!("providers.{}.base_url", self.name)
            }
        }
    }

    /// The setting, variable or command that its key comes from, for error texts.
    fn key_setting(&self) -> String {
        let variable = known(&self.name).and_then(|known| known.key_variable);
        match (self.origin, variable) {
            (KeyOrigin::Stored, _) => format!("asyncagents auth set {}", self.name),
            (KeyOrigin::Call | KeyOrigin::Daemon, Some(variable)) => variable.to_owned(),
            (KeyOrigin::Section, _) | (_, None) => {
                format!("providers.{}.{}", self.name, self.key.field())
            }
        }
    }

    /// Its base address, with the version of its API and a slash at the end.
    pub(super) fn url(&self) -> Result<Url, Error> {
        let own = known(&self.name).map(|known| known.base_url);
        let Some(text) = self.base_url.as_deref().or(own) else {
            let (name, setting) = (&self.name, self.url_setting());
            return Err(Error::Unusable(format!("`{name}` has no address; set `{setting}`")));
        };
        // Its variable is not always a URL.
        let text = if self.name == "ollama" { ollama(text) } else { text.to_owned() };
        let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        // The value is not repeated in the error: it may contain a password.
        let url = url.ok_or_else(|| {
            let setting = self.url_setting();
            Error::Unusable(format!(
                "`{setting}` is not a URL; set it to one like `http://127.0.0.1:11434/v1`"
            ))
        })?;
        Ok(with_version(url, self.wire))
    }

    /// Reads the key; `None` if the provider needs none, which is assumed of every address that is not
    /// the public one. Blocking: it may read a file or run a command.
    pub(super) fn read_key(&self) -> Result<Option<String>, Error> {
        let setting = self.key_setting();
        if let Some(key) = self.key.read(&setting)? {
            return Ok(Some(key));
        }
        let variables =
            known(&self.name).and_then(|known| Some((known.key_variable?, known.url_variable)));
        // At another address (a proxy, a local server) a key may not be needed; the server will say so.
        match variables.filter(|_| self.base_url.is_none()) {
            None => Ok(None),
            Some((key, address)) => Err(Error::NoKey {
                provider: self.name.clone(),
                way_out: format!(
                    "run `asyncagents auth set {}`, or set `{key}` where you launch, or `{address}` to a \
                     server that needs none",
                    self.name
                ),
            }),
        }
    }

    /// The key contains characters that cannot be in an HTTP header.
    pub(super) fn unsendable_key(&self) -> Error {
        let setting = self.key_setting();
        Error::Unusable(format!("`{setting}` cannot be sent as it is; set it to the key alone"))
    }
}

/// Adds the API version to an address that has none. An address that ends with the endpoint is taken as
/// it is, without the endpoint: not every server has a version in its paths.
fn with_version(mut url: Url, wire: Wire) -> Url {
    let path = url.path().trim_end_matches('/');
    let is_version = |segment: &str| {
        let mut letters = segment.chars();
        letters.next() == Some('v') && letters.next().is_some_and(|next| next.is_ascii_digit())
    };
    let path = match wire.endpoint().and_then(|endpoint| path.strip_suffix(endpoint)) {
        Some(path) => format!("{path}/"),
        None if path.split('/').any(is_version) => format!("{path}/"),
        None => format!("{path}/{}/", wire.version()),
    };
    // `Url::join` replaces everything after the last slash, so the path has to end with one.
    url.set_path(&path);
    url
}

/// Normalizes `OLLAMA_HOST`, which may be a host, a port or both. Ollama uses the same variable for the
/// address it listens on, so `0.0.0.0` means this machine.
fn ollama(host: &str) -> String {
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, port) = match place.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            (name, port)
        }
        Some(_) | None if scheme == "https" => (place, "443"),
        Some(_) | None => (place, "11434"),
    };
    let name = if matches!(name, "" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { name };
    format!("{scheme}://{name}:{port}/{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(name: &str, base_url: &str) -> String {
        let base_url = Some(base_url.to_owned()).filter(|url| !url.is_empty());
        let url = Provider { base_url, ..Provider::named(name) }.url();
        url.map_or_else(|error| error.to_string(), |url| url.to_string())
    }

    #[test]
    fn base_urls_are_accepted_with_and_without_their_version() {
        for (name, base_url, expected) in [
            ("openai", "", "https://api.openai.com/v1/"),
            ("openai", "http://127.0.0.1:1", "http://127.0.0.1:1/v1/"),
            ("openai", "http://127.0.0.1:1/", "http://127.0.0.1:1/v1/"),
            ("openai", "http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1/"),
            ("openai", "http://127.0.0.1:1/v1/", "http://127.0.0.1:1/v1/"),
            ("openai", "https://a.example/api/paas/v4", "https://a.example/api/paas/v4/"),
            ("openai", "https://a.example/v1beta/openai", "https://a.example/v1beta/openai/"),
            ("openai", "https://a.example/x/chat/completions", "https://a.example/x/"),
            ("openrouter", "", "https://openrouter.ai/api/v1/"),
            ("openrouter", "https://openrouter.ai/api", "https://openrouter.ai/api/v1/"),
            ("anthropic", "", "https://api.anthropic.com/v1/"),
            ("anthropic", "http://127.0.0.1:1/v1", "http://127.0.0.1:1/v1/"),
            ("gemini", "", "https://generativelanguage.googleapis.com/v1beta/"),
            ("gemini", "http://127.0.0.1:1/v1beta/", "http://127.0.0.1:1/v1beta/"),
            ("ollama", "", "http://127.0.0.1:11434/v1/"),
            ("ollama", "0.0.0.0", "http://127.0.0.1:11434/v1/"),
            ("ollama", ":8080", "http://127.0.0.1:8080/v1/"),
            ("ollama", "gpu.example:8080", "http://gpu.example:8080/v1/"),
            ("ollama", "https://gpu.example", "https://gpu.example/v1/"),
            ("work", "http://127.0.0.1:1", "http://127.0.0.1:1/v1/"),
            ("work", "", "`work` has no address; set `providers.work.base_url`"),
        ] {
            assert_eq!(url_of(name, base_url), expected, "{name} {base_url}");
        }
    }
}
