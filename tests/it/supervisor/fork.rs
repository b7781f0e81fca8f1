//! Forking (F1, F6–F8, O4): a child starts with its parent's conversation, or is not launched.

use asyncagents::fork;
use asyncagents::host::scripted::{Control, Scripted};
use asyncagents::host::{self, Host, NewSession, Prompt};
use asyncagents::supervisor::{Caller, Error, Fork, ForkMethod, Launch};
use asyncagents::task::{LaunchMode, MAILBOX, SessionId, Slot, Status, Task};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::support::process::Shell;
use crate::support::{ModelServer, World, caller, order, settings};

impl World {
    /// Runs a script in the parent's own conversation, to its end.
    async fn talk(&self, parent: &SessionId, script: &str) {
        let prompt = Prompt {
            to: host::Place::unknown(parent.clone()),
            message: self.clock.message_id(),
            text: script.to_owned(),
            agent: "build".into(),
            model: None,
        };
        Scripted::Here(self.host.clone()).prompt(prompt).await.unwrap();
        self.until("the parent has answered", || !self.host.is_busy(parent)).await;
    }

    async fn try_fork(&self, parent: &SessionId, prompt: &str) -> Result<Task, Error> {
        let launch = Launch { wanted: order(prompt).into(), fork: Fork::Caller, key: None };
        self.supervisor.launch(caller(parent), launch).await
    }

    async fn fork(&self, parent: &SessionId, prompt: &str) -> Task {
        self.try_fork(parent, prompt).await.unwrap()
    }

    /// What a child of this parent would inherit, computed by the pure rules.
    async fn inheritance(&self, parent: &SessionId) -> fork::Inheritance {
        let host = Scripted::Here(self.host.clone());
        let place = host::Place::unknown(parent.clone());
        fork::inherit(&host.transcript(place).await.unwrap()).unwrap()
    }

    /// The prompts of a child, once there are this many.
    async fn said(&self, task: &Task, messages: usize) -> Vec<String> {
        let enough = || self.host.prompts(&task.id).len() >= messages;
        self.until("the child is prompted", enough).await;
        self.host.prompts(&task.id)
    }
}

/// 22 tool results after a compaction, three of them long, and as many before it.
fn long_script() -> String {
    let calls = "@tool read {\"path\":\"a\"}\n".repeat(20);
    format!(
        "first words\n{calls}@compact\n@print read 4000\n@tool grep {{\"pattern\":\"login\"}}\n\
         {calls}@print bash 5000\n@say that was much"
    )
}

#[tokio::test]
async fn a_forked_child_gets_preamble_and_context_without_a_reply_and_then_its_prompt() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.talk(&parent, &long_script()).await;
    let expected = world.inheritance(&parent).await;
    let task = world.fork(&parent, "go on\n@say done").await;
    assert!(task.origin.is_forked);
    let ended = world.ended(&task).await;
    assert_eq!(ended.state.result(), Some("done"));
    let handed_over = format!("{}\n{}", expected.preamble, expected.context);
    assert_eq!(world.host.prompts(&task.id), [handed_over, "go on\n@say done".to_owned()]);
    // A single assistant message: the inherited context was posted without asking the model.
    let host = Scripted::Here(world.host.clone());
    let transcript = host.transcript(host::Place::from(&task)).await.unwrap();
    let messages: Vec<Value> = serde_json::from_str(&transcript).unwrap();
    let roles: Vec<&str> = messages.iter().map(|m| m["info"]["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "user", "assistant"]);
    let synthetic: Vec<&Value> =
        messages[0]["parts"].as_array().unwrap().iter().map(|part| &part["synthetic"]).collect();
    assert_eq!(
        synthetic,
        [&Value::Null, &json!(true)],
        "the context is synthetic, not shown to people"
    );
    // The context starts at the compaction and leaves out what is before it.
    assert!(expected.context.starts_with("[Assistant]\na summary of what was said"));
    assert!(!expected.context.contains("first words"));
    assert_eq!(expected.counts.results, fork::PerTier { whole: 5, long: 10, short: 8 });
    assert!(expected.context.contains(&format!("{}\n[3500 more characters cut]", "x".repeat(500))));
    assert!(expected.context.contains(&"x".repeat(5_000)), "the newest is whole");
    assert_eq!(world.host.title(&task.id), "Background (forked): look around");
}

#[tokio::test]
async fn sibling_forks_of_the_same_parent_get_byte_identical_context() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.talk(&parent, &long_script()).await;
    let one = world.fork(&parent, "@hang").await;
    let two = world.fork(&parent, "@hang").await;
    let (one, two) = (world.said(&one, 2).await, world.said(&two, 2).await);
    assert_eq!(one, two);
}

