//! The version handshake: which daemon answers, and whether it and this program speak the same protocol. It is
//! part of the health, which every command asks for first, so it costs no call of its own.
//!
//! After an upgrade the daemon of the old version still runs. Another protocol number is an error with the
//! way out; another minor version with the same protocol is a note; a patch is nothing.

use std::cmp::Ordering;

use serde::Deserialize;

use crate::wire::{HealthView, PROTOCOL};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a client reads of the health. Every field may be missing, so that the handshake works with daemons of
/// any version; those from before the protocol had a number count as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handshake {
    pub version: String,
    pub protocol: u32,
    pub pid: u32,
    /// Why a restart would change something.
    pub restart_needed: Option<String>,
    /// Warnings that every command prints.
    pub urgent: Vec<String>,
}

/// The daemon speaks another protocol; the text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VersionMismatch(String);

impl Handshake {
    /// Compares the versions: an error for another protocol, a note for another minor version.
    pub fn judge(&self) -> Result<Option<String>, VersionMismatch> {
        if self.protocol != PROTOCOL {
            let (age, way_out) = words(self.protocol.cmp(&PROTOCOL));
            return Err(VersionMismatch(format!(
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

    /// The versions of both sides, for messages.
    pub(super) fn versions(&self) -> String {
        let Handshake { version, protocol, .. } = self;
        let version = if version.is_empty() { "unknown" } else { version };
        format!(
            "daemon: version {version}, protocol {protocol}; program: version {VERSION}, protocol \
             {PROTOCOL}"
        )
    }
}

impl From<&HealthView> for Handshake {
    fn from(health: &HealthView) -> Handshake {
        Handshake {
            version: health.version.clone(),
            protocol: health.protocol,
            pid: health.pid,
            restart_needed: health.restart_needed.clone(),
            urgent: health.urgent.clone(),
        }
    }
}

/// What an older or newer daemon is called, and the way out. The newer one of two stays.
fn words(theirs: Ordering) -> (&'static str, &'static str) {
    match theirs {
        // Equal does not occur: it is only asked for when the two differ.
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
            let handshake = Handshake { version: version.into(), protocol, ..Handshake::default() };
            let judged = handshake.judge().map_err(|error| error.to_string());
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
