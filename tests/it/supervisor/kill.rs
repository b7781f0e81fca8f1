//! `kill -9` of the real daemon at random moments, with a host process that survives it and logs
//! every post: afterwards every acknowledged task has ended in its true state, and the host has
//! received exactly one notice per run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asyncagents::client::Client;
use asyncagents::host::scripted::{Call, Remote, Reply, Scripted};
use asyncagents::host::{Host, NewSession};
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{
    CallerView, CancelRequest, LaunchRequest, ResumeRequest, RetryRequest, TaskView,
};
use serde_json::Value;

const KILLS: usize = 50;
const TASKS: usize = 2_000;
const PARENTS: usize = 8;
const LONG: Duration = Duration::from_secs(240);

/// The host that agents run on, their scripts and their expected ends.
#[derive(Clone, Copy)]
struct Work {
    /// `None` is the default host, the scripted one.
    host: Option<&'static str>,
    /// A prompt, the status it ends in unless it is cancelled, and a text in its result.
    prompts: &'static [(&'static str, &'static str, Option<&'static str>)],
    follow_up: (&'static str, &'static str),
    /// Whether some children are forked.
    forks: bool,
}

const SCRIPTED: Work =
    Work { host: None, prompts: &SCRIPTS, follow_up: ("@say more", "more"), forks: true };

const EMBEDDED: Work = Work {
    host: Some("embedded"),
    prompts: &[("Where is the login?", "completed", Some("- src/login.rs:1: pub fn login() {}"))],
    follow_up: ("And where is known?", "- src/user.rs:1: pub fn known() {}"),
    forks: false,
};

const SCRIPTS: [(&str, &str, Option<&str>); 9] = [
    ("@say found", "completed", Some("found")),
    ("@think 15\n@tool read {\"path\":\"a\"}\n@say found", "completed", Some("found")),
    ("@stream 3 5\n@say found", "completed", Some("found")),
    ("@think 10\n@fail no credit", "error", None),
    ("@lose-event\n@say found", "completed", Some("found")),
    ("@idle-twice\n@say found", "completed", Some("found")),
    ("@todo-once tests\n@say first", "completed", None),
    ("@tool read\n@compact\n@say found", "completed", Some("found")),
    ("@retry 10 busy\n@slow-tool bash 20\n@say found", "completed", Some("found")),
];

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(arguments: &[&str], environment: &[(&str, &Path)]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_asyncagents"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for (name, value) in environment {
        command.env(name, value);
    }
    Process(command.spawn().unwrap())
}

struct Stage {
    work: Work,
    dir: tempfile::TempDir,
    home: PathBuf,
    log: PathBuf,
    client: Client,
    host: Scripted,
    parents: Vec<String>,
    /// Set when all tasks are launched: until then daemons are killed, however many that takes.
    all_launched: AtomicBool,
}

