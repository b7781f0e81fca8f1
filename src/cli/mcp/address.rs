//! Address and token of the daemon's MCP server over HTTP, for clients' configurations. The daemon is started for
//! it: its port and its token are known only once it runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Server;
use super::clients::Client;
use crate::config::Settings;
use crate::daemon::start;
use crate::wire::ServerView;

/// What a path keeps in a query.
const IN_QUERY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The variable with the token, for clients whose entry is in a file of the project.
const VARIABLE: &str = "ASYNCAGENTS_TOKEN";

pub(super) struct Address {
    url: String,
    token: String,
    token_file: PathBuf,
    /// It may be another one with the next daemon.
    port_may_change: bool,
    has_directory: bool,
}

impl Address {
    pub(super) async fn find(
        settings: &Settings,
        client: Client,
        directory: Option<&Path>,
    ) -> anyhow::Result<Address> {
        let api = &settings.config.api;
        ensure!(
            api.enabled,
            "the daemon has no port (`api.enabled = false`); set it to true and run `asyncagents \
             daemon restart`, or install without `--http`"
        );
        start::ensure(settings).await?;
        let announced = settings.home.join("server.json");
        let text = std::fs::read_to_string(&announced).with_context(|| {
            format!(
                "the daemon has not announced its port in `{}`; `asyncagents daemon restart` starts \
                 it anew",
                announced.display()
            )
        })?;
        let server: ServerView = serde_json::from_str(&text)
            .with_context(|| format!("`{}` cannot be read", announced.display()))?;
        let file = match api.token_file.as_str() {
            "" => settings.home.join("token"),
            file => file.into(),
        };
        let token = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read the token in `{}`", file.display()))?;
        let here = client.is_of_a_project().then(std::env::current_dir).transpose();
        let directory = match directory {
            Some(directory) => Some(
                std::path::absolute(directory)
                    .with_context(|| format!("`{}` is no directory", directory.display()))?,
            ),
            None => here.context("cannot find the current directory")?,
        };
        Ok(Address {
            url: url(&server, directory.as_deref()),
            token: token.trim().to_owned(),
            token_file: file,
            port_may_change: api.port != server.port,
            has_directory: directory.is_some(),
        })
    }

    pub(super) fn server(&self, client: Client) -> Server<'static> {
        let authorization = match client.variable(VARIABLE) {
            Some(variable) => format!("Bearer {variable}"),
            None => format!("Bearer {}", self.token),
        };
        Server::Address { url: self.url.clone(), authorization }
    }

    /// What the user has to know about an entry with this address.
    pub(super) fn notes(&self, client: Client, file: &Path) -> Vec<String> {
        let (file, token_file) = (file.display(), self.token_file.display());
        let mut notes = vec![
            match client.variable(VARIABLE) {
                Some(_) => format!(
                    "The entry names {VARIABLE} instead of the daemon's TOKEN, because agents that work \
                     here can read {file}. Start the client with it: `export \
                     {VARIABLE}=$(cat {token_file})`."
                ),
                None => format!(
                    "The entry has the daemon's TOKEN in it: whoever can read {file} can run agents as \
                     you. Do not share or commit it."
                ),
            },
            "The daemon has to run when the client connects; nothing starts it on demand: \
             `asyncagents daemon start`."
                .to_owned(),
        ];
        if !self.has_directory {
            notes.push(
                "Agents work where the client says it does (its roots). If it names none, launches \
                 are refused: install again with `--directory DIR`."
                    .to_owned(),
            );
        }
        if self.port_may_change {
            notes.push(
                "The daemon does not have the port of its configuration (`api.port`), so its address \
                 may be another one after a restart."
                    .to_owned(),
            );
        }
        notes
    }
}

fn url(server: &ServerView, directory: Option<&Path>) -> String {
    let address = server.url.trim_start_matches("http://").parse::<SocketAddr>();
    let address = match address {
        Ok(address) if address.ip().is_unspecified() => {
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()).to_string()
        }
        Ok(address) => address.to_string(),
        Err(_) => server.url.trim_start_matches("http://").to_owned(),
    };
    let directory = directory.map(Path::to_string_lossy);
    let query =
        directory.map(|path| format!("?directory={}", utf8_percent_encode(&path, IN_QUERY)));
    format!("http://{address}/mcp{}", query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_reachable_from_this_machine_and_has_the_directory_encoded() {
        let check = |listens: &str, directory: Option<&str>, expected: &str| {
            let text = format!(
                "{{\"port\": 1, \"pid\": 1, \"startedAt\": \"2026-01-01T00:00:00.000Z\", \
                 \"url\": \"http://{listens}\"}}"
            );
            let server: ServerView = serde_json::from_str(&text).unwrap();
            assert_eq!(url(&server, directory.map(Path::new)), expected);
        };
        check("127.0.0.1:5165", None, "http://127.0.0.1:5165/mcp");
        check("[::1]:5165", None, "http://[::1]:5165/mcp");
        check("0.0.0.0:7", Some("/a b&c/d"), "http://127.0.0.1:7/mcp?directory=/a%20b%26c/d");
    }
}
