//! A canary key: the tests use it for every provider, and search for it in everything they leave behind.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// The key of all tests that need one.
pub const CANARY: &str = "sk-only-for-tests";

/// The only file that may contain a key.
const KEPT: &str = "auth.json";

/// Whether the key occurs, in plain text or encoded as in HTTP Basic authentication.
pub fn is_in(bytes: &[u8]) -> bool {
    let sent = STANDARD_NO_PAD.encode(CANARY);
    [CANARY, &sent].iter().any(|form| memchr::memmem::find(bytes, form.as_bytes()).is_some())
}

/// The files under a directory that contain it and must not.
pub fn leaks(directory: &Path) -> Vec<PathBuf> {
    let mut leaks = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type();
        if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
            leaks.extend(self::leaks(&path));
        } else if kind.is_ok_and(|kind| kind.is_file())
            && !path.ends_with(KEPT)
            && fs::read(&path).is_ok_and(|bytes| is_in(&bytes))
        {
            leaks.push(path);
        }
    }
    leaks
}
