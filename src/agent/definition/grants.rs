//! The sandbox grants of an agent file: the keys `network`, `readable` and `writable`. What of them is
//! given is decided by the sandbox; a file from a workspace gets less.

use std::path::PathBuf;

use super::Error;
use super::yaml::Yaml;
use crate::sandbox::{Grants, Network};

const PATHS: &str = "paths that begin with `/` or `~/`, in a list or with commas between them";

pub(super) fn read_grants(front: &Yaml) -> Result<Grants, Error> {
    let network = match front.text("network")?.as_deref() {
        None => None,
        Some("on") => Some(Network::On),
        Some("off") => Some(Network::Off),
        Some(_) => return Err(front.unfit_at("network", "`on` or `off`")),
    };
    let (readable, writable) = (paths(front, "readable")?, paths(front, "writable")?);
    Ok(Grants { readable, writable, network, from_workspace: false })
}

/// Paths in a list, or in one text with commas; each must be absolute or below `~`.
fn paths(front: &Yaml, key: &str) -> Result<Vec<PathBuf>, Error> {
    let unfit = || front.unfit_at(key, PATHS);
    let texts: Vec<&str> = match front.get(key) {
        None => Vec::new(),
        Some(Yaml::Text(text)) => text.split(',').collect(),
        Some(Yaml::List(members)) => {
            let text = |member: &'_ Yaml| match member {
                Yaml::Text(_) => Ok(()),
                Yaml::Nothing | Yaml::Flag(_) | Yaml::List(_) | Yaml::Map(_) => Err(unfit()),
            };
            members.iter().try_for_each(text)?;
            members.iter().filter_map(Yaml::as_text).collect()
        }
        Some(Yaml::Nothing | Yaml::Flag(_) | Yaml::Map(_)) => return Err(unfit()),
    };
    let texts = texts.into_iter().map(str::trim);
    texts
        .map(|path| match path.starts_with('/') || path.starts_with("~/") {
            true => Ok(PathBuf::from(path)),
            false => Err(unfit()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_ask_for_more_paths_and_for_less_network() {
        let check = |front: &str, expected: Result<Grants, &str>| {
            let found = read_grants(&Yaml::read(front).unwrap());
            let expected = expected.map_err(|error| format!("says that {error}"));
            assert_eq!(found.map_err(|error| error.to_string()), expected, "{front}");
        };
        let grants = |readable: &[&str], writable: &[&str], network| Grants {
            readable: readable.iter().map(PathBuf::from).collect(),
            writable: writable.iter().map(PathBuf::from).collect(),
            network,
            from_workspace: false,
        };
        check("description: x", Ok(Grants::default()));
        check("network: off", Ok(grants(&[], &[], Some(Network::Off))));
        check("network: on", Ok(grants(&[], &[], Some(Network::On))));
        check("readable: ~/data, /srv/x", Ok(grants(&["~/data", "/srv/x"], &[], None)));
        check("writable: [~/out]", Ok(grants(&[], &["~/out"], None)));
        check("network: maybe", Err("`network` is `maybe`; give `on` or `off`"));
        let wrong = |found: &str| format!("`readable` is {found}; give {PATHS}");
        check("readable: data", Err(&wrong("`data`")));
        check("readable: [[a]]", Err(&wrong("a list")));
        check("readable: true", Err(&wrong("`true`")));
    }
}
