//! Unsupported OpenCode versions are reported as such: at a launch, in the list of hosts and by the
//! doctor.

use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{any, get};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::block_in_place;

use crate::support::process::Shell;

/// Serves these routes; returns the address.
async fn serve(routes: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{address}")
}

/// Answers like the preview of OpenCode 2: only `/api` exists, and it wants a password.
async fn preview() -> String {
    let locked = || async {
        let body = json!({"_tag": "UnauthorizedError", "message": "Authentication required"});
        (StatusCode::UNAUTHORIZED, Json(body))
    };
    serve(Router::new().route("/api/{*rest}", any(locked)).fallback(StatusCode::NOT_FOUND)).await
}

/// A server with today's routes and this version.
async fn of_version(version: &'static str) -> String {
    let health = move || async move { Json(json!({"healthy": true, "version": version})) };
    serve(Router::new().route("/global/health", get(health))).await
}

/// A server that is not OpenCode.
async fn something_else() -> String {
    serve(Router::new().fallback(StatusCode::NOT_FOUND)).await
}

struct ServerReport {
    launch: String,
    hosts: String,
    doctor: String,
}

/// What every command reports about a server.
fn report(url: &str) -> ServerReport {
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell.say(["hosts", "add", "work", url]);
    let hosts = shell.json(["hosts", "--json"]);
    let listed: &Value = &hosts[1]["servers"][0];
    assert!(listed.get("version").is_none(), "{listed}");
    let shown = shell.say(["hosts"]);
    assert!(shown.contains(listed["error"].as_str().unwrap()), "{shown}");
    let run = shell.run(["--host", "opencode", "run", "--agent", "general", "@say x"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(shell.tasks(), []);
    let doctor = shell.run(["doctor"]);
    assert_eq!(doctor.code, 1, "{doctor:?}");
    let line = doctor.stdout.lines().find(|line| line.contains("OpenCode server `work`")).unwrap();
    ServerReport {
        launch: run.stderr.trim().to_owned(),
        hosts: listed["error"].as_str().unwrap().to_owned(),
        doctor: line.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_an_unknown_generation_is_reported_with_the_versions_we_support() {
    let supported = "supported is OpenCode 1.18 and later versions of 1.x";
    let unknown = "a generation that asyncagents does not know yet";
    let table = [
        (preview().await, "is OpenCode 2,", unknown),
        (of_version("2.1.0").await, "is OpenCode 2.1.0,", unknown),
        (of_version("1.17.2").await, "is OpenCode 1.17.2,", "too old"),
    ];
    for (url, what, why) in table {
        let ServerReport { launch, hosts, doctor } = block_in_place(|| report(&url));
        assert!(launch.starts_with("error: host refused: `work` is OpenCode"), "{launch}");
        assert!(doctor.trim_start().starts_with('✗'), "{doctor}");
        for text in [launch, hosts, doctor] {
            let is_named = text.contains(what) && text.contains(why) && text.contains(supported);
            assert!(is_named, "{text}");
            assert!(!text.contains("404") && !text.contains("cannot be reached"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_opencode_is_not_taken_for_one() {
    let ServerReport { launch, hosts, .. } = block_in_place(|| {
        let url = tokio::runtime::Handle::current().block_on(something_else());
        report(&url)
    });
    for text in [launch, hosts] {
        assert!(text.contains("something else answers there"), "{text}");
        assert!(!text.contains("generation"), "{text}");
    }
}
