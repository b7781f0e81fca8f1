//! Undo log of the install commands: which bytes of other programs' files were added, so that uninstall
//! can restore the files byte for byte.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::changes::{Changes, State};
use super::files::{cannot, read, write};
use crate::task::id::fingerprint;

pub(super) struct UndoLog {
    path: PathBuf,
    entries: Entries,
}

#[derive(Default, Serialize)]
struct Entries {
    /// By the file that was changed.
    files: BTreeMap<PathBuf, Change>,
}

/// The log as it is on disk, possibly of an earlier version.
#[derive(Default, Deserialize)]
struct LogFile {
    files: BTreeMap<PathBuf, LoggedChange>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum LoggedChange {
    Known(Change),
    /// Of an earlier version, which kept the whole file.
    Earlier(serde::de::IgnoredAny),
}

/// What we did to a file, without a word of what is in it: other programs keep keys there.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Change {
    /// Of the file as we wrote it, to see whether it was edited since.
    length: usize,
    checksum: u32,
    added: Addition,
}

/// What uninstall removes again.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Addition {
    /// The file did not exist.
    File,
    Bytes(Vec<Range<usize>>),
    /// More was done than to add bytes: our entry is removed as from a file that was edited since.
    Entry,
}

impl UndoLog {
    pub(super) fn read(path: PathBuf) -> anyhow::Result<UndoLog> {
        let logged: LogFile = match read(&path)? {
            // A damaged log only costs the byte-exact restore; our entry can still be removed.
            Some(text) => serde_json::from_str(&text).unwrap_or_default(),
            None => LogFile::default(),
        };
        let (mut files, mut is_earlier) = (BTreeMap::new(), false);
        for (file, change) in logged.files {
            let change = match change {
                LoggedChange::Known(change) => change,
                LoggedChange::Earlier(_) => {
                    is_earlier = true;
                    Change { length: 0, checksum: 0, added: Addition::Entry }
                }
            };
            files.insert(file, change);
        }
        let log = UndoLog { path, entries: Entries { files } };
        // An earlier version kept the whole file in its log, which may contain keys: it is overwritten at once,
        // not at the next change.
        if is_earlier {
            log.write()?;
        }
        Ok(log)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.files.is_empty()
    }

    /// Records a change. `without` is the file without our entry, when it had one already.
    ///
    /// Installing again must not make our own entry part of the original: the first one is kept, unless
    /// the file was edited since, and then `without` is the closest thing to an original.
    pub(super) fn add(
        &mut self,
        file: &Path,
        before: Option<String>,
        without: Option<String>,
        after: &str,
    ) {
        let first = self.take(file, before.as_deref());
        let original = first.unwrap_or_else(|| without.or(before));
        let change = Change::new(original.as_deref(), after);
        self.entries.files.insert(file.to_owned(), change);
    }

    /// The original contents, unless the file was edited since we wrote it. Inside, `None` means that
    /// the file did not exist.
    pub(super) fn take(&mut self, file: &Path, now: Option<&str>) -> Option<Option<String>> {
        self.entries.files.remove(file)?.undo(now?)
    }

    pub(super) fn write(&self) -> anyhow::Result<()> {
        if !self.is_empty() {
            return write(&self.path, &serde_json::to_string_pretty(&self.entries)?);
        }
        match std::fs::remove_file(&self.path) {
            Ok(()) => {
                remove_folder_of(&self.path);
                Ok(())
            }
            // Nothing was installed, so an empty folder there is somebody else's.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| cannot("remove", &self.path)),
        }
    }
}

impl Change {
    fn new(original: Option<&str>, after: &str) -> Change {
        let added = match original {
            None => Addition::File,
            Some(original) => {
                let bytes = bytes_added(original.as_bytes(), after.as_bytes());
                bytes.map_or(Addition::Entry, Addition::Bytes)
            }
        };
        Change { length: after.len(), checksum: fingerprint(&[after]), added }
    }

