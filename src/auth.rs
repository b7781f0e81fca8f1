//! The credential store behind `asyncagents auth set`: API keys of model providers in one JSON file of
//! the storage directory, mode 0600. The file is read at every use, so a key that was set or
//! removed takes effect at once, without a restart of the daemon. A file that others can read, or that
//! is damaged, is refused as a whole, and no error text ever repeats its contents.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::private_file::{self, PrivateFile};

/// Room for hundreds of keys. A larger file was not written by us and is not read.
const LARGEST: usize = 1024 * 1024;
/// Far above any real key; catches a file that was piped in by mistake.
const LONGEST_KEY: usize = 16 * 1024;

/// A handle to the store; nothing is cached, and cloning it is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    file: PrivateFile,
}

/// How to get the key of one provider. Not `Debug`: it may be the secret itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credential {
    Key(String),
    /// A command line for `sh` that prints the key, such as one of a password manager.
    Command(String),
}

/// Why a key is refused or the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the key is empty; give the key alone, in one line")]
    Empty,
    #[error("the key is longer than {LONGEST_KEY} bytes; give the key alone, in one line")]
    TooLong,
    #[error("the key has spaces or control characters in it; give the key alone, in one line")]
    NotAKey,
    #[error("cannot read the keys in `{file}`: {why}; repair or delete it, then set them again")]
    Unreadable { file: String, why: String },
    #[error(
        "the keys in `{file}` can be read by others, so none of them is used; `chmod 600 {file}`, and \
         replace the keys if others have seen them"
    )]
    Exposed { file: String },
    #[error("cannot write `{file}`: {error}; make its directory writable")]
    Unwritable { file: String, error: io::Error },
}

/// The format of the file. Unknown fields are an error: rewriting the file would drop what a later
/// version put there.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    providers: BTreeMap<String, Credential>,
}

impl Credential {
    /// A key as it was typed or piped in; surrounding white space is removed.
    pub fn key(text: &str) -> Result<Credential, Error> {
        let key = text.trim();
        if key.is_empty() {
            return Err(Error::Empty);
        }
        if key.len() > LONGEST_KEY {
            return Err(Error::TooLong);
        }
        // It will be the value of an HTTP header, and `NAME=value` lines are a common mistake.
        match key.chars().any(|c| c.is_whitespace() || c.is_control()) {
            true => Err(Error::NotAKey),
            false => Ok(Credential::Key(key.to_owned())),
        }
    }
}

impl Auth {
    pub fn in_home(home: &Path) -> Auth {
        Auth { file: PrivateFile::secret(home.join("auth.json"), LARGEST) }
    }

    pub fn file(&self) -> &Path {
        self.file.path()
    }

    pub fn get(&self, provider: &str) -> Result<Option<Credential>, Error> {
        Ok(self.read()?.providers.remove(provider))
    }

    /// When a key was last set or removed, in milliseconds since 1970: the modification time of the
    /// file. 0 when there is no file.
    pub fn changed_at(&self) -> i64 {
        // `symlink_metadata`, because the file itself is never read through a symlink either.
        let changed = fs::symlink_metadata(self.file()).and_then(|metadata| metadata.modified());
        let changed = changed.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        changed.map_or(0, |at| i64::try_from(at.as_millis()).unwrap_or(i64::MAX))
    }

    pub fn set(&self, provider: &str, kept: Credential) -> Result<(), Error> {
        self.change(|entries| {
            entries.providers.insert(provider.to_owned(), kept);
        })
    }

    /// `false` when no key was stored for the provider.
    pub fn remove(&self, provider: &str) -> Result<bool, Error> {
        let mut was_there = false;
        self.change(|entries| was_there = entries.providers.remove(provider).is_some())?;
        Ok(was_there)
    }

    /// The providers with a stored credential.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.read()?.providers.into_keys().collect())
    }

    fn change(&self, change: impl FnOnce(&mut Entries)) -> Result<(), Error> {
        let unwritable = |error| Error::Unwritable { file: self.name(), error };
        // Read under the lock: two `auth set` at once must not lose each other's key.
        let lock = self.file.lock().map_err(unwritable)?;
        let mut entries = self.read()?;
        change(&mut entries);
        let mut text = serde_json::to_string_pretty(&entries).expect("texts are JSON");
        text.push('\n');
        lock.replace(&text).map_err(unwritable)
    }

    fn read(&self) -> Result<Entries, Error> {
        // Only line and column of a parse error are told: serde's message may quote a key.
        let unreadable = |why: String| Error::Unreadable { file: self.name(), why };
        let text = match self.file.read() {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(Entries::default()),
            Err(private_file::Error::Exposed) => return Err(Error::Exposed { file: self.name() }),
            Err(private_file::Error::Io(error)) => return Err(unreadable(error.to_string())),
        };
        serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            unreadable(format!("line {line}, column {column} is not in the format that `asyncagents auth set` writes"))
        })
    }

    fn name(&self) -> String {
        self.file().display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn auth() -> (tempfile::TempDir, Auth) {
        let home = tempfile::tempdir().unwrap();
        let auth = Auth::in_home(home.path());
        (home, auth)
    }

    #[test]
    fn a_key_is_kept_in_a_file_only_its_owner_can_read_until_it_is_removed() {
        let (_home, auth) = auth();
        assert!(auth.get("openai").unwrap().is_none());
        auth.set("openai", Credential::key(" sk-1\n").unwrap()).unwrap();
        auth.set("work", Credential::Command("pass show work".into())).unwrap();
        assert_eq!(fs::metadata(auth.file()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(auth.get("openai").unwrap() == Some(Credential::Key("sk-1".into())));
        assert_eq!(auth.names().unwrap(), ["openai", "work"]);
        assert!(auth.remove("openai").unwrap());
        assert!(!auth.remove("openai").unwrap());
        assert_eq!(auth.names().unwrap(), ["work"]);
    }

    #[test]
    fn empty_oversized_and_malformed_keys_are_refused() {
        for (text, message) in [
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
            assert_eq!(Credential::key(text).err().unwrap().to_string(), message);
        }
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_damaged_is_not_used_and_errors_do_not_quote_it() {
        let (_home, auth) = auth();
        auth.set("openai", Credential::key("sk-1").unwrap()).unwrap();
        fs::set_permissions(auth.file(), fs::Permissions::from_mode(0o640)).unwrap();
        let file = auth.name();
        let message = auth.get("openai").err().unwrap().to_string();
        let open = format!(
            "the keys in `{file}` can be read by others, so none of them is used; `chmod 600 {file}`, \
             and replace the keys if others have seen them"
        );
        assert_eq!(message, open);
        fs::set_permissions(auth.file(), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(auth.file(), "{\"providers\": \"sk-1\"}").unwrap();
        let message =
            auth.set("openai", Credential::key("sk-2").unwrap()).err().unwrap().to_string();
        let damaged = format!(
            "cannot read the keys in `{file}`: line 1, column 20 is not in the format that `asyncagents auth set` writes; repair or \
             delete it, then set them again"
        );
        assert_eq!(message, damaged);
    }
}
