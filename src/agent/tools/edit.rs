//! The `edit` tool: replaces an exact, unique text in a file. The file is replaced atomically and keeps
//! its permissions and line ends.

use std::borrow::Cow;
use std::io::Read;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::{Value, json};

use super::halt::{Halt, Reason};
use super::read::regular;
use super::text::count;
use super::{Access, Context, Error, Output};

/// It is read into memory as a whole.
const LARGEST: u64 = 16 << 20;

pub(super) const DESCRIPTION: &str = "\
Replace text in a file. `old` must be copied exactly, with its white space and without line \
numbers, and must occur exactly once: take enough of what is around it, or pass `replace_all`. \
Read the file first.";

pub(super) const REQUIRED: &[&str] = &["path", "old", "new"];

pub(super) fn properties() -> Value {
    json!({
        "path": { "type": "string", "description": "The file, relative to the workspace." },
        "old": { "type": "string", "description": "The text to replace." },
        "new": { "type": "string", "description": "The text to put in its place." },
        "replace_all": {
            "type": "boolean", "default": false,
            "description": "Replace `old` wherever it occurs.",
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    path: String,
    old: String,
    new: String,
    replace_all: Option<bool>,
}

pub(super) fn run(arguments: Arguments, context: &Context, halt: &Halt) -> Result<Output, Error> {
    if arguments.old.is_empty() {
        return Err(unfit("`old` is empty; use `write` for a new file"));
    }
    if arguments.old == arguments.new {
        return Err(unfit("`old` and `new` are the same"));
    }
    let place = context.reach(&arguments.path, Access::Write)?;
    let trouble = |error| context.workspace.trouble("edit", &place, error);
    // From here to `put`: no other edit may come between reading and writing.
    let _alone = alone();
    let target = place.target().map_err(trouble)?;
    let file = target.open(OFlags::RDWR).map_err(trouble)?;
    let size = regular(&file, &place)?;
    if size > LARGEST {
        return Err(Error::TooLarge { path: place.shown, size, most: LARGEST });
    }
    let metadata = file.metadata().map_err(trouble)?;
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).map_err(trouble)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Error::NotText { path: place.shown.clone() })?;
    let edited = replace(&text, &arguments, &place.shown)?;
    // The last chance to stop; the write itself is not interrupted.
    if halt.reached() == Some(Reason::Cancelled) {
        return Err(Error::Cancelled);
    }
    target.put(edited.text.as_bytes(), Some(&metadata)).map_err(trouble)?;
    let places = count(edited.places, "place");
    let text = format!("edited `{}` in {places}, first in line {}", place.shown, edited.line);
    Ok(Output { text, title: place.shown })
}

/// The lock for read-modify-write on files, one for the whole daemon: two parallel edits of a file must
/// not lose one of them, and edits are short.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// The edited text, how many places were replaced, and the line of the first.
#[derive(Debug, PartialEq, Eq)]
struct Replacement {
    text: String,
    places: usize,
    line: usize,
}

fn replace(text: &str, arguments: &Arguments, path: &str) -> Result<Replacement, Error> {
    let path = path.to_owned();
    let (old, new) = with_line_ends_of(text, &arguments.old, &arguments.new);
    let Some(at) = text.find(&*old) else {
        return Err(Error::Absent { path, line: like_first_line(text, &old) });
    };
    let places = text.matches(&*old).count();
    let replace_all = arguments.replace_all.unwrap_or(false);
    // `matches` does not count overlapping occurrences (`aa` in `aaa`), but they are ambiguous, too.
    if !replace_all && text.rfind(&*old) != Some(at) {
        return Err(Error::Ambiguous { path, count: places.max(2) });
    }
    let line = text[..at].matches('\n').count() + 1;
    Ok(Replacement { text: text.replace(&*old, &new), places, line })
}

/// `old` and `new` with the file's line ends: models see and write `\n`, also for a file that has `\r\n`
/// throughout.
fn with_line_ends_of<'a>(text: &str, old: &'a str, new: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    let ends = text.matches("\r\n").count();
    let throughout = ends > 0 && ends == text.matches('\n').count();
    if !throughout || old.contains('\r') || new.contains('\r') {
        return (old.into(), new.into());
    }
    (old.replace('\n', "\r\n").into(), new.replace('\n', "\r\n").into())
}

/// The line of the file that is like the first line of `old`, white space aside, as a hint for the model.
fn like_first_line(text: &str, old: &str) -> Option<usize> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?;
    text.lines().position(|line| line.trim() == wanted).map(|index| index + 1)
}

fn unfit(reason: &str) -> Error {
    Error::Arguments { tool: "edit", reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, old: &str, new: &str, expected: Result<(&str, usize, usize), Error>) {
        let arguments = |replace_all| Arguments {
            path: "f".into(),
            old: old.into(),
            new: new.into(),
            replace_all,
        };
        let edited = replace(text, &arguments(None), "f");
        let expected =
            expected.map(|(text, places, line)| Replacement { text: text.into(), places, line });
        assert_eq!(edited, expected, "{old:?} in {text:?}");
        if let Err(Error::Ambiguous { .. }) = edited {
            let all = replace(text, &arguments(Some(true)), "f").unwrap();
            assert_eq!(all.text, text.replace(old, new));
        }
    }

    #[test]
    fn the_old_text_must_occur_exactly_once() {
        let absent = |line| Err(Error::Absent { path: "f".into(), line });
        let ambiguous = |count| Err(Error::Ambiguous { path: "f".into(), count });
        check("one\ntwo\n", "two", "2", Ok(("one\n2\n", 1, 2)));
        check("one\ntwo\n", "one\ntwo", "", Ok(("\n", 1, 1)));
        check("äöü", "ö", "€", Ok(("ä€ü", 1, 1)));
        check("one one one", "one", "1", ambiguous(3));
        check("aaa", "aa", "b", ambiguous(2));
        check("one\n", "two", "2", absent(None));
        check("x\n\tif a {\n", "    if a {\n        b", "", absent(Some(2)));
    }

    #[test]
    fn line_endings_stay_as_they_are() {
        check("a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", Ok(("a\r\nx\r\nb\r\nc\r\n", 1, 1)));
        check("a\r\nb\r\n", "b", "b\nc", Ok(("a\r\nb\r\nc\r\n", 1, 2)));
        check("a\r\nb\n", "b\n", "c\n", Ok(("a\r\nc\n", 1, 2)));
        check("a\r\nb\r\n", "a\r\n", "c\n", Ok(("c\nb\r\n", 1, 1)));
    }
}