    fn undo(self, now: &str) -> Option<Option<String>> {
        if (now.len(), fingerprint(&[now])) != (self.length, self.checksum) {
            return None;
        }
        match self.added {
            Addition::File => Some(None),
            Addition::Bytes(ranges) => {
                let mut bytes = now.as_bytes().to_owned();
                for range in ranges.into_iter().rev() {
                    // The log may have been edited by hand, so nothing in it is trusted.
                    bytes.get(range.clone())?;
                    bytes.drain(range);
                }
                Some(Some(String::from_utf8(bytes).ok()?))
            }
            Addition::Entry => None,
        }
    }
}

/// The ranges of `after` that have to be deleted to get `before`. `None` when `before` is not a subsequence of
/// `after`: more was done than to add bytes.
fn bytes_added(before: &[u8], after: &[u8]) -> Option<Vec<Range<usize>>> {
    // Common head and tail first; in between, each byte of `before` is matched greedily. Any subsequence will do,
    // since the ranges only have to lead back to the same bytes.
    let same = |(a, b): &(&u8, &u8)| a == b;
    let head = before.iter().zip(after).take_while(same).count();
    let tail = before[head..].iter().rev().zip(after[head..].iter().rev()).take_while(same).count();
    let mut missing = before[head..before.len() - tail].iter().peekable();
    let mut added: Vec<Range<usize>> = Vec::new();
    for (place, byte) in after.iter().enumerate().take(after.len() - tail).skip(head) {
        if missing.next_if_eq(&byte).is_some() {
            continue;
        }
        match added.last_mut() {
            Some(last) if last.end == place => last.end += 1,
            Some(_) | None => added.push(place..place + 1),
        }
    }
    missing.next().is_none().then_some(added)
}

/// Removes a folder of ours after the last file in it.
pub(super) fn remove_folder_of(file: &Path) {
    // It fails while something else is there, which is kept.
    let _ = file.parent().map(std::fs::remove_dir);
}

/// Restores the original contents.
pub(super) fn restore(
    file: &Path,
    before: Option<String>,
    changes: &mut Changes,
) -> anyhow::Result<()> {
    match before {
        Some(before) => {
            write(file, &before)?;
            let line = format!("{} is as it was before", file.display());
            changes.add(file, State::Written, &line)
        }
        None => {
            std::fs::remove_file(file).with_context(|| cannot("remove", file))?;
            changes.add(file, State::Removed, &format!("removed {}", file.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ranges: &[(usize, usize)]) -> Addition {
        Addition::Bytes(ranges.iter().map(|&(start, end)| start..end).collect())
    }

    #[test]
    fn a_file_is_restored_by_removing_what_was_added() {
        let check = |before: &str, after: &str, expected: Addition| {
            let change = Change::new(Some(before), after);
            assert_eq!(change.added, expected, "{after}");
            let restored = matches!(expected, Addition::Bytes(_));
            let restored = restored.then(|| Some(before.to_owned()));
            assert_eq!(Change::new(Some(before), after).undo(&format!("{after} ")), None, "edited");
            assert_eq!(change.undo(after), restored, "{after}");
        };
        check("", "ours", bytes(&[(0, 4)]));
        check("{\"k\": 1}", "{\"k\": 1, ours}", bytes(&[(7, 13)]));
        check("k /* é */ }", "k, /* é */ ours }", bytes(&[(1, 2), (11, 16)]));
        check("x=1", "x=1", bytes(&[]));
        check("theirs", "ours", Addition::Entry);
        check("x = 1\r\n", "x = 1\n", Addition::Entry);
        assert_eq!(Change::new(None, "ours").undo("ours"), Some(None));
    }

    #[test]
    fn an_undo_log_with_invalid_ranges_restores_nothing() {
        for range in [(2, 9), (3, 2)] {
            let change = Change { added: bytes(&[range]), ..Change::new(None, "ours") };
            assert_eq!(change.undo("ours"), None);
        }
    }
}
