//! The dashboard: how its files are served, and what its codes and tokens open, and to whom.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use asyncagents::wire::{
    BucketView, DashCodeView, DashTokenView, ErrorView, HistoryView, PermissionsView,
};
use serde_json::json;

use crate::support::ModelServer;
use crate::support::process::{Shell, until};
use crate::support::web::{Answer, Site, fields};

const JSON: &str = "Content-Type: application/json";

/// A request of the page that this port serves, as a browser sends it.
fn from_the_page(site: &Site, path: &str, headers: &[&str], body: &str) -> Answer {
    let host = format!("Host: {}", &site.server.url["http://".len()..]);
    let origin = format!("Origin: {}", site.server.url);
    site.ask(
        "POST",
        path,
        &[&[JSON, &host, &origin, "Sec-Fetch-Site: same-origin"], headers].concat(),
        body,
    )
}

/// The code in the address that `asyncagents dash --print` prints.
fn code(shell: &Shell) -> String {
    let address = shell.say(["dash", "--print"]);
    let (page, code) = address.trim().split_once("/#code=").unwrap();
    assert_eq!(page, Site::of(shell).server.url);
    code.to_owned()
}

fn exchange(site: &Site, code: &str) -> Answer {
    from_the_page(site, "/v1/dash/token", &[], &json!({ "code": code }).to_string())
}

fn token(shell: &Shell) -> String {
    let view: DashTokenView = exchange(&Site::of(shell), &code(shell)).json();
    format!("Authorization: Bearer {}", view.token)
}

#[test]
fn the_page_is_revalidated_on_every_load_and_may_load_nothing_from_elsewhere() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let page = site.get("/");
    assert_eq!(page.status, 200);
    let header = |name: &str| page.headers[name].as_str();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("cache-control"), "no-cache");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("referrer-policy"), "no-referrer");
    assert_eq!(
        header("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' \
         data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
    let known = format!("If-None-Match: {}", header("etag"));
    let again = site.ask("GET", "/", &[&known], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(site.ask("GET", "/", &["If-None-Match: \"other\""], "").body, page.body);
    assert_eq!(site.ask("POST", "/", &[], "").status, 405);
}

/// Where npm is missing there are none, and the page says so.
#[test]
fn scripts_and_styles_may_be_cached_for_ever() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    let page = site.get("/").body;
    let files: Vec<&str> = page.split('"').filter(|text| text.starts_with("/assets/")).collect();
    assert!(files.len() == 2 || page.contains("built without the dashboard"), "{page}");
    for file in files {
        let answer = site.get(file);
        let kind = if file.ends_with(".js") { "text/javascript" } else { "text/css" };
        assert_eq!(answer.status, 200, "{file}");
        assert_eq!(answer.headers["content-type"], format!("{kind}; charset=utf-8"));
        assert_eq!(answer.headers["cache-control"], "public, max-age=31536000, immutable");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        let known = format!("If-None-Match: {}", answer.headers["etag"]);
        assert_eq!(site.ask("GET", file, &[&known], "").status, 304);
    }
}

#[test]
fn an_unknown_path_is_an_error_in_json() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    for path in ["/v1/nowhere", "/assets/nothing.js", "/assets/..%2findex.html", "/index.html"] {
        let answer = site.get(path);
        let expected = ErrorView { error: "no such route".into(), status: 404 };
        assert_eq!((answer.status, answer.json::<ErrorView>()), (404, expected), "{path}");
    }
}

#[test]
fn dash_opens_the_page_in_a_browser_and_prints_its_address_where_there_is_none() {
    let mut shell = Shell::new();
    shell.say(["daemon", "start"]);
    let url = Site::of(&shell).server.url;
    let (bin, opened) = (shell.path("bin"), shell.path("opened"));
    fs::create_dir(&bin).unwrap();
    shell.set("PATH", &bin);
    let printed = shell.run(["dash"]);
    assert_eq!(
        (printed.code, printed.stderr.as_str()),
        (0, "no browser could be opened from here; open this address in one:\n")
    );
    assert!(printed.stdout.starts_with(&format!("{url}/#code=")), "{printed:?}");
    let opener = bin.join("xdg-open");
    fs::write(&opener, format!("#!/bin/sh\nprintf %s \"$1\" > {}\n", opened.display())).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(shell.say(["dash"]), "");
    let address = fs::read_to_string(opened).unwrap();
    let (page, code) = address.split_once("/#code=").unwrap();
    assert_eq!((page, exchange(&Site::of(&shell), code).status), (url.as_str(), 200));
}

