//! Claude Code in a terminal, where it declares the tasks extension: a call moves to the
//! background, and its model is woken with the result, once.

use std::fs;

use asyncagents::wire::{CallerView, Door, OutputRequest};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{errand, hanging};
use crate::support::canary::CANARY;
use crate::support::process::until;
use crate::support::quoted;
use crate::support::real_client::{Client, RealClient};
use crate::support::screen::Screen;

fn screen<'a>(real: &'a RealClient, name: &str, words: &[String]) -> Screen<'a> {
    Screen::start(&real.shell, &real.shell.path("project"), name, (150, 50), words)
}

/// A Claude Code past its first-run dialogs.
fn used_before() -> Option<RealClient> {
    let real = RealClient::registered(Client::Claude)?;
    let project = real.shell.path("project").canonicalize().unwrap();
    let key = &CANARY[CANARY.len().saturating_sub(20)..];
    let known = json!({
        "hasCompletedOnboarding": true, "theme": "dark", "numStartups": 5,
        "customApiKeyResponses": { "approved": [key], "rejected": [] },
        "projects": { project.to_str().unwrap(): {
            "hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true,
            "enabledMcpjsonServers": ["asyncagents"], "allowedTools": [],
        } },
    });
    fs::write(real.shell.path(".claude.json"), known.to_string()).unwrap();
    Some(real)
}

/// Its model got the result exactly once, and no notice is left unread.
fn was_woken(real: &RealClient, result: &str) {
    until("its model is woken", || real.told("first").contains("<task-notification>"));
    let told = real.told("first");
    assert_eq!(told.matches(&quoted("Result", result)).count(), 1, "{told}");
    until("the answer is acknowledged", || {
        let db = rusqlite::Connection::open(real.shell.database()).unwrap();
        let unread = "SELECT count(*) FROM notice WHERE read_at IS NULL";
        db.query_row(unread, [], |row| row.get::<_, i64>(0)).unwrap() == 0
    });
    assert_eq!((real.calls("Task"), real.shell.tasks().len()), (1, 1));
}

#[test]
fn a_call_of_claude_code_moves_to_the_background_and_its_model_is_woken_once() {
    for is_killed in [false, true] {
        let Some(real) = used_before() else { return };
        let calls = [errand("one", "@hang")];
        let name = if is_killed { "killed" } else { "woken" };
        let words = real.on_screen(Some(("first", &calls)));
        let on_screen = screen(&real, name, &words);
        on_screen.until_shows("1 MCP task");
        let task = hanging(&real);
        if is_killed {
            real.shell.kill_daemon();
        }
        until("it is polled", || real.shell.health().is_some());
        real.shell.finish(&task, "found it");
        was_woken(&real, "found it");
    }
}

#[test]
fn claude_code_that_was_closed_and_resumed_is_woken_with_what_ended_meanwhile() {
    let Some(real) = used_before() else { return };
    let calls = [errand("one", "@hang")];
    let on_screen = screen(&real, "closed", &real.on_screen(Some(("first", &calls))));
    on_screen.until_shows("1 MCP task");
    let task = hanging(&real);
    drop(on_screen);
    real.shell.finish(&task, "found late");
    until("it has ended", || real.shell.task(&task.session_id).status.name() == "completed");
    let _screen = screen(&real, "resumed", &real.on_screen(None));
    was_woken(&real, "found late");
}

#[test]
fn a_permission_is_answered_in_a_form_of_claude_code_and_its_model_is_woken_with_the_result() {
    let Some(real) = used_before() else { return };
    let calls = [errand("one", "@ask bash rm x\n@say removed")];
    let screen = screen(&real, "form", &real.on_screen(Some(("first", &calls))));
    screen.until_shows("asks for \"bash rm x\". Is it allowed to?");
    screen.press_until_shows("Right", "◯ allow");
    screen.press_until_shows("Enter", "✔ Answer: allow");
    screen.press_until_shows("Enter", "(asyncagents/Task) completed.");
    was_woken(&real, "removed");
    let task = real.shell.tasks().remove(0);
    let caller = CallerView { session_id: "cli".into(), ..CallerView::default() };
    let request = OutputRequest { caller, ..OutputRequest::default() };
    let output = Runtime::new()
        .unwrap()
        .block_on(async { real.shell.client().output(&task.session_id, &request).await.unwrap() });
    let answers = output.answers.iter();
    let answers: Vec<_> = answers.map(|it| (it.what.as_str(), it.allowed, it.door)).collect();
    assert_eq!(answers, [("bash rm x", true, Door::McpElicitation)]);
}