impl Stage {
    async fn build(work: Work) -> (Stage, Process) {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("project/src");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("login.rs"), "pub fn login() {}\n").unwrap();
        std::fs::write(source.join("user.rs"), "pub fn known() {}\n").unwrap();
        let (home, socket) = (dir.path().join("home"), dir.path().join("host.sock"));
        let log = dir.path().join("posts.jsonl");
        let arguments =
            ["scripted-host", "--socket", socket.to_str().unwrap(), "--log", log.to_str().unwrap()];
        let process = spawn(&arguments, &[]);
        until("the host listens", || UnixStream::connect(&socket).is_ok()).await;
        let host = Scripted::Process(Remote::new(&socket).unwrap());
        let mut parents = Vec::new();
        for n in 0..PARENTS {
            let session = NewSession {
                parent: None,
                title: "a conversation".into(),
                nonce: format!("parent-{n}"),
                directory: "/".into(),
                agent: "build".into(),
                deny: Vec::new(),
                handed: Default::default(),
            };
            parents.push(host.open(session).await.unwrap().session.to_string());
        }
        let client = Client::new(&home.join("asyncagents.sock"));
        let all_launched = AtomicBool::new(false);
        (Stage { work, dir, home, log, client, host, parents, all_launched }, process)
    }

    fn daemon(&self) -> Process {
        let config = self.dir.path().join("config.toml");
        let settings = "[supervisor]\npoll_interval_seconds = 0.2\n[log]\nlevel = \"warn\"\n";
        std::fs::write(&config, settings).unwrap();
        let host = format!("scripted:{}", self.dir.path().join("host.sock").display());
        let environment = [
            ("ASYNCAGENTS_HOME", self.home.as_path()),
            ("ASYNCAGENTS_CONFIG", config.as_path()),
            ("ASYNCAGENTS_HOST", Path::new(&host)),
            ("HOME", self.dir.path()),
        ];
        spawn(&["serve"], &environment)
    }

    async fn healthy(&self) {
        let started = Instant::now();
        while self.client.health().await.is_err() {
            assert!(started.elapsed() < LONG, "the daemon does not come back");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Retries until there is a response, whatever is killed in between; the idempotency key makes
    /// that safe.
    async fn acknowledged<F>(&self, call: impl Fn() -> F) -> TaskView
    where
        F: Future<Output = Result<TaskView, asyncagents::client::Error>>,
    {
        let started = Instant::now();
        loop {
            match call().await {
                Ok(task) => return task,
                Err(asyncagents::client::Error::Refused(view)) => panic!("{view:?}"),
                Err(_) => assert!(started.elapsed() < LONG, "no daemon responds"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LONG, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The operations that the callers got a success response for.
#[derive(Default)]
struct Acknowledgements {
    /// Each task with the index of its script.
    launched: Vec<(TaskView, usize)>,
    cancelled: Vec<String>,
    /// How many of the launched ones are retries.
    retried: usize,
    resumed: HashMap<String, u32>,
}

async fn launch(stage: Arc<Stage>, known: Arc<Mutex<Acknowledgements>>, left: Arc<AtomicUsize>) {
    let take = |n: usize| n.checked_sub(1);
    while let Ok(n) = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
        let (script, parent) = (n % stage.work.prompts.len(), &stage.parents[n % PARENTS]);
        let caller = CallerView {
            session_id: parent.clone(),
            message_id: format!("msg_{n}"),
            agent: "build".into(),
            directory: stage.dir.path().join("project").to_string_lossy().into_owned(),
            host: "scripted".into(),
            development: false,
            ..CallerView::default()
        };
        let request = LaunchRequest {
            caller: caller.clone(),
            arguments: Arguments {
                description: Some(format!("task {n}")),
                prompt: Some(stage.work.prompts[script].0.into()),
                agent: Some("explore".into()),
                host: stage.work.host.map(Into::into),
                // Only the first launches (`n` counts down), while conversations are short: a daemon
                // lives for a quarter of a second, and has to read one in that time.
                fork: stage.work.forks && n % 8 == 3 && n > TASKS / 4 * 3,
                ..Arguments::default()
            },
            key: Some(format!("key-{n}")),
            ..LaunchRequest::default()
        };
        let task = stage.acknowledged(|| stage.client.launch(&request)).await;
        let id = task.session_id.clone();
        known.lock().unwrap().launched.push((task, script));
        // Some are cancelled and launched again, some are resumed; both only if they are told so.
        if n % 13 == 0 {
            let ids = vec![id.clone()];
            let request = CancelRequest { caller: caller.clone(), ids, ..Default::default() };
            if stage.client.cancel(&request).await.is_err() {
                continue;
            }
            known.lock().unwrap().cancelled.push(id.clone());
            let retry = RetryRequest { caller, key: Some(format!("retry-{n}")) };
            let task = stage.acknowledged(|| stage.client.retry(&id, &retry)).await;
            assert_eq!(task.retry_of, Some(id));
            let mut known = known.lock().unwrap();
            known.launched.push((task, script));
            known.retried += 1;
        } else if n % 17 == 0 && stage.client.resume(&id, &follow_up(&stage)).await.is_ok() {
            *known.lock().unwrap().resumed.entry(id).or_default() += 1;
        }
    }
}

fn follow_up(stage: &Stage) -> ResumeRequest {
    ResumeRequest { prompt: stage.work.follow_up.0.into(), ..ResumeRequest::default() }
}

/// Starts and kills daemons until there were enough kills and everything is launched.
async fn kill_daemons(stage: Arc<Stage>) -> usize {
    let mut kills = 0;
    let mut chance: u64 = 0x9e37_79b9_7f4a_7c15;
    while kills < KILLS || !stage.all_launched.load(Ordering::SeqCst) {
        let daemon = stage.daemon();
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        // Random crash points, from before the socket exists to the middle of the work.
        if !chance.is_multiple_of(5) {
            stage.healthy().await;
        }
        tokio::time::sleep(Duration::from_millis(chance >> 8 & 0xff)).await;
        drop(daemon); // kill -9
        kills += 1;
    }
    kills
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_lose_nothing_that_was_acknowledged_and_notify_nothing_twice() {
    kill_and_check(SCRIPTED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_kills_lose_nothing_of_embedded_agents_either() {
    kill_and_check(EMBEDDED).await;
}

async fn kill_and_check(work: Work) {
    let (stage, _host) = Stage::build(work).await;
    let stage = Arc::new(stage);
    let known = Arc::new(Mutex::new(Acknowledgements::default()));
    let left = Arc::new(AtomicUsize::new(TASKS));
    let killer = tokio::spawn(kill_daemons(Arc::clone(&stage)));
    let launchers: Vec<_> = (0..PARENTS)
        .map(|_| tokio::spawn(launch(Arc::clone(&stage), Arc::clone(&known), Arc::clone(&left))))
        .collect();
    for launcher in launchers {
        launcher.await.unwrap();
    }
    stage.all_launched.store(true, Ordering::SeqCst);
    let kills = killer.await.unwrap();
    println!("{kills} kills");

    // The last daemon is not killed, so that everything can end.
    let _daemon = stage.daemon();
    stage.healthy().await;
    let database = stage.home.join("asyncagents.db");
    let count = |sql: &str| -> i64 {
        let db = rusqlite::Connection::open(&database).unwrap();
        db.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    until("all have ended", || count("SELECT count(*) FROM task WHERE slot > 0") == 0).await;
    until("nothing is owed", || {
        count("SELECT count(*) FROM notice WHERE delivered_at IS NULL") == 0
    })
    .await;

    let known = Arc::try_unwrap(known).ok().unwrap().into_inner().unwrap();
    let launched = TASKS + known.retried;
    assert!(known.retried > 0);
    assert_eq!(known.launched.len(), launched);
    check_ends(&stage, &known).await;
    check_posts(&stage, &database);
    check_sessions(&stage, &database).await;
    assert_eq!(count("SELECT count(*) FROM intent"), 0);
    assert_eq!(count("SELECT count(*) FROM task"), launched as i64, "a key launched twice");
    assert_eq!(count("SELECT count(*) FROM notice WHERE undeliverable IS NOT NULL"), 0);
}

/// Every acknowledged task exists, has ended, and reports its true result.
async fn check_ends(stage: &Stage, known: &Acknowledgements) {
    for (launched, script) in &known.launched {
        let task = stage.client.task(&launched.session_id).await.unwrap();
        let (_, status, result) = stage.work.prompts[*script];
        let says = |text: &str| task.result.as_deref().is_some_and(|said| said.contains(text));
        let resumes = known.resumed.get(&task.session_id).copied().unwrap_or(0);
        assert!(task.resume_count >= resumes, "a resume was lost: {task:?}");
        if known.cancelled.contains(&task.session_id) {
            assert_eq!(task.status.name(), "cancelled", "{task:?}");
        } else if task.resume_count > 0 {
            assert_eq!(task.status.name(), "completed", "{task:?}");
            assert!(says(stage.work.follow_up.1), "{task:?}");
        } else if task.status.name() != "cancelled" {
            assert_eq!(task.status.name(), status, "{task:?}");
            assert!(result.is_none_or(says), "{task:?}");
        }
        assert_eq!(task.short_id, launched.short_id);
        assert!(task.completed_at.is_some());
    }
}

/// The host's own log has each notice and each inherited context exactly once.
fn check_posts(stage: &Stage, database: &Path) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(&stage.log).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["again"], false, "notice posted twice: {line}");
        *seen.entry(line["post"]["message"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let db = rusqlite::Connection::open(database).unwrap();
    let ids = |sql: &str| -> BTreeSet<String> {
        let mut statement = db.prepare(sql).unwrap();
        let ids = statement.query_map([], |row| row.get(0)).unwrap();
        ids.collect::<Result<_, _>>().unwrap()
    };
    let inherited = ids("SELECT message_id FROM inheritance");
    assert_eq!(inherited.len() >= TASKS / 40, stage.work.forks);
    // A fork that was cancelled before its prompt inherited nothing on the host.
    let prompted =
        ids("SELECT i.message_id FROM inheritance i JOIN run r ON r.task = i.task AND r.n = 0
         JOIN task t ON t.seq = i.task WHERE r.sent_at IS NOT NULL AND t.host = 'scripted'");
    assert!(prompted.iter().all(|id| seen.contains_key(id)), "a child without its context");
    seen.retain(|id, _| !inherited.contains(id));
    let mut runs = db
        .prepare(
            "SELECT n.message_id FROM run r LEFT JOIN notice n
             ON n.task = r.task AND n.run = r.n AND n.nth = 0",
        )
        .unwrap();
    let runs: Vec<Option<String>> =
        runs.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let expected: BTreeMap<String, usize> =
        runs.into_iter().map(|id| (id.expect("a run without a notice"), 1)).collect();
    assert!(expected.len() >= TASKS);
    assert_eq!(seen, expected);
}

/// No launch left an orphaned session on the host.
async fn check_sessions(stage: &Stage, database: &Path) {
    let Reply::Sessions(sessions) = stage.host.call(Call::Sessions).await.unwrap() else {
        panic!("sessions were asked for");
    };
    let mut sessions: BTreeSet<String> = sessions.iter().map(ToString::to_string).collect();
    let db = rusqlite::Connection::open(database).unwrap();
    let mut own = db.prepare("SELECT id FROM session").unwrap();
    let own = own.query_map([], |row| row.get::<_, String>(0)).unwrap();
    sessions.extend(own.map(Result::unwrap));
    let mut tasks = db.prepare("SELECT id FROM task").unwrap();
    let tasks = tasks.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut expected: BTreeSet<String> = tasks.collect::<Result<_, _>>().unwrap();
    expected.extend(stage.parents.iter().cloned());
    assert_eq!(sessions, expected);
}