#[tokio::test]
async fn the_context_of_a_queued_task_is_that_of_its_launch() {
    let mut one_at_a_time = settings();
    let mut limits = (*one_at_a_time.limits).clone();
    limits.active_per_parent = 1;
    one_at_a_time.limits = limits.into();
    let mut world = World::with(one_at_a_time).await;
    let parent = world.parent().await;
    world.talk(&parent, "@say an apple").await;
    let first = world.launch(&parent, "@hang").await;
    let queued = world.fork(&parent, "@say done").await;
    assert_eq!(queued.slot, Slot::Queued);
    world.talk(&parent, "@say a pear").await;
    // The snapshot was taken at the launch and survives a restart.
    world.restart().await;
    world.finish(&first, "done").await;
    world.ended(&queued).await;
    let said = world.host.prompts(&queued.id);
    assert!(said[0].ends_with("[Assistant]\nan apple"), "{said:?}");
}

#[tokio::test]
async fn a_context_whose_acknowledgement_was_lost_is_not_sent_twice() {
    for stored in [true, false] {
        let world = World::start().await;
        let parent = world.parent().await;
        world.talk(&parent, "@say before").await;
        world.control(Control::FailPosts { posts: 1, stored }).await;
        let task = world.fork(&parent, "@say done").await;
        let ended = world.ended(&task).await;
        assert_eq!(ended.status(), Status::Completed);
        let said = world.host.prompts(&task.id);
        assert_eq!(said.len(), 2, "{said:?}");
        let posts = world.host.posts();
        let to_child = posts.iter().filter(|post| post.to.session == task.id).count();
        assert_eq!(to_child, 1, "the host is searched before a retry");
    }
}

#[tokio::test]
async fn a_daemon_that_dies_between_context_and_prompt_sends_the_context_once() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    world.talk(&parent, "@say before").await;
    let expected = world.inheritance(&parent).await;
    // Crash window: the context is posted, and the daemon is killed before it can record that.
    world.control(Control::FailPosts { posts: 1, stored: true }).await;
    let task = world.fork(&parent, "@say done").await;
    world.said(&task, 1).await;
    world.restart().await;
    world.ended(&task).await;
    let handed_over = format!("{}\n{}", expected.preamble, expected.context);
    assert_eq!(world.host.prompts(&task.id), [handed_over, "@say done".to_owned()]);
}

#[tokio::test]
async fn a_fork_interrupted_during_its_launch_is_recovered_with_its_context() {
    let mut world = World::start().await;
    let parent = world.parent().await;
    let launch = json!({
        "caller": caller(&parent), "host": "scripted", "depth": 1, "at": world.clock.now(),
        "order": {
            "description": "look around", "prompt": "@say done", "agent": "explore",
            "model": null, "budget": {}, "manner": "Background", "batch": null, "host": null,
        },
        "inherits": {"Context": {"preamble": "You continue.", "context": "[User]\nhello"}},
    });
    world.crash();
    let intent = asyncagents::store::Intent {
        nonce: "n1".into(),
        host: "scripted".into(),
        parent_session: parent.clone(),
        created_at: world.clock.now(),
        launch: launch.to_string(),
    };
    world
        .store
        .intents()
        .intend(intent, None, LaunchMode::Background, settings().limits)
        .await
        .unwrap();
    let session = NewSession {
        parent: Some(host::Place::unknown(parent.clone())),
        title: "Background (forked): look around".into(),
        nonce: "n1".into(),
        directory: "/project".into(),
        agent: "explore".into(),
        deny: Vec::new(),
        handed: Default::default(),
    };
    let session = Scripted::Here(world.host.clone()).open(session).await.unwrap().session;
    world.revive();
    let supervisor = world.supervisor.clone();
    world.until("it is adopted", || supervisor.task(&session).is_ok()).await;
    let task = world.ended(&world.task(&session)).await;
    assert!(task.origin.is_forked);
    assert_eq!(world.host.prompts(&session), ["You continue.\n[User]\nhello", "@say done"]);
}

