//! Undo log of the install commands: the contents of other programs' files before and after a change,
//! so that uninstall can restore them byte for byte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::files::{cannot, read, write};
use super::show;

pub(super) struct UndoLog {
    path: PathBuf,
    entries: Entries,
}

#[derive(Default, Serialize, Deserialize)]
struct Entries {
    /// By the file that was changed.
    files: BTreeMap<PathBuf, Change>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Change {
    /// `None`: the file did not exist.
    before: Option<String>,
    after: String,
}

impl UndoLog {
    pub(super) fn read(path: PathBuf) -> anyhow::Result<UndoLog> {
        let entries = match read(&path)? {
            // A damaged log only costs the byte-exact restore; our entry can still be removed.
            Some(text) => serde_json::from_str(&text).unwrap_or_default(),
            None => Entries::default(),
        };
        Ok(UndoLog { path, entries })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.files.is_empty()
    }

    /// Records a change. `without` is the file without our entry, when it had one already.
    ///
    /// Installing again must not make our own entry part of the original: the first `before` is kept,
    /// unless the file was edited since, and then `without` is the closest thing to an original.
    pub(super) fn add(
        &mut self,
        file: &Path,
        before: Option<String>,
        without: Option<String>,
        after: &str,
    ) {
        let before = match self.entries.files.remove(file) {
            Some(first) if before.as_ref() == Some(&first.after) => first.before,
            Some(_) | None => without.or(before),
        };
        let change = Change { before, after: after.to_owned() };
        self.entries.files.insert(file.to_owned(), change);
    }

    /// The original contents, unless the file was edited since we wrote it. Inside, `None` means that
    /// the file did not exist.
    pub(super) fn take(&mut self, file: &Path, now: Option<&str>) -> Option<Option<String>> {
        let change = self.entries.files.remove(file)?;
        (now == Some(change.after.as_str())).then_some(change.before)
    }

    pub(super) fn write(&self) -> anyhow::Result<()> {
        if !self.is_empty() {
            return write(&self.path, &serde_json::to_string_pretty(&self.entries)?);
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| cannot("remove", &self.path))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Restores the original contents, and prints what it did.
pub(super) fn restore(file: &Path, before: Option<String>) -> anyhow::Result<()> {
    match before {
        Some(before) => {
            write(file, &before)?;
            show::line(&format!("{} is as it was before", file.display()))
        }
        None => {
            std::fs::remove_file(file).with_context(|| cannot("remove", file))?;
            show::line(&format!("removed {}", file.display()))
        }
    }
}
