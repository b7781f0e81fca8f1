//! The tools as a model sees them: arguments in, text out.

mod escape;
mod files;
mod search;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::process::{Journal, Record};
use crate::sandbox::SessionSandbox;

/// Commands need the built program as their guard; their tests are in `tests/it`.
struct NoJournal;

impl Journal for NoJournal {
    fn record(&self, _: &Record) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Err("not in unit tests".to_owned()) })
    }

    fn erase(&self, _: &Record) {}
}

/// A workspace with something beside it that is none of an agent's business.
struct ToolFixture {
    top: PathBuf,
    context: Context,
    _directory: TempDir,
}

impl ToolFixture {
    fn new() -> ToolFixture {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir(top.join("workspace")).unwrap();
        fs::create_dir(top.join("outside")).unwrap();
        let context = Context {
            workspace: Workspace::open(&top.join("workspace")).unwrap(),
            todos: Todos::default(),
            output_room: OutputRoom::left(1 << 20, Path::new("/nowhere")),
            overflow: top.join("overflow"),
            cancel: CancellationToken::new(),
            may_leave: None,
            launcher: Launcher::new(
                "/dev/null".into(),
                LONGEST,
                Arc::default(),
                Arc::new(NoJournal),
            ),
            session_sandbox: SessionSandbox::off(),
        };
        ToolFixture { top, context, _directory: directory }
    }

    fn with(files: &[(&str, &str)]) -> ToolFixture {
        let fixture = ToolFixture::new();
        for (path, content) in files {
            fixture.file(path, content);
        }
        fixture
    }

    fn path(&self, path: &str) -> PathBuf {
        self.context.workspace.root().join(path)
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn content(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    async fn run(&self, name: &str, arguments: Value) -> Result<Output, Error> {
        run(name, &arguments, &self.context).await
    }

    /// What the model reads, in either case.
    async fn call(&self, name: &str, arguments: Value) -> String {
        match self.run(name, arguments).await {
            Ok(output) => output.text,
            Err(error) => format!("error: {error}"),
        }
    }

    async fn check(&self, name: &str, arguments: Value, expected: &str) {
        assert_eq!(self.call(name, arguments.clone()).await, expected, "{name} {arguments}");
    }
}

#[test]
fn models_see_the_schema_and_the_description_of_every_tool() {
    let mut listing = String::new();
    for spec in specs() {
        let schema = serde_json::to_string_pretty(&spec.schema).unwrap();
        listing.push_str(&format!("# {}\n{}\n{schema}\n\n", spec.name, spec.description));
    }
    insta::assert_snapshot!(listing);
}

#[tokio::test]
async fn a_call_with_wrong_arguments_names_the_ones_that_are_expected() {
    let fixture = ToolFixture::new();
    fixture
        .check(
            "reed",
            json!({}),
            "error: no tool `reed`; there are: read, list, glob, grep, edit, write, bash, todo",
        )
        .await;
    let missing = "error: the arguments of `read` do not fit: missing field `path`";
    fixture.check("read", json!({}), missing).await;
    fixture.check("read", Value::Null, missing).await;
    fixture.check(
        "edit",
        json!({ "path": "a", "old_string": "b" }),
        "error: the arguments of `edit` do not fit: unknown field `old_string`, expected one of \
         `path`, `old`, `new`, `replace_all`",
    )
    .await;
    fixture
        .check(
            "todo",
            json!({ "todos": [{ "content": "a", "status": "done" }] }),
            "error: the arguments of `todo` do not fit: unknown variant `done`, expected one of \
         `pending`, `in_progress`, `completed`, `cancelled`",
        )
        .await;
}

#[tokio::test]
async fn a_cancelled_agent_does_nothing_more() {
    let fixture = ToolFixture::new();
    fixture.context.cancel.cancel();
    for (name, arguments) in [
        ("write", json!({ "path": "a", "content": "" })),
        ("bash", json!({ "command": "touch a" })),
        ("todo", json!({ "todos": [] })),
    ] {
        assert_eq!(fixture.run(name, arguments).await, Err(Error::Cancelled), "{name}");
    }
    assert!(!fixture.path("a").exists());
}

#[tokio::test]
async fn todos_are_replaced_and_shared() {
    let fixture = ToolFixture::new();
    let todos = json!({ "todos": [
        { "content": "look", "status": "completed" },
        { "content": "think", "status": "in_progress" },
        { "content": "act", "status": "pending" },
        { "content": "panic", "status": "cancelled" },
    ] });
    let output = fixture.run("todo", todos).await.unwrap();
    assert_eq!(output.text, "[x] look\n[>] think\n[ ] act\n[-] panic");
    assert_eq!(output.title, "2 of 4 to do");
    let statuses: Vec<_> = fixture.context.todos.all().iter().map(|todo| todo.status).collect();
    let open: Vec<_> = statuses.iter().map(|status| status.is_open()).collect();
    assert_eq!(open, [false, true, true, false]);

    fixture.check("todo", json!({ "todos": [] }), "(the list is empty)").await;
    assert_eq!(fixture.context.todos.all(), []);
}
