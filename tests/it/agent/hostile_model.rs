//! Hostile model servers, end to end from the shell: each run ends in its true state with a clear
//! error (T6, T19), while the daemon's memory stays bounded and other tasks are served.

use std::path::PathBuf;

use crate::support::hostile_server::HostileServer;
use crate::support::process::{Shell, until};

/// `agent.answer_bytes`
const BOUND: usize = 8 << 20;
/// The daemon's maximum peak memory, in kB.
const LARGEST: u64 = 150 * 1024;

struct Fixture {
    shell: Shell,
    server: HostileServer,
    project: PathBuf,
}

impl Fixture {
    /// `silence` is the model time-out in seconds.
    fn build(silence: u32) -> Fixture {
        let server = HostileServer::start();
        let mut shell = Shell::new();
        shell.unset("ASYNCAGENTS_HOST");
        shell.set("ASYNCAGENTS_MODEL", "openai/hostile");
        shell.set("OPENAI_BASE_URL", server.base_url());
        let config = shell.path("config.toml");
        let settings = format!("[agent]\nmodel_retries = 0\nsilence_seconds = {silence}\n");
        std::fs::write(&config, settings).unwrap();
        shell.set("ASYNCAGENTS_CONFIG", config);
        let project = shell.path("project");
        std::fs::create_dir(&project).unwrap();
        Fixture { shell, server, project }
    }

    fn launch(&self, prompt: &str) -> String {
        let run = self.shell.run_in(&self.project, ["run", prompt]);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout.trim().to_owned()
    }

    /// Status, result and error of a task, once it has ended.
    fn end(&self, id: &str) -> (String, String, String) {
        let waited = self.shell.run(["wait", "--timeout", "60", id]);
        assert_ne!(waited.code, 124, "{waited:?}");
        let task = self.shell.json(["output", id, "--json"]);
        let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("result"), text("error"))
    }

    /// Each prompt has to end like this while other tasks are served.
    fn check(&self, cases: &[(&str, &str, &str, &str)]) {
        let ids: Vec<String> = cases.iter().map(|(prompt, ..)| self.launch(prompt)).collect();
        let polite = self.launch("somebody else's task");
        let answer = ("completed".to_owned(), "a polite answer".to_owned(), String::new());
        assert_eq!(self.end(&polite), answer);
        for ((prompt, status, result, error), id) in cases.iter().zip(ids) {
            let expected = ((*status).to_owned(), (*result).to_owned(), (*error).to_owned());
            assert_eq!(self.end(&id), expected, "{prompt}");
        }
    }

    /// The daemon's peak memory, in kB.
    fn peak(&self) -> u64 {
        let status = format!("/proc/{}/status", self.shell.pid());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn is_small(&self) {
        let peak = self.peak();
        assert!(peak < LARGEST, "the daemon had {peak} kB");
    }
}

fn too_long() -> String {
    format!(
        "the model's answer is longer than {BOUND} bytes (`agent.answer_bytes`); what came before \
         is kept"
    )
}

#[test]
fn garbage_and_odd_ways_to_stream_end_in_a_truthful_state() {
    let place = Fixture::build(60);
    let unreadable = "model server cannot answer now: its answer is not readable";
    place.check(&[
        ("@garbage", "error", "", unreadable),
        ("@bytes-that-are-no-text", "error", "", unreadable),
        ("@deep", "error", "", unreadable),
        ("@crlf", "completed", "with returns", ""),
        ("@no-done", "completed", "whole", ""),
        ("@no-end", "completed", "whole", ""),
        ("@not-streamed", "completed", "all at once", ""),
    ]);
    // The finish reason completes the answer: no retry.
    assert_eq!(place.server.asked("@no-done"), 1);
    let redirects = "model server refused (307): it redirects to `http://127.0.0.1:1/elsewhere`; \
                     set `OPENAI_BASE_URL` to the address that answers itself";
    let refusal = format!("model server cannot answer now: {}…", "x".repeat(500));
    place.check(&[
        ("@redirect", "error", "", redirects),
        ("@refusal", "error", "", &refusal),
        ("@index", "completed", "all calls were answered", ""),
        ("@values", "completed", "all calls were answered", ""),
    ]);
    place.is_small();
}

#[test]
fn a_model_that_falls_silent_times_out_and_its_partial_answer_is_kept() {
    let place = Fixture::build(3);
    let silent = "the model said nothing for 3 s";
    place.check(&[
        ("@silent", "error", "", silent),
        ("@falls-silent", "error", "half", silent),
        ("@endless-nothing", "error", "", silent),
    ]);
    place.is_small();
}