#[tokio::test]
async fn a_parent_that_cannot_be_read_fails_the_launch_and_creates_nothing() {
    let world = World::start().await;
    let parent = world.parent().await;
    let nothing_was_created = |sessions: &[SessionId]| {
        assert_eq!(world.host.sessions(), sessions);
        assert_eq!(world.supervisor.task_count().unwrap(), 0);
        assert_eq!(world.store.intents().all().unwrap(), []);
    };
    // The caller's session does not exist.
    let gone = SessionId::new("ses_gone");
    let error = world.try_fork(&gone, "look").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot fork session `ses_gone`: session `ses_gone` does not exist on its host; nothing \
         was launched, try again or launch without `fork`"
    );
    nothing_was_created(std::slice::from_ref(&parent));
    // The caller has no conversation.
    let shell = Caller { host: MAILBOX.into(), ..caller(&parent) };
    let launch = |fork| Launch { wanted: order("look").into(), fork, key: None };
    let error = world.supervisor.launch(shell.clone(), launch(Fork::Caller)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`fork` needs a conversation, and this caller has none; launch without it and put what the \
         agent needs into the prompt (`asyncagents run --fork SESSION` names a conversation)"
    );
    // The named session does not exist.
    let unknown = Fork::Session("ses_gone".into());
    let error = world.supervisor.launch(shell.clone(), launch(unknown)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no session `ses_gone` on any host (scripted), and no task of that id; list the tasks \
         to see theirs"
    );
    // The host does not respond.
    world.launch(&parent, "@say known").await;
    world.control(Control::Unreachable { yes: true }).await;
    let error = world.try_fork(&parent, "look").await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot fork session `{parent}`: ")), "{error}");
    assert_eq!(world.supervisor.task_count().unwrap(), 1);
}

#[tokio::test]
async fn a_shell_forks_any_session_and_is_the_parent_of_the_fork() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.talk(&parent, "@say known").await;
    let child = world.end_of(&parent, "dig\n@say deep").await;
    world.posts(&parent, 1).await;
    let shell = Caller {
        session: SessionId::new("cli"),
        host: MAILBOX.into(),
        message: String::new(),
        ..caller(&parent)
    };
    for (reference, expected) in [
        (parent.to_string(), "[Assistant]\nknown"),
        (child.id.to_string(), "[Assistant]\ndeep"),
        (child.short_id.to_string(), "[Assistant]\ndeep"),
    ] {
        let preview = world.supervisor.fork_preview(&reference).await.unwrap();
        assert!(preview.context.contains(expected), "{reference}: {}", preview.context);
        let launch =
            Launch { wanted: order("@say done").into(), fork: Fork::Session(reference), key: None };
        let task = world.supervisor.launch(shell.clone(), launch).await.unwrap();
        assert_eq!((task.origin.parent.session.as_str(), task.origin.is_forked), ("cli", true));
        let said = world.said(&task, 2).await;
        assert_eq!(said[0], format!("{}\n{}", preview.preamble, preview.context));
    }
}

#[tokio::test]
async fn a_host_that_cannot_copy_sessions_gets_the_context_as_text_whatever_is_configured() {
    let mut native = settings();
    native.fork_method = ForkMethod::Native;
    let world = World::with(native).await;
    let parent = world.parent().await;
    world.talk(&parent, "@say before").await;
    let expected = world.inheritance(&parent).await;
    let task = world.fork(&parent, "@say done").await;
    world.ended(&task).await;
    assert!(world.host.prompts(&task.id)[0].ends_with(&expected.context));
}

