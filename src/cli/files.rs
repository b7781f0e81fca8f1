//! Configuration files of other programs: read if they exist, and replaced atomically, by a rename.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

use crate::private_file;

pub(super) fn read(file: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| cannot("read", file)),
    }
}

/// The same for a text with a secret: whoever could read the old file must not read this one.
pub(super) fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    replace(file, text, |new| new.set_permissions(Permissions::from_mode(0o600)))
}

/// Writes a temporary file beside it and renames that: a configuration cut in half by a crash or a full disk
/// would keep its program from starting.
pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    // There may be keys in it, so the new file is private from the start and gets the old one's permissions
    // only afterwards.
    replace(file, text, |new| {
        if let Ok(metadata) = std::fs::metadata(file) {
            let _ = new.set_permissions(metadata.permissions());
        }
        Ok(())
    })
}

fn replace(
    file: &Path,
    text: &str,
    permissions: impl FnOnce(&File) -> io::Result<()>,
) -> anyhow::Result<()> {
    // A symbolic link stays one: the file that it leads to is replaced.
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).with_context(|| cannot("create", folder))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.asyncagents"));
    private_file::replace(&file, &beside, text, permissions)
        .with_context(|| cannot("write", &beside))
}

pub(super) fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} `{}`", path.display())
}
