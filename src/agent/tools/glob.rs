//! The `glob` tool: finds files by name patterns. Symlinks count as files and are not followed.

use std::ops::ControlFlow;

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Value, json};

use super::halt::Halt;
use super::text::count;
use super::walk::{below, walk};
use super::workspace::Kind;
use super::{Access, Context, Error, Output};

const MOST_FILES: usize = 500;

pub(super) const DESCRIPTION: &str = "\
Find files by name, sorted by path. `*` and `?` stay within a name, `**` crosses directories, \
`{a,b}` and `[a-z]` work. A pattern without `/` matches names at any depth; one with `/` is \
relative to `path`. What .gitignore names is left out.";

pub(super) const REQUIRED: &[&str] = &["pattern"];

pub(super) fn properties() -> Value {
    json!({
        "pattern": { "type": "string", "description": "Such as `*.rs` or `src/**/*.{ts,tsx}`." },
        "path": {
            "type": "string", "default": ".",
            "description": "The directory to search, relative to the workspace.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    pattern: String,
    path: Option<String>,
}

pub(super) fn run(arguments: Arguments, context: &Context, halt: &Halt) -> Result<Output, Error> {
    let matcher = matcher(&arguments.pattern)?;
    let start = context.reach(arguments.path.as_deref().unwrap_or("."), Access::Read)?;
    let mut lines: Vec<String> = Vec::new();
    let mut found = 0;
    let gaps = walk(&start, context, halt, &mut |entry| {
        let is_file = matches!(entry.kind, Kind::File | Kind::Link);
        // Counted beyond what is shown, so that the model learns how many it missed.
        if is_file && matcher.is_match(below(entry.path, &start)) {
            found += 1;
            if found <= MOST_FILES {
                lines.push(context.workspace.show(entry.path));
            }
        }
        ControlFlow::Continue(())
    })?;
    if found == 0 {
        lines.push("no files found".to_owned());
    }
    if found > MOST_FILES {
        lines.push(format!("… and {} more; narrow the pattern", found - MOST_FILES));
    }
    let mut text = lines.join("\n");
    gaps.add_to(&mut text);
    Ok(Output { text, title: format!("{}: {}", arguments.pattern, count(found, "file")) })
}

/// Compiles a pattern, which matches paths relative to where the search starts.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, Error> {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    // Such a pattern could never match a relative path, and "no files found" would mislead the model.
    if pattern.starts_with('/') || pattern.split('/').any(|part| part == "..") {
        let reason = format!("`{pattern}` is not relative; pass the directory as `path`");
        return Err(Error::Pattern { reason });
    }
    // Like .gitignore: a pattern without a slash matches names at any depth.
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = GlobBuilder::new(&anywhere).literal_separator(true).build();
    Ok(glob.map_err(|error| Error::Pattern { reason: error.to_string() })?.compile_matcher())
}
