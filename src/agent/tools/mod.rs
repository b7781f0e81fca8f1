//! The tools of embedded agents, one file each: description, arguments, implementation. No path leaves
//! the workspace without a permission, whatever symlinks and `..` it contains: a path is resolved once,
//! checked, and then opened without following any link (`workspace.rs`). File tools run on blocking
//! threads with a time limit.

mod bash;
mod edit;
mod error;
mod glob;
mod grep;
mod halt;
mod list;
mod read;
mod text;
mod todo;
mod walk;
mod workspace;
mod write;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

pub use self::error::Error;
use self::halt::Halt;
pub use self::todo::{Todo, TodoStatus, Todos};
pub use self::workspace::Workspace;
use self::workspace::{ResolvedPath, resolve};
use crate::process::Launcher;
use crate::sandbox::{self, HiddenKind, HiddenPlaces, SessionSandbox};
use crate::text::clip;
use crate::threads;

/// How long a file tool may take before it returns what it has so far.
const LONGEST: Duration = Duration::from_secs(30);
/// A file system that hangs is given up after this much more.
const GRACE: Duration = Duration::from_secs(5);

/// A tool as it is described to models.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub name: &'static str,
    pub description: &'static str,
    /// The JSON schema of its arguments, an object.
    pub schema: Value,
}

/// The context of a call. Clones share the todo list.
#[derive(Clone, Debug)]
pub struct Context {
    pub workspace: Workspace,
    pub todos: Todos,
    /// The directory for output that is too long to show. The file tools may read it, but not write.
    pub overflow: PathBuf,
    pub output_room: OutputRoom,
    pub cancel: CancellationToken,
    /// What [`leaves`] returned for this call, if that was permitted. Only that very place is opened, even
    /// if a symlink has been changed since a person was asked.
    pub may_leave: Option<String>,
    /// Starts commands.
    pub launcher: Launcher,
    /// The sandbox around them.
    pub session_sandbox: SessionSandbox,
}

/// A disk quota for saved output, shared by all commands of a session: one that prints without end must
/// not fill the disk.
#[derive(Clone, Debug)]
pub struct OutputRoom(Arc<AtomicU64>);

impl OutputRoom {
    /// What is left of `most` bytes, given the files that are already in this directory.
    pub fn left(most: u64, folder: &Path) -> OutputRoom {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let used: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        OutputRoom(Arc::new(AtomicU64::new(most.saturating_sub(used))))
    }

    /// Reserves up to `wanted` bytes, and returns how many.
    fn take(&self, wanted: usize) -> usize {
        let wanted = wanted as u64;
        let rest = |left: u64| Some(left - left.min(wanted));
        // Commands run in parallel, so taking is one atomic step; no other memory depends on it.
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        left.unwrap_or(0).min(wanted) as usize
    }
}

/// The result of a call: the text for the model, and a short title for progress reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub text: String,
    pub title: String,
}

/// All tools, always in this order.
pub fn specs() -> Vec<Spec> {
    ALL.into_iter().map(Tool::spec).collect()
}

/// The prefix of a permission for credentials inside the workspace. No rule can give it, only a person.
pub const CREDENTIALS: &str = "credentials";

/// The permission that a call would need, as `external_directory <path>`, `credentials <path>` or
/// `outside_sandbox <command>`; `None` if it needs none.
pub fn leaves(name: &str, arguments: &Value, context: &Context) -> Option<String> {
    let tool = Tool::named(name)?;
    if tool == Tool::Bash {
        return bash::leaves(arguments, context);
    }
    // A path that does not resolve needs no permission: the call fails by itself.
    let access = tool.access()?;
    let place = context.workspace.place(arguments.get("path")?.as_str()?).ok()?;
    context.outside(&place, access)
}

/// The subject of a call, for rules and for people: the resolved path, or the command.
pub fn subject(name: &str, arguments: &Value, context: &Context) -> String {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str).unwrap_or_default();
    match name {
        "bash" => text("command").to_owned(),
        _ => match context.workspace.place(text("path")) {
            Ok(place) => context.workspace.show(&place.path),
            Err(_) => text("path").to_owned(),
        },
    }
}

