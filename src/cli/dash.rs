//! `asyncagents dash`: opens the dashboard in a browser, with a one-time code that lets the page change things.
//!
//! The code is in the fragment of the address, which browsers do not send to servers, and the page removes it from
//! the address as soon as it has exchanged it.

use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use clap::Args;

use super::{connect, show};
use crate::client::Client;
use crate::config::{Readers, Settings};
use crate::wire::ServerView;

/// Programs that open an address in the user's browser.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

#[derive(Args)]
#[command(after_help = "\
The page is served by the daemon, on this machine only. The code in the address is valid once and
for a minute; with it the page may approve, deny, cancel, send, resume, retry and launch for twelve
hours. Without a code the page is read-only. There is no code while `api.readers` is \"anyone\", and
no page while `api.host` lets other machines connect.

Example:
  asyncagents dash
  asyncagents dash --print   # for another browser of this machine, or over `ssh -L`")]
pub(super) struct Dash {
    /// Print the address instead of opening it
    #[arg(long)]
    print: bool,
}

impl Dash {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        ensure!(
            settings.config.api.enabled,
            "the dashboard needs the daemon's port, which is switched off (`api.enabled = false`); set it \
             to true and run `asyncagents daemon restart`"
        );
        let connection = connect(settings).await?;
        let announced = settings.home.join("server.json");
        let text = std::fs::read_to_string(&announced).with_context(|| {
            format!(
                "the daemon has not announced its port in `{}`; `asyncagents daemon restart` starts it \
                 anew",
                announced.display()
            )
        })?;
        let server: ServerView = serde_json::from_str(&text)
            .with_context(|| format!("`{}` cannot be read", announced.display()))?;
        // What the daemon's guard refuses anyway is said before a browser is opened.
        ensure!(
            is_loopback(&server),
            "the dashboard cannot be opened while other machines can reach the daemon at `{}`: reading \
             then needs the bearer token, which a browser does not send; set `api.host` to `127.0.0.1` \
             and run `asyncagents daemon restart`",
            server.url
        );
        let address = if settings.config.api.readers == Readers::Anyone {
            show::note(
                "the page will be read-only, because every user of this machine may read it \
                 (`api.readers = \"anyone\"`)",
            );
            format!("{}/", server.url)
        } else {
            let code = connection.call(Client::dash_code).await?.code;
            format!("{}/#code={code}", server.url)
        };
        if self.print || !opens(&address) {
            if !self.print {
                show::note("no browser could be opened from here; open this address in one:");
            }
            show::line(&address)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn is_loopback(server: &ServerView) -> bool {
    let address = server.url.strip_prefix("http://").map(str::parse::<SocketAddr>);
    address.is_some_and(|address| address.is_ok_and(|address| address.ip().is_loopback()))
}

fn opens(address: &str) -> bool {
    OPENERS.iter().any(|opener| {
        let mut command = Command::new(opener);
        command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}
