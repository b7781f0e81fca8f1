//! Files of other programs: read if they are there, written whole or not at all.

use std::fs::File;
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

/// Whole or not at all: a configuration cut in half would keep a program from starting.
pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    // A link stays a link.
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).with_context(|| cannot("create", folder))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.asyncagents"));
    // There may be keys in it: nobody else reads it before it has the permissions it had.
    let keep_permissions = |new: &File| {
        if let Ok(metadata) = std::fs::metadata(&file) {
            let _ = new.set_permissions(metadata.permissions());
        }
        Ok(())
    };
    private_file::replace(&file, &beside, text, keep_permissions)
        .with_context(|| cannot("write", &beside))
}

pub(super) fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} `{}`", path.display())
}
