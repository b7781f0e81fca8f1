//! Trust (X1): files of a workspace define agents only once the user has trusted it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use asyncagents::wire::{CallerView, ToolLine, ToolRequest};
use serde_json::json;

use crate::support::process::{CommandOutcome, Shell};
use crate::support::terminal::Terminal;

const GUARD: &str = "---\ndescription: looks\ntools: Read, Bash(git diff:*)\n---\nYou look.\n";

/// A shell on the embedded host, and a cloned repository that defines an agent.
struct Clone {
    shell: Shell,
    root: PathBuf,
}

impl Clone {
    fn new() -> Clone {
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        let root = shell.path("clone");
        fs::create_dir(&root).unwrap();
        let clone = Clone { root: root.canonicalize().unwrap(), shell };
        clone.write(".claude/agents/guard.md", GUARD);
        clone.write("src/login.rs", "pub fn login() {}\n");
        clone
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let file = self.root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }

    fn run<const N: usize>(&self, args: [&str; N]) -> CommandOutcome {
        self.shell.run_in(&self.root, args)
    }

    fn terminal<const N: usize>(&self, args: [&str; N]) -> Terminal {
        Terminal::start(self.shell.command(args).current_dir(&self.root), None)
    }

    /// Refused, with the command that allows it.
    fn check_refused(&self, ended: &CommandOutcome) {
        let stderr = format!("error: {}\n", self.refusal());
        let expected = CommandOutcome { code: 1, stdout: String::new(), stderr };
        assert_eq!(*ended, expected);
    }

    fn refusal(&self) -> String {
        format!(
            "agent `guard` is defined by a file of the workspace `{0}`, which is not trusted, so it \
             is not used; `asyncagents agents` shows there what it would be allowed, and \
             `asyncagents trust {0}` allows it",
            self.root.display()
        )
    }

    /// The text without the paths of this test.
    fn masked(&self, text: &str) -> String {
        let place = self.root.parent().unwrap();
        let masked = text.replace(&self.root.display().to_string(), "<clone>");
        masked.replace(&place.display().to_string(), "<place>")
    }
}

fn said(stdout: String) -> CommandOutcome {
    CommandOutcome { code: 0, stdout, stderr: String::new() }
}

