//! Where prompts and messages come from: an argument, a file, standard input, or the user's editor.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// The text itself, or what standard input says in place of `-`. `what` names it in errors.
pub(super) fn argument(what: &str, text: String) -> anyhow::Result<String> {
    if text != "-" {
        return not_empty(what, text);
    }
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.with_context(|| format!("cannot read the {what} from standard input"))?;
    not_empty(what, text)
}

pub(super) fn file(what: &str, file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read the {what} from `{}`", file.display()));
    not_empty(what, text?)
}

fn not_empty(what: &str, text: String) -> anyhow::Result<String> {
    anyhow::ensure!(!text.trim().is_empty(), "the {what} is empty, so nothing was done");
    Ok(text)
}

/// Whether a person is there who can write into an editor.
pub(super) fn has_person() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// What a person writes in an editor; as far as it was saved.
pub(super) fn editor(editor: &str) -> anyhow::Result<String> {
    let file = tempfile::Builder::new().prefix("asyncagents-prompt-").suffix(".md").tempfile();
    let file = file.context("cannot make a file for the editor")?;
    // By the shell, as git does it: the variable may hold arguments (`code --wait`).
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(file.path());
    let status = command.status().with_context(|| format!("cannot start the editor `{editor}`"))?;
    anyhow::ensure!(
        status.success(),
        "the editor `{editor}` failed ({status}), so nothing was launched"
    );
    // By its name: editors replace files instead of writing into them.
    self::file("prompt", file.path())
}