/// Runs a call whose permissions have been decided.
pub async fn run(name: &str, arguments: &Value, context: &Context) -> Result<Output, Error> {
    let tool = Tool::named(name).ok_or_else(|| Error::NoSuchTool { name: name.to_owned() })?;
    if context.cancel.is_cancelled() {
        return Err(Error::Cancelled);
    }
    match tool {
        Tool::Read => in_thread(read::run, parse(tool, arguments)?, context).await,
        Tool::List => in_thread(list::run, parse(tool, arguments)?, context).await,
        Tool::Glob => in_thread(glob::run, parse(tool, arguments)?, context).await,
        Tool::Grep => in_thread(grep::run, parse(tool, arguments)?, context).await,
        Tool::Edit => in_thread(edit::run, parse(tool, arguments)?, context).await,
        Tool::Write => in_thread(write::run, parse(tool, arguments)?, context).await,
        Tool::Bash => bash::run(parse(tool, arguments)?, context).await,
        Tool::Todo => Ok(todo::run(parse(tool, arguments)?, context)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Read,
    List,
    Glob,
    Grep,
    Edit,
    Write,
    Bash,
    Todo,
}

const ALL: [Tool; 8] = [
    Tool::Read,
    Tool::List,
    Tool::Glob,
    Tool::Grep,
    Tool::Edit,
    Tool::Write,
    Tool::Bash,
    Tool::Todo,
];

/// What a tool does at its `path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Tool {
    fn named(name: &str) -> Option<Tool> {
        ALL.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Tool::Read => "read",
            Tool::List => "list",
            Tool::Glob => "glob",
            Tool::Grep => "grep",
            Tool::Edit => "edit",
            Tool::Write => "write",
            Tool::Bash => "bash",
            Tool::Todo => "todo",
        }
    }

    /// `None` for tools that take no path.
    fn access(self) -> Option<Access> {
        match self {
            Tool::Read | Tool::List | Tool::Glob | Tool::Grep => Some(Access::Read),
            Tool::Edit | Tool::Write => Some(Access::Write),
            Tool::Bash | Tool::Todo => None,
        }
    }

    fn spec(self) -> Spec {
        let (description, properties, required) = match self {
            Tool::Read => (read::DESCRIPTION, read::properties(), read::REQUIRED),
            Tool::List => (list::DESCRIPTION, list::properties(), list::REQUIRED),
            Tool::Glob => (glob::DESCRIPTION, glob::properties(), glob::REQUIRED),
            Tool::Grep => (grep::DESCRIPTION, grep::properties(), grep::REQUIRED),
            Tool::Edit => (edit::DESCRIPTION, edit::properties(), edit::REQUIRED),
            Tool::Write => (write::DESCRIPTION, write::properties(), write::REQUIRED),
            Tool::Bash => (bash::DESCRIPTION, bash::properties(), bash::REQUIRED),
            Tool::Todo => (todo::DESCRIPTION, todo::properties(), todo::REQUIRED),
        };
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        Spec { name: self.name(), description, schema }
    }
}

impl Context {
    /// Resolves the path of a call and checks that it may be accessed.
    fn reach(&self, path: &str, access: Access) -> Result<ResolvedPath, Error> {
        let place = self.workspace.place(path)?;
        if access == Access::Write && sandbox::is_protected(self.workspace.root(), &place.path) {
            return Err(Error::Protected { path: place.shown });
        }
        // Checked again here although `leaves` was asked before: a symlink may have changed since.
        let hidden = self.hidden_kind(&place, access);
        if hidden == Some(HiddenKind::Own) {
            return Err(Error::Own { path: place.shown });
        }
        match self.outside(&place, access) {
            Some(what) if self.may_leave.as_ref() == Some(&what) => Ok(place),
            Some(_) if hidden.is_some() => Err(Error::Credentials { path: place.shown }),
            Some(_) => Err(Error::Outside {
                path: place.shown,
                root: self.workspace.root().display().to_string(),
            }),
            None => Ok(place),
        }
    }

    /// The permission that access to a place needs, if any.
    fn outside(&self, place: &ResolvedPath, access: Access) -> Option<String> {
        let in_workspace = place.path.starts_with(self.workspace.root());
        let path = place.path.display();
        match self.hidden_kind(place, access) {
            Some(HiddenKind::Credentials) if in_workspace => Some(format!("{CREDENTIALS} {path}")),
            // No permission opens these, so nobody is asked; `reach` refuses.
            Some(HiddenKind::Own) => None,
            Some(HiddenKind::Credentials) | None => (!in_workspace && !self.is_kept(place, access))
                .then(|| format!("external_directory {path}")),
        }
    }

    /// Why the place is hidden from agents, if it is.
    fn hidden_kind(&self, place: &ResolvedPath, access: Access) -> Option<HiddenKind> {
        let hidden = || self.hidden().kind_of(&place.path);
        if self.is_kept(place, access) { None } else { hidden() }
    }

    fn hidden(&self) -> HiddenPlaces {
        self.session_sandbox.sandbox.hidden_from(self.workspace.root())
    }

    /// Whether the place is saved output, which agents may read although it is among our own files.
    fn is_kept(&self, place: &ResolvedPath, access: Access) -> bool {
        let overflow = || resolve(Path::new("/"), &self.overflow);
        access == Access::Read
            && self.overflow.is_absolute()
            && overflow().is_ok_and(|overflow| place.path.starts_with(overflow))
    }
}

fn parse<T: DeserializeOwned>(tool: Tool, arguments: &Value) -> Result<T, Error> {
    let arguments = match arguments {
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    serde_json::from_value(arguments).map_err(|error| Error::Arguments {
        tool: tool.name(),
        // serde's message quotes the arguments, which may be long.
        reason: clip(&error.to_string(), 500),
    })
}

/// Runs a file tool on a blocking thread.
async fn in_thread<A: Send + 'static>(
    run: fn(A, &Context, &Halt) -> Result<Output, Error>,
    arguments: A,
    context: &Context,
) -> Result<Output, Error> {
    let context = context.clone();
    let halt = Halt::after(LONGEST, context.cancel.clone());
    match threads::within(LONGEST + GRACE, move || run(arguments, &context, &halt)).await {
        Ok(done) => done,
        Err(panic @ threads::Error::Panicked) => Err(Error::Broken { reason: panic.to_string() }),
        Err(threads::Error::TimedOut(after)) => Err(Error::TimedOut { after }),
    }
}
