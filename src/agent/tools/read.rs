//! The `read` tool: numbered lines of a text file. It streams, so that memory is bounded by one line
//! whatever the size of the file; long lines are cut, and binary files are refused.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use serde::Deserialize;
use serde_json::{Value, json};

use super::halt::{Halt, InterruptibleFile, Reason};
use super::text::lossy;
use super::workspace::ResolvedPath;
use super::{Access, Context, Error, Output};
use crate::text::clip;

const MOST_LINES: u64 = 2_000;
const LONGEST_LINE: usize = 2_000;
/// An upper bound for the bytes of that many characters.
const LINE_BYTES: u64 = 4 * LONGEST_LINE as u64 + 4;
const MOST_CHARACTERS: usize = 100_000;
/// How many bytes are looked at to tell text from binary data.
const SNIFFED: usize = 8 * 1024;

pub(super) const DESCRIPTION: &str = "\
Read a text file. Lines come numbered, as `number<tab>text`; the number is not part of the file. \
Shows up to 2000 lines from `offset` on and says when there is more. Long lines are cut at 2000 \
characters. Use `grep` to find something in a large file.";

pub(super) const REQUIRED: &[&str] = &["path"];

pub(super) fn properties() -> Value {
    json!({
        "path": { "type": "string", "description": "The file, relative to the workspace." },
        "offset": {
            "type": "integer", "minimum": 1, "default": 1,
            "description": "The first line to show.",
        },
        "limit": {
            "type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": MOST_LINES,
            "description": "How many lines to show at most.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(super) fn run(arguments: Arguments, context: &Context, halt: &Halt) -> Result<Output, Error> {
    let place = context.reach(&arguments.path, Access::Read)?;
    let trouble = |error| match halt.reached() {
        Some(Reason::Cancelled) => Error::Cancelled,
        Some(Reason::OutOfTime) => Error::failed("read", &place.shown, "it takes too long"),
        None => context.workspace.trouble("read", &place, error),
    };
    let file = place.open().map_err(trouble)?;
    let size = regular(&file, &place)?;
    let mut reader = BufReader::with_capacity(64 * 1024, InterruptibleFile { file, halt });
    let start = reader.fill_buf().map_err(trouble)?;
    if let Some(kind) = binary(&start[..start.len().min(SNIFFED)]) {
        return Err(Error::Binary { path: place.shown, kind, size });
    }
    let offset = arguments.offset.unwrap_or(1).max(1);
    let limit = arguments.limit.unwrap_or(MOST_LINES).clamp(1, MOST_LINES);
    // Lines have no index, so the ones before `offset` are read and dropped.
    for skipped in 1..offset {
        if reader.skip_until(b'\n').map_err(trouble)? == 0 {
            return Err(Error::PastTheEnd { path: place.shown, lines: skipped - 1 });
        }
    }
    let text = numbered(&mut reader, offset, limit).map_err(trouble)?;
    match text {
        Some(text) => Ok(Output { text, title: place.shown }),
        None if offset == 1 => {
            Ok(Output { text: "(the file is empty)".to_owned(), title: place.shown })
        }
        None => Err(Error::PastTheEnd { path: place.shown, lines: offset - 1 }),
    }
}

/// Up to `limit` lines from line `offset` on; `None` when the file ends before that.
fn numbered(reader: &mut impl BufRead, offset: u64, limit: u64) -> std::io::Result<Option<String>> {
    let mut text = String::new();
    let mut room = MOST_CHARACTERS;
    let mut line = Vec::new();
    for number in offset..offset.saturating_add(limit) {
        line.clear();
        if reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok((number > offset).then_some(text));
        }
        // A file may begin like text and go on as binary data.
        if line.contains(&0) {
            text.push_str(&format!("(binary data from line {number} on; it is not shown)\n"));
            return Ok(Some(text));
        }
        // The rest of a line that is longer than we read of it.
        if line.last() != Some(&b'\n') {
            reader.skip_until(b'\n')?;
        }
        let shown = format!("{number:>6}\t{}\n", line_text(&line));
        let characters = shown.chars().count();
        if characters > room {
            text.push_str(&more(number));
            return Ok(Some(text));
        }
        room -= characters;
        text.push_str(&shown);
    }
    if !reader.fill_buf()?.is_empty() {
        text.push_str(&more(offset.saturating_add(limit)));
    }
    Ok(Some(text))
}

fn line_text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    clip(&lossy(line), LONGEST_LINE)
}

fn more(next: u64) -> String {
    format!("(there is more; go on with `offset: {next}`)\n")
}

/// The size of a regular file; an error for anything else.
pub(super) fn regular(file: &File, place: &ResolvedPath) -> Result<u64, Error> {
    let metadata = file.metadata().map_err(|error| Error::failed("read", &place.shown, error))?;
    let path = place.shown.clone();
    if metadata.is_dir() {
        Err(Error::IsDirectory { path })
    } else if !metadata.is_file() {
        Err(Error::Special { path })
    } else {
        Ok(metadata.len())
    }
}

/// The kind of a binary file, by its first bytes; `None` if it looks like text.
fn binary(start: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 18] = [
        (b"\x89PNG", "PNG image"),
        (b"\xff\xd8\xff", "JPEG image"),
        (b"GIF8", "GIF image"),
        (b"RIFF", "RIFF: WebP, WAV or AVI"),
        (b"%PDF-", "PDF document"),
        (b"PK\x03\x04", "ZIP archive, or a document or package made of one"),
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ", "xz"),
        (b"BZh", "bzip2"),
        (b"\x7fELF", "ELF program"),
        (b"\xcf\xfa\xed\xfe", "Mach-O program"),
        (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
        (b"MZ", "Windows program"),
        (b"\0asm", "WebAssembly"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    let known = || KNOWN.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, kind)| *kind);
    // Text may begin like some of these (`BZh`, `MZ`), so they only name the kind. What decides are NULs
    // and many control characters.
    let odd = start.iter().filter(|byte| matches!(byte, 0..=6 | 14..=26 | 28..=31)).count();
    (start.contains(&0) || odd * 10 > start.len() || start.starts_with(b"%PDF-"))
        .then(|| known().unwrap_or("of unknown kind"))
}
