//! From the configured host to one that can be talked to.

use std::collections::BTreeMap;
use std::path::Path;

use crate::clock::Clock;
use crate::config::Config;
use crate::host::AnyHost;
use crate::host::scripted::{Remote, Scripted, World};
use crate::supervisor::Hosts;

pub(super) fn connect(config: &Config, clock: &Clock) -> anyhow::Result<Hosts> {
    let (name, host) = match config.host.split_once(':') {
        None if config.host.is_empty() => return Ok(Hosts::default()),
        None if config.host == "scripted" => {
            ("scripted", AnyHost::Scripted(Scripted::Here(World::new(clock.clone()))))
        }
        Some(("scripted", socket)) => {
            let remote = Remote::new(Path::new(socket))?;
            ("scripted", AnyHost::Scripted(Scripted::Process(remote)))
        }
        None | Some(_) => anyhow::bail!(
            "no host `{}`; ASYNCAGENTS_HOST (or `host` in the configuration file) can be \
             `scripted` or `scripted:<socket>`",
            config.host
        ),
    };
    Ok(Hosts { all: BTreeMap::from([(name.to_owned(), host)]), default: Some(name.to_owned()) })
}
