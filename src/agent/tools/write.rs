//! `write`: a whole file, new or in place of another, with the directories it needs.

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
Write a file, whole: it is made, or replaced if it is there, and missing directories are made. Use \
`edit` to change a part of a file.";

pub(super) const REQUIRED: &[&str] = &["path", "content"];

pub(super) fn properties() -> Value {
    json!({
        "path": { "type": "string", "description": "The file, relative to the workspace." },
        "content": { "type": "string", "description": "All that is to be in it." },
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
    let _alone = alone();
    let target = place.make_target().map_err(trouble)?;
    // Opened for writing only to hear whether that is allowed; the name gets a new file.
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
    let done = if replaced.is_some() { "replaced" } else { "made" };
    let lines = count(arguments.content.lines().count(), "line");
    Ok(Output { text: format!("{done} `{}` ({lines})", place.shown), title: place.shown })
}
