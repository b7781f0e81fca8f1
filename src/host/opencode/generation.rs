//! Which versions of OpenCode this host speaks with, and the words for one it does not. Pure.
//!
//! OpenCode 2 has other routes, all below `/api`, and answers those of version 1 with 404: seen on its preview.

/// What is supported, in words.
pub const SUPPORTED: &str = "OpenCode 1.18 and later versions of 1.x";

const OLDEST: (u64, u64) = (1, 18);
/// The first major version that is of another generation.
const NEXT_GENERATION: u64 = 2;

/// Where a version stands beside those that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Supported,
    /// It differs in parts of the protocol.
    TooOld,
    /// Of a generation that is not known here.
    TooNew,
    /// A custom build, for example.
    Unreadable,
}

impl Support {
    pub fn of(version: &str) -> Support {
        let mut numbers = version.split('.').map(|part| part.parse::<u64>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), _) if major >= NEXT_GENERATION => Support::TooNew,
            (Some(major), Some(minor)) if (major, minor) >= OLDEST => Support::Supported,
            (Some(_), Some(_)) => Support::TooOld,
            (_, _) => Support::Unreadable,
        }
    }
}

/// What is wrong with a server of this version, for after its name. `None`: nothing, as far as it can be told.
pub(super) fn objection(version: &str) -> Option<String> {
    match Support::of(version) {
        // A version that cannot be read is no reason to refuse: a server of the next generation is told by
        // its routes as well.
        Support::Supported | Support::Unreadable => None,
        Support::TooOld => {
            Some(format!("is OpenCode {version}, which is too old; supported is {SUPPORTED}"))
        }
        Support::TooNew => Some(foreign(&format!("OpenCode {version}"))),
    }
}

/// The words for a server that has the routes of OpenCode 2 and does not tell its version.
pub(super) fn next_generation() -> String {
    foreign("OpenCode 2")
}

fn foreign(what: &str) -> String {
    format!(
        "is {what}, a generation that asyncagents does not know yet; supported is {SUPPORTED}. \
         Start such a server, or use another host"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_from_1_18_up_to_2_are_supported() {
        let table = [
            ("1.18.0", Support::Supported),
            ("1.18.34", Support::Supported),
            ("1.19.3", Support::Supported),
            ("1.17.9", Support::TooOld),
            ("0.99.1", Support::TooOld),
            ("2.0.0", Support::TooNew),
            ("2", Support::TooNew),
            ("3.1.4-beta.1", Support::TooNew),
            ("local", Support::Unreadable),
            ("", Support::Unreadable),
        ];
        for (version, expected) in table {
            assert_eq!(Support::of(version), expected, "{version}");
            let is_refused = matches!(expected, Support::TooOld | Support::TooNew);
            let objection = objection(version);
            assert_eq!(objection.is_some(), is_refused, "{version}");
            assert!(objection.is_none_or(|why| why.contains(SUPPORTED) && why.contains(version)));
        }
    }
}