#[test]
fn dash_without_a_port_says_how_to_get_one() {
    let mut shell = Shell::new();
    shell.set("ASYNCAGENTS_API_ENABLED", "false");
    let refused = shell.run(["dash"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("the daemon's port, which is switched off"), "{refused:?}");
}

#[test]
fn a_code_opens_the_page_once() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let site = Site::of(&shell);
    let code = code(&shell);
    let answer = exchange(&site, &code);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(fields(&answer.json()), ["expiresIn", "token"]);
    assert_eq!(answer.headers.get("access-control-allow-origin"), None);
    for wrong in [code.as_str(), "", "00000000000000000000000000000000"] {
        let answer = exchange(&site, wrong);
        let text = "this code was used before or is older than a minute; run `asyncagents dash` for a \
                    new one";
        assert_eq!((answer.status, answer.error()), (403, text.to_owned()));
    }
}

#[test]
fn a_code_is_exchanged_by_a_page_of_the_same_origin_only() {
    let shell = Shell::new();
    shell.say(["daemon", "start"]);
    let site = Site::of(&shell);
    let code = code(&shell);
    let body = json!({ "code": code }).to_string();
    let host = format!("Host: 127.0.0.1:{}", site.server.port);
    let own = format!("Origin: {}", site.server.url);
    let other_port = "Origin: http://127.0.0.1:1";
    let other_name = format!("Origin: http://localhost:{}", site.server.port);
    let refused: [&[&str]; 6] = [
        &[JSON, &host],
        &[JSON, &host, other_port],
        &[JSON, &host, &other_name],
        &[JSON, &host, "Origin: null"],
        &[JSON, &host, "Origin: http://evil.example"],
        &[JSON, &host, &own, "Sec-Fetch-Site: cross-site"],
    ];
    for headers in refused {
        let answer = site.ask("POST", "/v1/dash/token", headers, &body);
        assert_eq!(answer.status, 403, "{headers:?} {answer:?}");
    }
    let plain =
        site.ask("POST", "/v1/dash/token", &["Content-Type: text/plain", &host, &own], &body);
    assert_eq!(plain.status, 415, "{plain:?}");
    assert_eq!(site.ask("GET", "/v1/dash/token", &[&host, &own], "").status, 405);
    assert_eq!(exchange(&site, &code).status, 200, "none of them used it up");
}

#[test]
fn codes_are_given_out_over_the_socket_or_with_the_token_of_the_file() {
    let shell = Shell::new();
    let site = Site::start(&shell);
    assert_eq!(site.ask("POST", "/v1/dash/code", &[JSON], "null").status, 405);
    assert_eq!(from_the_page(&site, "/v1/dash/code", &[], "null").status, 405);
    let page = token(&shell);
    assert_eq!(from_the_page(&site, "/v1/dash/code", &[&page], "null").status, 403);
    let file = fs::read_to_string(shell.home().join("token")).unwrap();
    let right = format!("Authorization: Bearer {}", file.trim());
    let view: DashCodeView = site.ask("POST", "/v1/dash/code", &[JSON, &right], "null").json();
    assert_eq!(exchange(&site, &view.code).status, 200);
}

#[test]
fn the_token_of_a_page_allows_what_the_page_has_buttons_for_and_ends_with_the_daemon() {
    let shell = Shell::new();
    let task = shell.launch("@hang");
    let site = Site::of(&shell);
    let page = token(&shell);
    let body = json!({ "caller": { "sessionID": "cli" }, "ids": [task.session_id] }).to_string();
    let elsewhere = site.ask("POST", "/v1/cancel", &[JSON, &page], &body);
    assert_eq!(elsewhere.status, 403, "not from a page: {elsewhere:?}");
    let other = site.ask("POST", "/v1/cancel", &[JSON, &page, "Origin: http://127.0.0.1:1"], &body);
    assert_eq!(other.status, 403, "from another page: {other:?}");
    for path in ["/v1/daemon/stop", "/v1/prune", "/v1/clear", "/v1/tools/asyncagents_list"] {
        assert_eq!(from_the_page(&site, path, &[&page], "{}").status, 403, "{path}");
    }
    assert_eq!(site.ask("POST", "/mcp", &[JSON, &page], "{}").status, 401);
    assert_eq!(site.task(&task.session_id).status.name(), "running", "nothing was changed");
    assert_eq!(from_the_page(&site, "/v1/cancel", &[&page], &body).status, 200);
    assert_eq!(site.task(&task.session_id).status.name(), "cancelled");
    shell.say(["daemon", "stop"]);
    shell.say(["daemon", "start"]);
    assert_eq!(from_the_page(&Site::of(&shell), "/v1/cancel", &[&page], &body).status, 401);
}

