//! Credential hand-over: a client sends along with its launches what its own environment says about models and hosts
//! (keys, addresses, default model). So it does not matter whose environment the daemon was started in. It goes over
//! the control socket only, never over the status port.

use reqwest::Url;

use crate::config::{ProviderVariables, Providers, Settings};
use crate::wire::{AccessView, HandOverView};

const OPENCODE: &str = "opencode";
const EMBEDDED: &str = "embedded";

/// For commands and for the MCP server, which send it over the socket and nowhere else.
pub fn hand_over(settings: &Settings) -> HandOverView {
    let providers = settings.providers.models.iter().map(|(name, access)| {
        let ProviderVariables { key, base_url } = access;
        let key = key.as_ref().map_or("", |key| key.reveal()).to_owned();
        (name.clone(), AccessView { key, base_url: base_url.clone().unwrap_or_default() })
    });
    let opencode = opencode_url(&settings.providers);
    HandOverView {
        model: settings.config.model.clone(),
        // As in the daemon: a server that is named is where agents run, unless something else is said.
        host: match (settings.config.host.as_str(), &opencode) {
            ("", Some(_)) => OPENCODE.to_owned(),
            // Other hosts (scripted) exist only in a daemon that was configured for them.
            (host @ (OPENCODE | EMBEDDED), _) => host.to_owned(),
            (_, _) => String::new(),
        },
        opencode_url: opencode.unwrap_or_default(),
        providers: providers.collect(),
    }
}

/// With the login that the environment has for it: the daemon's own is for other servers.
fn opencode_url(providers: &Providers) -> Option<String> {
    let address = providers.opencode_url.as_ref()?.reveal();
    let mut url = match (Url::parse(address), &providers.opencode_password) {
        (Ok(url), Some(_)) if url.password().is_none() => url,
        // An address that does not parse is passed on: the daemon refuses it with a message that names it.
        (Ok(_) | Err(_), _) => return Some(address.to_owned()),
    };
    let name = providers.opencode_name.as_deref().unwrap_or(OPENCODE);
    let password = providers.opencode_password.as_ref().map(|password| password.reveal());
    let _ = url.set_username(name);
    let _ = url.set_password(password);
    Some(url.to_string())
}