#[tokio::test]
async fn the_tool_launches_a_fork_and_marks_it_as_one_in_its_texts() {
    let world = World::start().await;
    let parent = world.parent().await;
    world.talk(&parent, "@say before").await;
    let call = async |name: &str, arguments: Value| {
        let caller = caller(&parent);
        world.tool(&caller, name, arguments).await.text
    };
    let arguments = json!({
        "description": "look", "prompt": "@hang", "agent": "explore", "fork": true
    });
    let said = call("asyncagents_task", arguments).await;
    let listed = call("asyncagents_list", json!({})).await;
    let task = &world.supervisor.list(&parent, None).unwrap().tasks[0];
    let marked = format!("{} (forked)", task.short_id);
    assert!(said.contains(&format!("Task ID: {marked}\n")), "{said}");
    assert!(listed.contains(&format!("- {marked} [running")), "{listed}");
}

/// Embedded agents on a scripted model server.
struct Fixture {
    shell: Shell,
    server: ModelServer,
}

impl Fixture {
    async fn build(config: &str) -> Fixture {
        let server = ModelServer::start().await;
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
        shell.set("OPENAI_BASE_URL", server.base_url());
        shell.set("OPENAI_API_KEY", "sk-only-for-tests");
        let file = shell.path("config.toml");
        std::fs::write(&file, config).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", file);
        std::fs::write(shell.path("a"), "text of a\n").unwrap();
        let long = format!("long {}", "line of it\n".repeat(900));
        std::fs::write(shell.path("long"), long).unwrap();
        Fixture { shell, server }
    }

    fn wait(&self, id: &str) {
        let waited = self.shell.run(["wait", id]);
        assert_eq!(waited.code, 0, "{waited:?}");
    }

    fn run(&self, arguments: &[&str]) -> String {
        let id = self.shell.say(["run"].iter().chain(arguments)).trim().to_owned();
        self.wait(&id);
        id
    }

    /// A parent that was compacted and has made 22 tool calls since.
    fn parent(&self) -> String {
        let id = self.run(&[
            "--agent",
            "general",
            "first words\n@call read {\"path\": \"a\"} | usage 5000 10 0\n@say never",
        ]);
        let calls = "@call read {\"path\": \"a\"}\n".repeat(20);
        let more = format!(
            "more words\n@call read {{\"path\": \"long\"}}\n{calls}\
             @call bash {{\"command\": \"echo newest\"}}\n@say all read"
        );
        self.shell.say(["resume", &id, &more]);
        self.wait(&id);
        id
    }

