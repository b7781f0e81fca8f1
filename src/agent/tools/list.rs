//! The `list` tool: the entries of one directory, without those that .gitignore excludes.

use serde::Deserialize;
use serde_json::{Value, json};

use super::halt::Halt;
use super::text::{count, lossy};
use super::walk::Ignores;
use super::workspace::{Kind, names};
use super::{Access, Context, Error, Output};

const MOST_ENTRIES: usize = 500;

pub(super) const DESCRIPTION: &str = "\
List one directory: its entries by name, directories with a `/` at their end, links with their \
target. What .gitignore names is left out and counted. Use `glob` to find files in a whole tree.";

pub(super) const REQUIRED: &[&str] = &[];

pub(super) fn properties() -> Value {
    json!({
        "path": {
            "type": "string", "default": ".",
            "description": "The directory, relative to the workspace.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    path: Option<String>,
}

pub(super) fn run(arguments: Arguments, context: &Context, _: &Halt) -> Result<Output, Error> {
    let workspace = &context.workspace;
    let place = context.reach(arguments.path.as_deref().unwrap_or("."), Access::Read)?;
    let trouble = |error| workspace.trouble("list", &place, error);
    let opened = place.open().map_err(trouble)?;
    if !opened.metadata().map_err(trouble)?.is_dir() {
        return Err(Error::NotDirectory { path: place.shown });
    }
    let directory = opened.into();
    let mut entries = names(&directory, usize::MAX).map_err(trouble)?;
    // Ignored entries are counted: a model that looks for `target/` should learn that it was left out.
    let all = entries.len();
    let mut ignores = Ignores::above(&place, workspace);
    ignores.push(&directory, &place.path);
    entries.retain(|(name, kind)| !ignores.cover(&place.path.join(name), *kind));
    entries.sort_by(|a, b| a.0.cmp(&b.0));

    let mut lines: Vec<String> = Vec::new();
    for (name, kind) in entries.iter().take(MOST_ENTRIES) {
        let name_shown = name.to_string_lossy();
        lines.push(match kind {
            Kind::Directory => format!("{name_shown}/"),
            Kind::Link => {
                let target = rustix::fs::readlinkat(&directory, name.as_os_str(), Vec::new());
                let target = target.map(|target| lossy(target.to_bytes())).unwrap_or_default();
                format!("{name_shown} -> {target}")
            }
            Kind::File | Kind::Special => name_shown.into_owned(),
        });
    }
    if entries.is_empty() {
        lines.push("(nothing)".to_owned());
    }
    if entries.len() > MOST_ENTRIES {
        lines.push(format!(
            "… and {} more; `glob` finds some of them",
            entries.len() - MOST_ENTRIES
        ));
    }
    if all > entries.len() {
        lines.push(format!("({} left out, as .gitignore says)", all - entries.len()));
    }
    let title = format!("{}: {}", place.shown, count(entries.len(), "name"));
    Ok(Output { text: lines.join("\n"), title })
}
