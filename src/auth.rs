//! Keys of providers that `asyncagents auth set` keeps: one JSON file in the storage directory that its
//! owner alone may read. It is read anew at every use, so that a key that was set or removed holds at
//! once, without a word to the daemon.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Hundreds of keys. What is larger is not ours.
const LARGEST: u64 = 1024 * 1024;
const LONGEST_KEY: usize = 16 * 1024;

/// A handle; cloning it is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    file: PathBuf,
}

/// What is kept for a provider. Not `Debug`: it may be the secret itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kept {
    Key(String),
    /// A line for `sh` that prints the key.
    Command(String),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the key is empty; give the key alone, in one line")]
    Empty,
    #[error("the key is longer than {LONGEST_KEY} bytes; give the key alone, in one line")]
    TooLong,
    #[error("the key has spaces or control characters in it; give the key alone, in one line")]
    NoKey,
    #[error("cannot read the keys in `{file}`: {why}; repair or delete it, then set them again")]
    Unreadable { file: String, why: String },
    #[error(
        "the keys in `{file}` can be read by others, so none of them is used; `chmod 600 {file}`, and \
         replace the keys if others have seen them"
    )]
    Open { file: String },
    #[error("cannot write `{file}`: {error}; make its directory writable")]
    Unwritable { file: String, error: io::Error },
}

/// Fields of a later version are kept out of the way rather than lost: such a file is not read.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    providers: BTreeMap<String, Kept>,
}

impl Kept {
    /// The key as it came from a person or a pipe, with its line end.
    pub fn key(text: &str) -> Result<Kept, Error> {
        let key = text.trim();
        if key.is_empty() {
            return Err(Error::Empty);
        }
        if key.len() > LONGEST_KEY {
            return Err(Error::TooLong);
        }
        match key.chars().any(|c| c.is_whitespace() || c.is_control()) {
            true => Err(Error::NoKey),
            false => Ok(Kept::Key(key.to_owned())),
        }
    }
}

impl Auth {
    pub fn in_home(home: &Path) -> Auth {
        Auth { file: home.join("auth.json") }
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn get(&self, provider: &str) -> Result<Option<Kept>, Error> {
        Ok(self.read()?.providers.remove(provider))
    }

    /// When a key was last set or removed, in milliseconds; nought when none ever was.
    pub fn changed_at(&self) -> i64 {
        let changed = fs::symlink_metadata(&self.file).and_then(|metadata| metadata.modified());
        let changed = changed.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        changed.map_or(0, |at| i64::try_from(at.as_millis()).unwrap_or(i64::MAX))
    }

    pub fn set(&self, provider: &str, kept: Kept) -> Result<(), Error> {
        self.change(|entries| {
            entries.providers.insert(provider.to_owned(), kept);
        })
    }

    /// `false` when there was none.
    pub fn remove(&self, provider: &str) -> Result<bool, Error> {
        let mut was_there = false;
        self.change(|entries| was_there = entries.providers.remove(provider).is_some())?;
        Ok(was_there)
    }

    /// The providers with something kept.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.read()?.providers.into_keys().collect())
    }

    /// Read, changed and replaced under a lock, so that of two changes none is lost. Readers need none:
    /// the file is replaced whole.
    fn change(&self, change: impl FnOnce(&mut Entries)) -> Result<(), Error> {
        let unwritable = |error| Error::Unwritable { file: self.name(), error };
        let lock = private().create(true).open(self.file.with_extension("lock"));
        let lock = lock.map_err(unwritable)?;
        lock.lock().map_err(unwritable)?;
        let mut entries = self.read()?;
        change(&mut entries);
        let mut text = serde_json::to_string_pretty(&entries).expect("texts are JSON");
        text.push('\n');
        self.replace(&text).map_err(unwritable)
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let new = self.file.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut file = private().create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.file)
    }

    fn read(&self) -> Result<Entries, Error> {
        // The reason never repeats what is in the file.
        let unreadable = |why: &str| Error::Unreadable { file: self.name(), why: why.to_owned() };
        // A pipe without a writer would keep us for ever, and a link may lead anywhere.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entries::default()),
            other => other.map_err(|error| unreadable(&error.to_string()))?,
        };
        let metadata = file.metadata().map_err(|error| unreadable(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(unreadable("it is not a file"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(Error::Open { file: self.name() });
        }
        let mut text = String::new();
        let read = file.take(LARGEST + 1).read_to_string(&mut text);
        read.map_err(|error| unreadable(&error.to_string()))?;
        if text.len() as u64 > LARGEST {
            return Err(unreadable("it is too large"));
        }
        serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            unreadable(&format!("line {line}, column {column} is not what we write"))
        })
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A link that somebody put there would have another file written.
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    options.write(true).mode(0o600).custom_flags(flags);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> (tempfile::TempDir, Auth) {
        let home = tempfile::tempdir().unwrap();
        let auth = Auth::in_home(home.path());
        (home, auth)
    }

    #[test]
    fn a_key_is_kept_in_a_file_of_its_owner_until_it_is_removed() {
        let (_home, auth) = auth();
        assert!(auth.get("openai").unwrap().is_none());
        auth.set("openai", Kept::key(" sk-1\n").unwrap()).unwrap();
        auth.set("work", Kept::Command("pass show work".into())).unwrap();
        assert_eq!(fs::metadata(auth.file()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(auth.get("openai").unwrap() == Some(Kept::Key("sk-1".into())));
        assert_eq!(auth.names().unwrap(), ["openai", "work"]);
        assert!(auth.remove("openai").unwrap());
        assert!(!auth.remove("openai").unwrap());
        assert_eq!(auth.names().unwrap(), ["work"]);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for (text, told) in [
            ("\n", "the key is empty; give the key alone, in one line"),
            (
                "OPENAI_API_KEY = sk-1",
                "the key has spaces or control characters in it; give the key alone, in one line",
            ),
            (
                &"x".repeat(LONGEST_KEY + 1),
                "the key is longer than 16384 bytes; give the key alone, in one line",
            ),
        ] {
            assert_eq!(Kept::key(text).err().unwrap().to_string(), told);
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_not_used_and_not_repeated() {
        let (_home, auth) = auth();
        auth.set("openai", Kept::key("sk-1").unwrap()).unwrap();
        fs::set_permissions(auth.file(), fs::Permissions::from_mode(0o640)).unwrap();
        let file = auth.name();
        let told = auth.get("openai").err().unwrap().to_string();
        let open = format!(
            "the keys in `{file}` can be read by others, so none of them is used; `chmod 600 {file}`, \
             and replace the keys if others have seen them"
        );
        assert_eq!(told, open);
        fs::set_permissions(auth.file(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(auth.file(), "{\"providers\": \"sk-1\"}").unwrap();
        let told = auth.set("openai", Kept::key("sk-2").unwrap()).err().unwrap().to_string();
        let damaged = format!(
            "cannot read the keys in `{file}`: line 1, column 20 is not what we write; repair or \
             delete it, then set them again"
        );
        assert_eq!(told, damaged);
    }
}