    /// The messages of the last model request.
    fn last_messages(&self) -> Vec<Value> {
        let asked = self.server.asked();
        asked.last().unwrap().body["messages"].as_array().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_of_a_forked_embedded_agent_reads_its_parents_conversation() {
    let place = Fixture::build("[agent]\ncompact_at_tokens = 1000\n").await;
    block_in_place(|| {
        let parent = place.parent();
        let preview = place.shell.json(["fork-preview", &parent, "--json"]);
        let text = |name: &str| preview[name].as_str().unwrap().to_owned();
        let child =
            place.run(&["--fork", &parent, "--agent", "explore", "child prompt\n@say done"]);

        let messages = place.last_messages();
        assert_eq!(messages.len(), 2, "a system prompt and one turn: {messages:?}");
        let heard = messages[1]["content"].as_str().unwrap();
        assert!(heard.starts_with(&text("preamble")), "{heard}");
        assert!(heard.contains(&text("context")), "{heard}");
        assert!(heard.ends_with("child prompt\n@say done"), "{heard}");

        let context = text("context");
        assert!(!context.contains("first words"), "compacted: {context}");
        assert!(context.starts_with("[Assistant]\nnothing is left to say\n"), "{context}");
        assert_eq!(preview["results"], json!({"whole": 5, "long": 10, "short": 7}));
        assert!(context.contains("more characters cut]"), "{context}");
        assert!(context.contains("[Tool result]\nnewest"), "{context}");

        let task = &place.shell.json(["list", "--json"])[0];
        assert_eq!((&task["isForked"], &task["parentSessionID"]), (&json!(true), &json!("cli")));
        assert_eq!(task["progress"]["toolCalls"], 0, "its parent's calls are not its own");
        let listed = place.shell.say(["list"]);
        let is_it = |line: &&str| line.starts_with(&child) && line.ends_with(" (forked)");
        assert_eq!(listed.lines().filter(is_it).count(), 1, "{listed}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_fork_is_a_copy_of_the_parents_session() {
    let place = Fixture::build("[fork]\nmethod = \"native\"\n").await;
    block_in_place(|| {
        let parent = place.parent();
        let asked_as_parent = place.last_messages().len();
        place.run(&["--fork", &parent, "--agent", "explore", "child prompt\n@say done"]);
        let messages = place.last_messages();
        // Added are the parent's last answer and the child's prompt.
        assert_eq!(messages.len(), asked_as_parent + 2);
        assert_eq!(
            messages[1]["content"],
            json!("first words\n@call read {\"path\": \"a\"} | usage 5000 10 0\n@say never")
        );
        assert_eq!(messages.last().unwrap()["content"], json!("child prompt\n@say done"));
        let task = &place.shell.json(["list", "--json"])[0];
        assert_eq!(task["isForked"], true);
        assert_eq!(task["progress"]["toolCalls"], 0, "its parent's calls are not its own");
        // The child has a copy: its prompt does not appear in the parent's conversation.
        place.shell.say(["resume", &parent, "again\n@say done"]);
        place.wait(&parent);
        assert!(!place.last_messages().iter().any(|m| m.to_string().contains("child prompt")));
        // Whose conversation was copied is not kept, so a retry would lack its context.
        let shell = &place.shell;
        let copy = shell.say(["run", "--fork", &parent, "--agent", "explore", "@hang"]);
        let copy = copy.trim();
        shell.say(["cancel", copy]);
        let refused = shell.run(["retry", copy]);
        let expected = format!(
            "error: `{copy}` was not retried: the context of task `{copy}` was a copy that its host made, \
             which is not kept; launch it anew from the conversation that it was forked from\n"
        );
        assert_eq!((refused.code, refused.stderr), (1, expected));
    });
}

#[test]
fn fork_preview_reads_a_file_without_a_daemon() {
    let shell = Shell::new();
    let file = shell.path("messages.json");
    let messages =
        json!([{"info": {"role": "user"}, "parts": [{"type": "text", "text": "hello"}]}]);
    std::fs::write(&file, messages.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let shown = shell.run(["fork-preview", "--file", file]);
    let preamble = fork::inherit("[]").unwrap().preamble;
    assert_eq!(shown.stdout, format!("{preamble}\n\n[User]\nhello\n"));
    assert_eq!(shown.stderr, "1 of 1 messages, 12 characters, about 3 tokens\n");
    let expected = json!({
        "preamble": preamble, "context": "[User]\nhello", "messages": 1, "removed": 0, "kept": 1,
        "results": {"whole": 0, "long": 0, "short": 0}, "characters": 12,
    });
    assert_eq!(shell.json(["fork-preview", "--json", "--file", file]), expected);
    assert_eq!(shell.health(), None, "nothing was started");

    std::fs::write(file, "{}").unwrap();
    let refused = shell.run(["fork-preview", "--file", file]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("is not a transcript"), "{}", refused.stderr);
    let missing = shell.run(["fork-preview", "--file", "nowhere.json"]);
    assert!(missing.stderr.contains("cannot read `nowhere.json`"), "{}", missing.stderr);
}

#[test]
fn a_fork_of_an_unknown_session_is_refused_at_the_shell_with_the_way_out() {
    let shell = Shell::new();
    for arguments in [&["fork-preview", "a/b?c"][..], &["run", "--fork", "a/b?c", "hello"]] {
        let refused = shell.run(arguments);
        assert_eq!(refused.code, 1, "{refused:?}");
        let expected = "no session `a/b?c` on any host (embedded, opencode, scripted), and no \
                        task of that id; list the tasks to see theirs";
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    assert_eq!(shell.tasks(), []);
}