#[test]
fn an_answer_cut_off_or_filtered_at_any_point_is_reported_as_such() {
    let place = Fixture::build(10);
    let empty = "the answer was cut off (`length`) before its first word";
    let inside = "the answer was cut off (`length`) inside a tool call";
    let marked = "half\n\n[cut off: the model reached its output limit]";
    place.check(&[
        ("@cut length text", "completed", marked, ""),
        ("@cut length nothing", "error", "", empty),
        ("@cut length thought", "error", "", empty),
        ("@cut length call", "error", "half", inside),
        ("@cut length whole-call", "completed", "all calls were answered", ""),
    ]);
    let filtered = "the answer was stopped by the provider's content filter";
    place.check(&[
        ("@cut content_filter text", "error", "half", filtered),
        ("@cut content_filter nothing", "error", "", filtered),
        ("@cut content_filter thought", "error", "", filtered),
        ("@cut content_filter call", "error", "half", filtered),
        ("@cut content_filter whole-call", "error", "", filtered),
    ]);
    assert!(!place.project.join("made").exists(), "a truncated tool call was executed");
}

#[test]
fn an_answer_beyond_the_size_limit_ends_its_own_run_only() {
    let place = Fixture::build(20);
    let (too_long, whole) = (too_long(), "x".repeat(BOUND));
    let (at, beyond) = (format!("@bytes {BOUND}"), format!("@bytes {}", BOUND + 1));
    place.check(&[(&at, "completed", &whole, "")]);
    place.check(&[(&beyond, "error", &whole, &too_long)]);
    let (at, beyond) = (format!("@event {BOUND}"), format!("@event {}", BOUND + 1));
    place.check(&[(&at, "completed", &whole, "")]);
    place.check(&[(&beyond, "error", &whole, &too_long)]);
    for size in [20_000_000, 100_000_000] {
        place.check(&[(&format!("@bytes {size}"), "error", &whole, &too_long)]);
    }
    place.check(&[("@event 20000000", "error", &whole, &too_long)]);
    place.check(&[("@event 100000000", "error", "", &too_long)]);
    place.is_small();
}

#[test]
fn an_endless_stream_is_ended() {
    let place = Fixture::build(20);
    let too_long = too_long();
    let endless = &"never ending ".repeat(BOUND / 13 + 1)[..BOUND];
    place.check(&[("@endless", "error", endless, &too_long)]);
    place.check(&[("@endless-line", "error", "", &too_long)]);
    place.check(&[("@endless-thoughts", "error", "", &too_long)]);
    place.check(&[("@endless-arguments", "error", "", &too_long)]);
    place.check(&[("@not-streamed-without-end", "error", "", &too_long)]);
    place.is_small();
}

#[test]
fn of_two_hundred_calls_in_one_answer_eight_run_at_the_same_time() {
    let place = Fixture::build(20);
    let before = written(&place);
    // Each call outputs 20 kB.
    let command = "echo + >> log; sleep 0.02; head -c 20000 /dev/zero | tr '\\0' x; echo - >> log";
    let id = place.launch(&format!("@calls 200 {command}"));
    let done = ("completed".to_owned(), "all calls were answered".to_owned(), String::new());
    assert_eq!(place.end(&id), done);
    let log = std::fs::read_to_string(place.project.join("log")).unwrap();
    let (mut running, mut most, mut begun) = (0, 0, 0);
    for line in log.lines() {
        running += if line == "+" { 1 } else { -1 };
        begun += usize::from(line == "+");
        most = most.max(running);
    }
    assert_eq!((begun, running), (200, 0));
    assert!((2..=8).contains(&most), "{most} ran at the same time");
    let progress = &place.shell.json(["output", &id, "--json"])["progress"];
    assert_eq!(progress["toolCalls"], 200);
    // The output is 4 MB in all. Rewriting the whole conversation with every call took hundreds.
    let written = written(&place) - before;
    assert!(written < 60 << 20, "{written} bytes were written");
    place.is_small();
}

/// Bytes the daemon has written so far, to files and sockets.
fn written(place: &Fixture) -> u64 {
    until("the daemon runs", || place.shell.run(["list"]).code == 0);
    let io = std::fs::read_to_string(format!("/proc/{}/io", place.shell.pid())).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar:")).unwrap();
    line.trim().parse().unwrap()
}
