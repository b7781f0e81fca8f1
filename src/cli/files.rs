//! Configuration files of other programs: read if they exist, and replaced atomically, by a rename.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;

pub(super) fn read(file: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| cannot("read", file)),
    }
}

/// Writes a temporary file beside it and renames that: a configuration cut in half by a crash or a full disk
/// would keep its program from starting.
pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    // A symbolic link stays one: the file that it leads to is replaced.
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).with_context(|| cannot("create", folder))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.asyncagents"));
    // There may be keys in it, so the new file is private from the start and gets the old one's permissions
    // only afterwards. One left over from a crash is removed first, since `create_new` would refuse it.
    let _ = std::fs::remove_file(&beside);
    let mut open = std::fs::OpenOptions::new();
    let opened = open.write(true).create_new(true).mode(0o600).open(&beside);
    let written = opened.and_then(|mut beside| beside.write_all(text.as_bytes()));
    written.with_context(|| cannot("write", &beside))?;
    if let Ok(metadata) = std::fs::metadata(&file) {
        let _ = std::fs::set_permissions(&beside, metadata.permissions());
    }
    std::fs::rename(&beside, &file).with_context(|| cannot("write", &file))
}

pub(super) fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} `{}`", path.display())
}
