//! The `write` tool: creates or replaces a whole file, atomically, and creates missing directories.

use std::io::ErrorKind;

use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Value, json};

use super::edit::alone;
use super::halt::{Halt, Reason};
use super::read::regular;
use super::text::count;
use super::{Access, Context, Error, Output};

pub(super) const DESCRIPTION: &str = "\
Write a whole file: it is created, or replaced if it exists, and missing directories are created. Use \
`edit` to change a part of a file.";

pub(super) const REQUIRED: &[&str] = &["path", "content"];

pub(super) fn properties() -> Value {
    json!({
        "path": { "type": "string", "description": "The file, relative to the workspace." },
        "content": { "type": "string", "description": "The whole content of the file." },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    path: String,
    content: String,
}

pub(super) fn run(arguments: Arguments, context: &Context, halt: &Halt) -> Result<Output, Error> {
    let place = context.reach(&arguments.path, Access::Write)?;
    let trouble = |error| context.workspace.trouble("write", &place, error);
    // Shared with `edit`: a parallel edit of the same file would otherwise write back the old contents.
    let _alone = alone();
    let target = place.make_target().map_err(trouble)?;
    // Opened only to check that writing is permitted; `put` renames a new file over it, which would
    // replace even a read-only one.
    let replaced = match target.open(OFlags::RDWR) {
        Ok(file) => {
            regular(&file, &place)?;
            Some(file.metadata().map_err(trouble)?)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(trouble(error)),
    };
    if halt.reached() == Some(Reason::Cancelled) {
        return Err(Error::Cancelled);
    }
    target.put(arguments.content.as_bytes(), replaced.as_ref()).map_err(trouble)?;
    let done = if replaced.is_some() { "replaced" } else { "created" };
    let lines = count(arguments.content.lines().count(), "line");
    Ok(Output { text: format!("{done} `{}` ({lines})", place.shown), title: place.shown })
}
