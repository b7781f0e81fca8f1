//! What a command did to files: for people a line for each as it happens, for programs one JSON object at the end.

use std::path::Path;

use serde::Serialize;

use super::show;

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Written,
    Removed,
    /// There was nothing to do.
    Unchanged,
    /// It was not asked to write what it would write.
    Proposed,
}

#[derive(Serialize)]
pub(super) struct Changes {
    #[serde(skip)]
    is_json: bool,
    files: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    file: String,
    state: State,
    /// What would be written, unless there is a secret in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
}

impl Changes {
    pub(super) fn new(is_json: bool) -> Changes {
        Changes { is_json, files: Vec::new() }
    }

    /// Records what became of a file, with the line for people.
    pub(super) fn add(&mut self, file: &Path, state: State, line: &str) -> anyhow::Result<()> {
        let file = file.display().to_string();
        self.files.push(Change { file, state, entry: None });
        self.say(line)
    }

    /// A file that was left as it is, and what would be added to it.
    pub(super) fn propose(&mut self, file: &Path, entry: Option<String>) {
        let file = file.display().to_string();
        self.files.push(Change { file, state: State::Proposed, entry });
    }

    /// A line for people alone.
    pub(super) fn say(&self, line: &str) -> anyhow::Result<()> {
        if self.is_json { Ok(()) } else { show::line(line) }
    }

    pub(super) fn is_json(&self) -> bool {
        self.is_json
    }

    /// At the end.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        if self.is_json { show::json(self) } else { Ok(()) }
    }

    /// At the end of several steps, also of those before one that failed.
    pub(super) fn print_after(&self, done: anyhow::Result<()>) -> anyhow::Result<()> {
        if done.is_err() && self.files.is_empty() {
            return done;
        }
        let printed = self.print();
        done.and(printed)
    }
}