#[test]
fn an_answer_from_the_page_is_recorded_with_its_door() {
    let shell = Shell::new();
    let task = shell.launch("@ask bash ls docs\n@say seen");
    let site = Site::of(&shell);
    let asks = || site.read::<PermissionsView>("/v1/permissions").permissions;
    until("it asks", || !asks().is_empty());
    let path = format!("/v1/permissions/{}", asks()[0].id);
    // Whatever a page says of itself.
    let body = json!({ "allow": true, "door": "http", "by": "ses_other" }).to_string();
    let answer = from_the_page(&site, &path, &[&token(&shell)], &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    shell.say(["wait", &task.short_id]);
    let detail: serde_json::Value = site.read(&format!("/v1/tasks/{}", task.session_id));
    let recorded = &detail["answers"][0];
    assert_eq!(
        json!([recorded["what"], recorded["allowed"], recorded["door"], recorded["by"]]),
        json!(["bash ls docs", true, "dashboard", "cli"])
    );
}

#[test]
fn the_token_of_a_page_acts_as_the_user_of_the_shell_and_only_with_fields_that_the_page_sends() {
    let shell = Shell::new();
    let hanging = shell.launch("@hang");
    let site = Site::of(&shell);
    let page = token(&shell);
    let post = |path: &str, body: serde_json::Value| {
        from_the_page(&site, path, &[&page], &body.to_string())
    };
    let arguments = json!({ "description": "x", "prompt": "@fail no", "agent": "general" });
    let place = shell.path(".");
    let refused = [
        ("/v1/tasks", "handOver", json!({ "caller": { "handOver": {} }, "arguments": arguments })),
        ("/v1/tasks", "heirOf", json!({ "caller": { "heirOf": "m" }, "arguments": arguments })),
        ("/v1/tasks", "forkSession", json!({ "forkSession": "ses_1", "arguments": arguments })),
        ("/v1/tasks/ses_1/retry", "handOver", json!({ "caller": { "handOver": {} } })),
        ("/v1/tasks/ses_1/resume", "handOver", json!({ "prompt": "x", "handOver": {} })),
        ("/v1/cancel", "all", json!({ "caller": { "sessionID": "cli" }, "all": true })),
    ];
    for (path, field, body) in refused {
        let answer = post(path, body);
        let text = format!("the dashboard may not send `{field}`; use the command line");
        assert_eq!((answer.status, answer.error()), (403, text), "{path}");
    }
    assert_eq!(post("/v1/cancel", json!([{}, [], true, null])).status, 400, "fields by place");
    assert_eq!(site.task(&hanging.session_id).status.name(), "running");
    assert_eq!(site.listed("").1, 1, "nothing was launched");
    let other = json!({ "sessionID": "ses_other", "host": "opencode", "directory": place });
    let launched = post("/v1/tasks", json!({ "caller": other, "arguments": arguments }));
    assert_eq!(launched.status, 201, "{launched:?}");
    let launched: serde_json::Value = launched.json();
    let id = launched["sessionID"].as_str().unwrap();
    assert_eq!(launched["parentSessionID"], "cli");
    until("it has failed", || site.task(id).status.name() == "error");
    let again = post(&format!("/v1/tasks/{id}/retry"), json!({ "caller": other, "key": "k" }));
    assert_eq!(again.status, 201, "{again:?}");
    assert_eq!(again.json::<serde_json::Value>()["parentSessionID"], "cli");
}

#[test]
fn where_anyone_may_read_dash_says_that_the_page_is_read_only_and_gives_no_code() {
    let mut shell = Shell::new();
    fs::write(shell.path("config.toml"), "api.readers = 'anyone'\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    shell.say(["daemon", "start"]);
    let site = Site::of(&shell);
    let printed = shell.run(["dash", "--print"]);
    assert_eq!(
        (printed.code, printed.stdout, printed.stderr.as_str()),
        (
            0,
            format!("{}/\n", site.server.url),
            "the page will be read-only, because every user of this machine may read it \
             (`api.readers = \"anyone\"`)\n"
        )
    );
    assert_eq!(site.get("/").status, 200);
}

#[test]
fn tasks_of_one_host_can_be_listed_by_themselves() {
    let shell = Shell::new();
    shell.launch_to_the_end("@say done");
    let site = Site::of(&shell);
    assert_eq!(site.listed("?host=scripted").1, 1);
    assert_eq!(site.listed("?host=embedded"), (vec![], 0));
}

#[test]
fn the_history_counts_launches_ends_tokens_and_cost_by_agent_and_shows_the_limits() {
    let shell = Shell::new();
    shell.launch_to_the_end("@spend 100 0.5\n@say done");
    shell.launch_to_the_end("@fail overloaded");
    shell.launch("@hang");
    let site = Site::of(&shell);
    let history: HistoryView = site.read("/v1/stats/history?hours=1");
    assert_eq!((history.buckets.len(), history.seconds, history.partial), (60, 60, false));
    let sum = |count: fn(&BucketView) -> u64| -> u64 { history.buckets.iter().map(count).sum() };
    let counted = [sum(|b| b.launched), sum(|b| b.completed), sum(|b| b.error), sum(|b| b.tokens)];
    assert_eq!(counted, [3, 1, 1, 100]);
    let agent = history.by_agent.values().next().unwrap();
    assert_eq!((agent.tasks, agent.errors, agent.tokens, agent.cost), (2, 1, 100, 0.5));
    assert!(
        history.duration.p50 <= history.duration.p90
            && history.duration.p90 <= history.duration.max
    );
    assert_eq!((history.queue.active, history.queue.queued), (1, 0));
    assert_eq!(history.queue.most_active_per_parent, 10);
    for wrong in ["0", "2161", "x", "-1"] {
        assert_eq!(site.get(&format!("/v1/stats/history?hours={wrong}")).status, 400, "{wrong}");
    }
}

/// X3: not even with the token of the file, and not as a page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_an_agent_gets_neither_a_code_nor_a_token() {
    let server = ModelServer::start().await;
    let mut shell = Shell::new();
    shell.unset("ASYNCAGENTS_HOST");
    shell.set("ASYNCAGENTS_MODEL", "openai/scripted");
    shell.set("OPENAI_BASE_URL", server.base_url());
    shell.set("OPENAI_API_KEY", "sk-only-for-tests");
    fs::write(shell.path("config.toml"), "sandbox = 'off'\n").unwrap();
    shell.set("ASYNCAGENTS_CONFIG", shell.path("config.toml"));
    fs::create_dir(shell.path("project")).unwrap();
    shell.say(["daemon", "start"]);
    let site = Site::of(&shell);
    let url = &site.server.url;
    let file = fs::read_to_string(shell.home().join("token")).unwrap();
    let body = json!({ "code": code(&shell) }).to_string();
    fs::write(shell.path("project/body"), &body).unwrap();
    let socket = shell.home().join("asyncagents.sock");
    let curl = "curl -s -m 20 -o /dev/null -w '%{http_code} ' -H 'content-type: application/json'";
    let command = format!(
        "({curl} -H 'origin: {url}' -d @body {url}/v1/dash/token; \
         {curl} -H 'authorization: Bearer {}' -d null {url}/v1/dash/code; \
         {curl} --unix-socket {} -d null http://localhost/v1/dash/code) > codes",
        file.trim(),
        socket.display()
    );
    let prompt = format!("@call bash {}\n@say over", json!({ "command": command }));
    let run = shell.run_in(&shell.path("project"), ["run", "--agent", "general", &prompt]);
    assert_eq!(run.code, 0, "{run:?}");
    let waited = shell.run(["wait", run.stdout.trim()]);
    assert_eq!(waited.code, 0, "{waited:?} {}", shell.log());
    assert_eq!(fs::read_to_string(shell.path("project/codes")).unwrap(), "403 403 403 ");
}
