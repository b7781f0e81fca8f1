//! The version handshake: which daemon answers, and whether it and this program understand each
//! other. The health is asked before every command anyway, so this costs no call of its own.

use std::cmp::Ordering;

use serde::Deserialize;

use crate::wire::{HealthView, PROTOCOL};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The part of the health that a client goes by. Every field may be missing, so that daemons of
/// any version can be named; those from before the protocol had a number count as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hello {
    pub version: String,
    pub protocol: u32,
    pub pid: u32,
    /// Why a restart would change something.
    pub restart_needed: Option<String>,
    /// What every command says.
    pub urgent: Vec<String>,
}

/// A daemon of another protocol, in words with the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Incompatible(String);

impl Hello {
    /// Another protocol is an error. With the same one, another version than a mere patch is worth
    /// a line to the user.
    pub fn judge(&self) -> Result<Option<String>, Incompatible> {
        if self.protocol != PROTOCOL {
            let (age, way_out) = words(self.protocol.cmp(&PROTOCOL));
            return Err(Incompatible(format!(
                "the daemon is {age} than this program, and they do not understand each other \
                 ({}); {way_out}",
                self.versions()
            )));
        }
        let (theirs, ours) = (release(&self.version), release(VERSION));
        Ok((theirs != ours).then(|| {
            let (age, way_out) = words(theirs.cmp(&ours));
            format!("the daemon is {age} than this program ({}); {way_out}", self.versions())
        }))
    }

    /// Both sides, for messages.
    pub(super) fn versions(&self) -> String {
        let Hello { version, protocol, .. } = self;
        let version = if version.is_empty() { "unknown" } else { version };
        format!(
            "daemon: version {version}, protocol {protocol}; program: version {VERSION}, protocol \
             {PROTOCOL}"
        )
    }
}

impl From<&HealthView> for Hello {
    fn from(health: &HealthView) -> Hello {
        Hello {
            version: health.version.clone(),
            protocol: health.protocol,
            pid: health.pid,
            restart_needed: health.restart_needed.clone(),
            urgent: health.urgent.clone(),
        }
    }
}

fn words(theirs: Ordering) -> (&'static str, &'static str) {
    match theirs {
        Ordering::Less | Ordering::Equal => {
            ("older", "`asyncagents daemon restart` replaces it, and live runs go on")
        }
        Ordering::Greater => (
            "newer",
            "update this program (`asyncagents daemon restart` would replace the daemon by this \
             older one)",
        ),
    }
}

/// Major and minor number.
fn release(version: &str) -> (u64, u64) {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_another_version_is_named_with_the_way_out_and_a_patch_is_not() {
        let check = |version: &str, protocol: u32, expected: Result<Option<&str>, &str>| {
            let hello = Hello { version: version.into(), protocol, ..Hello::default() };
            let judged = hello.judge().map_err(|error| error.to_string());
            let expected = expected.map(|note| note.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(judged, expected, "{version} {protocol}");
        };
        check(VERSION, 1, Ok(None));
        check("0.1.99", 1, Ok(None));
        check(
            "0.0.9",
            1,
            Ok(Some(
                "the daemon is older than this program (daemon: version 0.0.9, protocol 1; \
                 program: version 0.1.0, protocol 1); `asyncagents daemon restart` replaces it, \
                 and live runs go on",
            )),
        );
        check(
            "0.10.0",
            1,
            Ok(Some(
                "the daemon is newer than this program (daemon: version 0.10.0, protocol 1; \
                 program: version 0.1.0, protocol 1); update this program (`asyncagents daemon \
                 restart` would replace the daemon by this older one)",
            )),
        );
        check(
            "",
            0,
            Err("the daemon is older than this program, and they do not understand each other \
                 (daemon: version unknown, protocol 0; program: version 0.1.0, protocol 1); \
                 `asyncagents daemon restart` replaces it, and live runs go on"),
        );
        check(
            "0.1.0",
            2,
            Err("the daemon is newer than this program, and they do not understand each other \
                 (daemon: version 0.1.0, protocol 2; program: version 0.1.0, protocol 1); update \
                 this program (`asyncagents daemon restart` would replace the daemon by this \
                 older one)"),
        );
    }
}
