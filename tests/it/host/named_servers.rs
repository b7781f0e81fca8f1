//! OpenCode servers that callers name in their environment.

use std::net::TcpListener;
use std::thread;

use tokio::task::block_in_place;

use crate::support::OpenCode;
use crate::support::process::{CommandOutcome, Shell, until};

/// A user whose daemon has no configured server.
fn shell() -> Shell {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    assert_eq!(shell.run(["daemon", "start"]).code, 0);
    shell
}

fn run(shell: &Shell, prompt: &str) -> CommandOutcome {
    shell.run(["run", "--agent", "general", prompt])
}

fn end(shell: &Shell, run: &CommandOutcome) -> (String, String) {
    assert_eq!(run.code, 0, "{run:?}");
    assert_ne!(shell.run(["wait", "--timeout", "60", run.stdout.trim()]).code, 124);
    let task = shell.json(["output", run.stdout.trim(), "--json"]);
    let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
    (text("status"), text("result"))
}

fn fine() -> (String, String) {
    ("completed".to_owned(), "fine".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_launches_on_a_server_that_their_callers_name_all_run() {
    let server = OpenCode::start().await;
    block_in_place(|| {
        let mut shell = shell();
        shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
        let shell = &shell;
        let launched: Vec<CommandOutcome> = thread::scope(|scope| {
            let launch = |_| scope.spawn(|| run(shell, "@say fine"));
            let launches: Vec<_> = (0..4).map(launch).collect();
            launches.into_iter().map(|launch| launch.join().unwrap()).collect()
        });
        let ends: Vec<_> = launched.iter().map(|run| end(shell, run)).collect();
        assert_eq!(ends, [fine(), fine(), fine(), fine()]);
    });
    assert_eq!(server.sessions().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_callers_named_and_that_are_gone_make_room_for_others() {
    let server = OpenCode::start().await;
    block_in_place(|| {
        let mut shell = shell();
        let gone: Vec<TcpListener> =
            (0..33).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = gone.iter().map(|gone| gone.local_addr().unwrap().port()).collect();
        drop(gone);
        for port in ports {
            let address = format!("http://127.0.0.1:{port}");
            shell.set("ASYNCAGENTS_OPENCODE_URL", &address);
            let refused = run(&shell, "@say fine");
            let told = format!(
                "error: host cannot be reached: `{address}` (ASYNCAGENTS_OPENCODE_URL): cannot connect"
            );
            assert!(refused.code == 1 && refused.stderr.starts_with(&told), "{refused:?}");
        }
        shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
        assert_eq!(end(&shell, &run(&shell, "@say fine")), fine());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_on_a_server_that_its_caller_named_goes_on_after_the_daemon_was_restarted() {
    let servers = [OpenCode::start().await, OpenCode::start_with_password("swordfish").await];
    block_in_place(|| {
        let mut shell = shell();
        for (server, password) in servers.iter().zip([None, Some("swordfish")]) {
            shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
            if let Some(password) = password {
                shell.set("OPENCODE_SERVER_PASSWORD", password);
            }
            let launched = run(&shell, "@hang");
            assert_eq!(launched.code, 0, "{launched:?}");
            let id = server.sessions()[0]["id"].as_str().unwrap().to_owned();
            until("it is at work", || !server.given(&id).is_empty());
            shell.kill_daemon();
            // The address is stored, a password is not: with one, the next caller has to pass both
            // again.
            if password.is_none() {
                shell.unset("ASYNCAGENTS_OPENCODE_URL");
            }
            server.finish(&id, "fine");
            assert_eq!(end(&shell, &launched), fine());
            let database = std::fs::read(shell.database()).unwrap();
            assert!(!database.windows(9).any(|bytes| bytes == b"swordfish"));
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_daemon_forgets_the_servers_that_no_task_needs_any_more() {
    let servers = [OpenCode::start().await, OpenCode::start().await];
    block_in_place(|| {
        let mut shell = shell();
        shell.set("ASYNCAGENTS_OPENCODE_URL", servers[0].url());
        assert_eq!(end(&shell, &run(&shell, "@say fine")), fine());
        shell.set("ASYNCAGENTS_OPENCODE_URL", servers[1].url());
        let launched = run(&shell, "@hang");
        assert_eq!(launched.code, 0, "{launched:?}");
        shell.unset("ASYNCAGENTS_OPENCODE_URL");
        assert_eq!(shell.run(["daemon", "stop"]).code, 0);
        let addresses = || -> Vec<String> {
            let db = rusqlite::Connection::open(shell.database()).unwrap();
            let mut all = db.prepare("SELECT address FROM instance ORDER BY name").unwrap();
            let all = all.query_map([], |row| row.get(0)).unwrap();
            all.map(|address| address.unwrap()).collect()
        };
        // A row as an earlier version wrote it, with the password in the address.
        let old = "http://me:swordfish@127.0.0.1:1";
        let db = rusqlite::Connection::open(shell.database()).unwrap();
        db.execute("INSERT INTO instance VALUES ('handed-0', ?1)", [old]).unwrap();
        drop(db);
        assert_eq!(addresses().len(), 3);
        assert_eq!(shell.run(["daemon", "start"]).code, 0);
        until("they are forgotten", || addresses() == [servers[1].url()]);
        let files = std::fs::read_dir(shell.home()).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|file| file.is_file()) {
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.windows(9).any(|bytes| bytes == b"swordfish"), "{}", file.display());
        }
        let id = servers[1].sessions()[0]["id"].as_str().unwrap().to_owned();
        until("it is at work", || !servers[1].given(&id).is_empty());
        servers[1].finish(&id, "fine");
        assert_eq!(end(&shell, &launched), fine());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_that_the_callers_environment_names_is_used_with_its_server() {
    let server = OpenCode::start().await;
    block_in_place(|| {
        let mut shell = shell();
        shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
        shell.set("ASYNCAGENTS_HOST", "opencode");
        assert_eq!(end(&shell, &run(&shell, "@say fine")), fine());
        assert_eq!(server.sessions().len(), 1);
        shell.set("ASYNCAGENTS_HOST", "embedded");
        assert_eq!(end(&shell, &run(&shell, "hello")).0, "completed");
        assert_eq!(server.sessions().len(), 1, "it runs where it was told to");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_an_embedded_task_does_not_depend_on_the_servers_of_live_tasks() {
    let server = OpenCode::start().await;
    block_in_place(|| {
        let mut shell = shell();
        shell.say(["pause"]);
        shell.set("ASYNCAGENTS_HOST", "embedded");
        let cancelled = run(&shell, "hello").stdout.trim().to_owned();
        shell.say(["cancel", &cancelled]);
        shell.say(["continue"]);
        shell.set("ASYNCAGENTS_HOST", "opencode");
        shell.set("ASYNCAGENTS_OPENCODE_URL", server.url());
        assert_eq!(run(&shell, "@hang").code, 0);
        assert_eq!(end(&shell, &shell.run(["retry", &cancelled])).0, "completed");
        assert_eq!(server.sessions().len(), 1);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_to_the_server_of_the_first_task_and_to_no_other() {
    let [first, other] = [OpenCode::start().await, OpenCode::start().await];
    block_in_place(|| {
        let mut shell = shell();
        // Where launches go that name no server.
        shell.say(["hosts", "add", "default", &other.url()]);
        shell.set("ASYNCAGENTS_OPENCODE_URL", first.url());
        let launched = run(&shell, "@hang");
        assert_eq!(launched.code, 0, "{launched:?}");
        let task = launched.stdout.trim();
        let sessions = || [first.sessions().len(), other.sessions().len()];
        shell.say(["cancel", task]);

        shell.unset("ASYNCAGENTS_OPENCODE_URL");
        shell.say(["retry", task]);
        assert_eq!(sessions(), [2, 0], "of a caller that names no server");
        shell.set("ASYNCAGENTS_OPENCODE_URL", other.url());
        shell.say(["retry", task]);
        assert_eq!(sessions(), [3, 0], "of a caller that names another one");

        // The next daemon has forgotten it, because no task runs there.
        shell.say(["cancel", "--all"]);
        shell.say(["daemon", "stop"]);
        shell.unset("ASYNCAGENTS_OPENCODE_URL");
        let refused = shell.run(["retry", task]);
        let text = "is no longer known; set ASYNCAGENTS_OPENCODE_URL to it and try again";
        assert!(refused.code == 1 && refused.stderr.contains(text), "{refused:?}");
        assert_eq!(sessions(), [3, 0]);
        shell.set("ASYNCAGENTS_OPENCODE_URL", first.url());
        shell.say(["retry", task]);
        assert_eq!(sessions(), [4, 0], "of a caller that says where it is");
    });
}