#[test]
fn an_agent_of_an_untrusted_workspace_is_refused_until_it_is_trusted() {
    let clone = Clone::new();
    let run = ["run", "--agent", "guard", "Where is the login?"];
    clone.check_refused(&clone.run(run));
    let trusted = format!(
        "`{}` is trusted: the agents of its files can be used (`asyncagents agents` lists them)\n",
        clone.root.display()
    );
    assert_eq!(clone.run(["trust"]), said(trusted));
    let launched = clone.run(run);
    let id = launched.stdout.trim();
    assert_eq!(clone.run(["wait", "--quiet", id]).code, 0, "{launched:?}");

    let untrusted = format!("`{}` is not trusted\n", clone.root.display());
    assert_eq!(clone.run(["untrust"]), said(untrusted));
    clone.check_refused(&clone.run(run));
    clone.check_refused(&clone.run(["resume", id, "And now?"]));
    // Its result can still be read, and it can be resumed once the workspace is trusted again.
    assert_eq!(clone.shell.json(["output", id, "--json"])["status"], "completed");
    clone.run(["trust"]);
    assert_eq!(clone.run(["resume", id, "And now?"]).code, 0);
    assert_eq!(clone.run(["wait", "--quiet", id]).code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_call_with_an_untrusted_agent_is_refused_with_the_way_out() {
    let clone = Clone::new();
    tokio::task::block_in_place(|| clone.run(["daemon", "start"]));
    let request = ToolRequest {
        caller: CallerView {
            session_id: "someone".into(),
            directory: clone.root.display().to_string(),
            ..CallerView::default()
        },
        arguments: json!({ "description": "look", "prompt": "Look.", "agent": "guard" }),
        ..ToolRequest::default()
    };
    let mut call = clone.shell.client().call_tool("asyncagents_task", &request).await.unwrap();
    let answer = match call.next().await.unwrap() {
        ToolLine::Answer(answer) => answer.text,
        other => panic!("{other:?}"),
    };
    assert_eq!(answer, format!("Error: {}", clone.refusal()));
}

#[test]
fn trust_list_shows_every_decision() {
    let clone = Clone::new();
    let other = clone.shell.path("other");
    fs::create_dir(&other).unwrap();
    symlink(&clone.root, clone.shell.path("link")).unwrap();
    assert_eq!(clone.run(["trust", "--list"]), said("STATE  DIRECTORY\n".to_owned()));
    clone.run(["trust", "../link"]);
    clone.run(["untrust", "../other"]);
    let listed = clone.masked(&clone.run(["trust", "--list"]).stdout);
    assert_eq!(listed, "STATE     DIRECTORY\ntrusted   <clone>\ndeclined  <place>/other\n");
    let path = |path: &Path| path.canonicalize().unwrap().display().to_string();
    let expected = json!([
        { "path": path(&clone.root), "state": "trusted" },
        { "path": path(&other), "state": "declined" },
    ]);
    assert_eq!(clone.shell.json(["trust", "--list", "--json"]), expected);
    let list = fs::metadata(clone.shell.home().join("trust.json")).unwrap();
    let home = fs::metadata(clone.shell.home()).unwrap();
    let modes = [list, home].map(|file| file.permissions().mode() & 0o777);
    assert_eq!(modes, [0o600, 0o700]);

    fs::remove_dir(&other).unwrap();
    assert_eq!(clone.run(["untrust", "../other"]).code, 1, "only the whole path is on the list");
    let gone =
        clone.run(["untrust", &format!("{}/other/", clone.root.parent().unwrap().display())]);
    assert_eq!(gone.code, 0, "{gone:?}");
    let listed = clone.masked(&clone.run(["trust", "--list"]).stdout);
    assert_eq!(listed, "STATE    DIRECTORY\ntrusted  <clone>\n");
}

#[test]
fn a_damaged_trust_list_is_reported_and_trusts_nothing() {
    let clone = Clone::new();
    clone.run(["trust"]);
    fs::write(clone.shell.home().join("trust.json"), "{\"workspaces\":").unwrap();
    let said = "cannot read the trust list `<place>/home/trust.json`, so no workspace is trusted: EOF \
                while parsing a value at line 1 column 14; repair or delete it, then trust workspaces \
                again";
    let run = clone.run(["run", "--agent", "guard", "Look."]);
    assert_eq!(
        (run.code, clone.masked(&run.stderr)),
        (
            1,
            format!(
                "error: agent `guard` is defined by a file of the workspace `<clone>`, which is not \
                 trusted, so it is not used; `asyncagents agents` shows there what it would be \
                 allowed, and {said}\n"
            )
        )
    );
    assert_eq!(clone.masked(&clone.run(["agents"]).stderr), format!("{said}\n"));
    let doctor = clone.run(["doctor"]);
    assert_eq!(doctor.code, 1);
    let line = format!("✗ trust: {said}\n");
    assert!(clone.masked(&doctor.stdout).contains(&line), "{}", doctor.stdout);
    for verb in ["trust", "untrust"] {
        assert_eq!(clone.masked(&clone.run([verb]).stderr), format!("error: {said}\n"));
    }
    // The trust list does not concern agents that are not defined by a workspace.
    assert_eq!(clone.run(["run", "--agent", "explore", "Look."]).code, 0);
}

#[test]
fn the_doctor_says_that_a_workspace_is_untrusted_when_it_matters() {
    let clone = Clone::new();
    let line = |ended: CommandOutcome| {
        let lines = ended.stdout.lines().find(|line| line.contains("trust:")).map(str::to_owned);
        (ended.code, lines)
    };
    let undecided = "! trust: files of this directory define 1 agent that cannot be used yet; \
                     `asyncagents agents` shows what they would be allowed, `asyncagents trust` \
                     allows it";
    assert_eq!(line(clone.run(["doctor"])), (0, Some(undecided.to_owned())));
    clone.run(["untrust"]);
    let declined = "✓ trust: declined for this directory, whose files define 1 agent (`asyncagents \
                    trust` changes that)";
    assert_eq!(line(clone.run(["doctor"])), (0, Some(declined.to_owned())));
    clone.run(["trust"]);
    assert_eq!(line(clone.run(["doctor"])), (0, None));
    assert_eq!(line(clone.shell.run(["doctor"])), (0, None), "no agent files");
}

const QUESTION: &str = "? [y/N] ";

#[test]
fn agents_asks_once_on_a_terminal_and_remembers_yes() {
    let clone = Clone::new();
    let mut terminal = clone.terminal(["agents"]);
    terminal.until_shows(QUESTION);
    terminal.type_keys("y\n");
    let (code, shown) = terminal.wait();
    assert_eq!(code, 0);
    insta::assert_snapshot!("trust_question_of_agents", clone.masked(&shown));
    let (code, shown) = clone.terminal(["agents"]).wait();
    assert_eq!(code, 0);
    assert!(!shown.contains(QUESTION) && !shown.contains("Untrusted"), "{shown}");
    assert_eq!(clone.run(["run", "--agent", "guard", "Look."]).code, 0);
}

#[test]
fn run_asks_once_on_a_terminal_and_remembers_no() {
    let clone = Clone::new();
    let run = ["run", "--agent", "guard", "Where is the login?"];
    let mut terminal = clone.terminal(run);
    terminal.until_shows(QUESTION);
    terminal.type_keys("\n");
    let (code, shown) = terminal.wait();
    assert_eq!(code, 1);
    insta::assert_snapshot!("trust_question_of_run", clone.masked(&shown));
    let refused = format!("error: {}\n", clone.refusal());
    assert_eq!(clone.terminal(run).wait(), (1, refused));
    assert!(!clone.terminal(["agents"]).wait().1.contains(QUESTION));
}

#[test]
fn run_launches_after_a_yes() {
    let clone = Clone::new();
    let mut command = clone.shell.command(["run", "--agent", "guard", "Where is the login?"]);
    // Standard output is not the terminal, as in `id=$(asyncagents run …)`; the question still is on it.
    let id = fs::File::create(clone.shell.path("id")).unwrap();
    let mut terminal = Terminal::start(command.current_dir(&clone.root), Some(Stdio::from(id)));
    terminal.until_shows(QUESTION);
    terminal.type_keys("yes\n");
    assert_eq!(terminal.wait().0, 0);
    let id = fs::read_to_string(clone.shell.path("id")).unwrap();
    assert_eq!(clone.run(["wait", "--quiet", id.trim()]).code, 0);
}

#[test]
fn nobody_is_asked_without_need_or_without_a_terminal() {
    let clone = Clone::new();
    let check = |(code, shown): (i32, String), expected: i32| {
        assert!(code == expected && !shown.contains(QUESTION), "{code} {shown}");
    };
    check(clone.terminal(["run", "--agent", "explore", "Look."]).wait(), 0);
    check(clone.terminal(["run", "--agent", "nobody", "Look."]).wait(), 1);
    check(clone.terminal(["demo"]).wait(), 0);
    check(clone.terminal(["agents", "--json"]).wait(), 0);
    check(clone.terminal(["run", "--json", "--agent", "guard", "Look."]).wait(), 1);
    clone.check_refused(&clone.run(["run", "--agent", "guard", "Look."]));
    // With standard output in a file, or in a pager.
    let list = fs::File::create(clone.shell.path("list")).unwrap();
    let mut command = clone.shell.command(["agents"]);
    check(Terminal::start(command.current_dir(&clone.root), Some(list.into())).wait(), 0);
    // Ctrl-D, the end of the input, is no answer and is not remembered as one.
    let mut terminal = clone.terminal(["agents"]);
    terminal.until_shows(QUESTION);
    terminal.type_keys("\u{4}");
    assert_eq!(terminal.wait().0, 0);
    assert_eq!(clone.run(["trust", "--list"]), said("STATE  DIRECTORY\n".to_owned()));
    clone.terminal(["agents"]).until_shows(QUESTION);
}
