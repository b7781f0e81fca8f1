//! The `grep` tool: searches files with a regular expression, using ripgrep's libraries. It stops at a
//! number of matches, at a time limit (telling the model so) and when it is cancelled.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, sinks};
use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Value, json};

use super::glob;
use super::halt::{Halt, InterruptibleFile, Reason};
use super::read::regular;
use super::text::lossy;
use super::walk::{Gaps, below, walk};
use super::workspace::{Kind, ResolvedPath, open_file};
use super::{Access, Context, Error, Output};
use crate::text::clip;

const MOST_MATCHES: usize = 200;
const LONGEST_LINE: usize = 300;
/// The line buffer. A file with a longer line is not searched further.
const MOST_MEMORY: usize = 8 << 20;

pub(super) const DESCRIPTION: &str = "\
Search files with a regular expression (the syntax of ripgrep), line by line. Answers \
`path:line: text`, sorted by path. What .gitignore names is left out, and so are binary files.";

pub(super) const REQUIRED: &[&str] = &["pattern"];

pub(super) fn properties() -> Value {
    json!({
        "pattern": { "type": "string", "description": "A regular expression, such as `fn \\w+`." },
        "path": {
            "type": "string", "default": ".",
            "description": "The directory or file to search, relative to the workspace.",
        },
        "include": {
            "type": "string",
            "description": "Search only files that match this glob, such as `*.rs`.",
        },
        "case_insensitive": { "type": "boolean", "default": false },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    pattern: String,
    path: Option<String>,
    include: Option<String>,
    case_insensitive: Option<bool>,
}

pub(super) fn run(arguments: Arguments, context: &Context, halt: &Halt) -> Result<Output, Error> {
    let include = arguments.include.as_deref().map(glob::matcher).transpose()?;
    let matcher = RegexMatcherBuilder::new()
        .case_insensitive(arguments.case_insensitive.unwrap_or(false))
        // Lets the searcher work line by line, and makes a pattern that could match `\n` an error.
        .line_terminator(Some(b'\n'))
        .build(&arguments.pattern)
        .map_err(|error| Error::Pattern { reason: error.to_string() })?;
    let start = context.reach(arguments.path.as_deref().unwrap_or("."), Access::Read)?;
    let mut search = Search { searcher: searcher(), matcher, halt, lines: Vec::new() };
    let gaps = search.all(&start, include.as_ref(), context)?;

    // One more than is shown was collected, to know whether there are more.
    let found = search.lines.len().min(MOST_MATCHES);
    let more = search.lines.len() > MOST_MATCHES;
    search.lines.truncate(MOST_MATCHES);
    if found == 0 {
        search.lines.push("no matches".to_owned());
    }
    if more {
        let advice = "narrow the pattern, `path` or `include`";
        search.lines.push(format!("… stopped at {MOST_MATCHES} matches; {advice}"));
    }
    let mut text = search.lines.join("\n");
    gaps.add_to(&mut text);
    let matches = if found == 1 { "1 match".to_owned() } else { format!("{found} matches") };
    Ok(Output { text, title: format!("{}: {matches}", clip(&arguments.pattern, 80)) })
}

/// A search in progress.
struct Search<'a> {
    searcher: Searcher,
    matcher: RegexMatcher,
    halt: &'a Halt,
    /// At most one more than is shown.
    lines: Vec<String>,
}

impl Search<'_> {
    /// Searches a file, or all files below a directory.
    fn all(
        &mut self,
        start: &ResolvedPath,
        include: Option<&GlobMatcher>,
        context: &Context,
    ) -> Result<Gaps, Error> {
        let trouble = |error| context.workspace.trouble("search", start, error);
        let opened = start.open().map_err(trouble)?;
        if !opened.metadata().map_err(trouble)?.is_dir() {
            regular(&opened, start)?;
            let searched = self.one(opened, &start.shown);
            // The reader fails when the search has to stop, so the reason comes before the error.
            return match (self.halt.reached(), searched) {
                (Some(Reason::Cancelled), _) => Err(Error::Cancelled),
                (Some(Reason::OutOfTime), _) => Ok(Gaps { out_of_time: true, ..Gaps::default() }),
                (None, searched) => searched.map(|()| Gaps::default()).map_err(trouble),
            };
        }
        let mut unreadable = 0;
        let mut gaps = walk(start, context, self.halt, &mut |entry| {
            let included = |glob: &GlobMatcher| glob.is_match(below(entry.path, start));
            if entry.kind != Kind::File || !include.is_none_or(included) {
                return ControlFlow::Continue(());
            }
            let searched = open_file(entry.directory, entry.name, OFlags::RDONLY)
                .and_then(|file| self.one(file, &context.workspace.show(entry.path)));
            // One file that cannot be read is counted; it must not hide the matches in the others.
            unreadable += usize::from(searched.is_err());
            if self.lines.len() > MOST_MATCHES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        gaps.unreadable += unreadable;
        Ok(gaps)
    }

    /// Searches one file; does nothing for a pipe or a device.
    fn one(&mut self, file: File, shown: &str) -> io::Result<()> {
        if !file.metadata()?.is_file() {
            return Ok(());
        }
        let reader = InterruptibleFile { file, halt: self.halt };
        let lines = &mut self.lines;
        let sink = sinks::Bytes(|number, line| {
            let line = lossy(line);
            let line = clip(line.trim_end_matches(['\n', '\r']), LONGEST_LINE);
            lines.push(format!("{shown}:{number}: {line}"));
            Ok(lines.len() <= MOST_MATCHES)
        });
        self.searcher.search_reader(&self.matcher, reader, sink)
    }
}

fn searcher() -> Searcher {
    SearcherBuilder::new()
        .line_number(true)
        // As ripgrep does: a NUL byte marks a binary file, which is not searched further.
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(MOST_MEMORY))
        .build()
}
