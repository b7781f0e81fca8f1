//! A real `opencode serve` with the scripted model server: on loopback, with its own home,
//! configuration and project, and nothing from outside. `install-opencode.sh` installs the program.
//! It is heavy (half a gigabyte, seconds to start), so its tests run one at a time.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use super::ModelServer;
use super::talk::Talk;

/// A cold start takes three to nine seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const LISTENING: &str = "opencode server listening on http://127.0.0.1:";
/// OpenCode would install this package into its configuration by itself.
const NOTHING_TO_INSTALL: &str =
    r#"{"lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}"#;

/// Killed when it is dropped, with every process its tools have started.
pub struct RealOpenCode {
    process: Option<Child>,
    port: u16,
    password: Option<String>,
    starts: u32,
    root: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// One at a time, also without nextest's test groups.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Deviations from a server that allows everything and has a context of 200 000 tokens.
#[derive(Default)]
pub struct Setup {
    pub password: Option<String>,
    /// Merged into the configuration, key by key: `{"permission": {"bash": "ask"}}`.
    pub config: Value,
    /// The context of the models in tokens.
    pub context: Option<u64>,
    /// Whether our plugin is installed, by our own command.
    pub plugin: bool,
    /// Whether it is set up but not started.
    pub stopped: bool,
}

impl RealOpenCode {
    pub async fn start(model: &ModelServer) -> RealOpenCode {
        RealOpenCode::with(model, Setup::default()).await
    }

    pub async fn with(model: &ModelServer, setup: Setup) -> RealOpenCode {
        let alone = ALONE.lock().await;
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("config/opencode");
        fs::create_dir_all(own.join("node_modules")).unwrap();
        fs::write(own.join("package.json"), "{}").unwrap();
        fs::write(own.join("package-lock.json"), NOTHING_TO_INSTALL).unwrap();
        for directory in ["home", "data", "cache", "state", "tmp", "project"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        let mut config = config(&model.base_url(), setup.context.unwrap_or(200_000));
        overlay(&mut config, &setup.config);
        fs::write(root.path().join("opencode.json"), config.to_string()).unwrap();
        let mut server = RealOpenCode {
            process: None,
            port: 0,
            password: setup.password,
            starts: 0,
            root,
            _alone: alone,
        };
        if setup.plugin {
            server.program(&["opencode", "install"]);
        }
        if !setup.stopped {
            server.start_on("0").await;
        }
        server
    }

    /// Runs our program in OpenCode's environment; returns its output.
    pub fn program(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_asyncagents"));
        let output = self.surround(&mut command).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A command line that runs a program in OpenCode's environment, without a port.
    pub fn command_line(&self, program: &str) -> String {
        let mut command = Command::new("env");
        self.surround(&mut command);
        let set = command
            .get_envs()
            .filter_map(|(name, value)| Some(format!("{}='{}'", name.to_str()?, value?.to_str()?)));
        let set: Vec<String> = set.collect();
        let program = match program {
            "opencode" => installed("opencode-linux-x64/bin/opencode").display().to_string(),
            other => other.to_owned(),
        };
        format!("env -i TERM=xterm-256color {} {program}", set.join(" "))
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn password(&self) -> Option<String> {
        self.password.clone()
    }

    pub fn talk(&self) -> Talk {
        self.talk_on(self.port)
    }

    fn talk_on(&self, port: u16) -> Talk {
        let url = format!("http://127.0.0.1:{port}");
        match &self.password {
            Some(password) => Talk::with_password(url, password),
            None => Talk::to(url),
        }
    }

    /// Its working directory: the project of sessions that name no other.
    pub fn project(&self) -> PathBuf {
        self.path("project")
    }

    /// `kill -9`: nothing is finished, no event is sent.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        kill(&mut process);
    }

    /// A second process in the same directory, with the same sessions.
    pub async fn another(&self) -> SecondOpenCode {
        let log = self.path("log.another");
        let process = self.command("0", &log).spawn().unwrap();
        let mut another = SecondOpenCode { process, talk: self.talk() };
        let port = listening(&mut another.process, &log).await;
        another.talk = self.talk_on(port);
        another
    }

    /// Restarts with the stored sessions, on the same port.
    pub async fn start_again(&mut self) {
        self.start_on(&self.port.to_string()).await;
    }

    /// Restarts with the stored sessions, on another port.
    pub async fn start_elsewhere(&mut self) {
        self.start_on("0").await;
    }

    /// Its output since the last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits for the line that reports it ready: earlier requests are never answered, although the
    /// port is open.
    async fn start_on(&mut self, port: &str) {
        assert!(self.process.is_none(), "it runs already");
        self.starts += 1;
        let log = self.log_path();
        let process = self.command(port, &log).spawn().unwrap();
        self.port = listening(self.process.insert(process), &log).await;
    }

    fn command(&self, port: &str, log: &Path) -> Command {
        let log = File::create(log).unwrap();
        let mut command = Command::new(installed("opencode-linux-x64/bin/opencode"));
        self.surround(&mut command);
        command.args(["serve", "--hostname", "127.0.0.1", "--port", port]);
        command.process_group(0);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    /// Sets up its environment and its project as the working directory.
    fn surround<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let search = installed("@vscode/ripgrep-linux-x64/bin");
        command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", search.display()));
        for (name, directory) in [
            ("HOME", "home"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_DATA_HOME", "data"),
            ("XDG_CACHE_HOME", "cache"),
            ("XDG_STATE_HOME", "state"),
            ("TMPDIR", "tmp"),
            ("OPENCODE_CONFIG", "opencode.json"),
        ] {
            command.env(name, self.path(directory));
        }
        for what in [
            "MODELS_FETCH",
            "AUTOUPDATE",
            "DEFAULT_PLUGINS",
            "LSP_DOWNLOAD",
            "SHARE",
            "CLAUDE_CODE",
            "EXTERNAL_SKILLS",
        ] {
            command.env(format!("OPENCODE_DISABLE_{what}"), "1");
        }
        if let Some(password) = &self.password {
            command.env("OPENCODE_SERVER_PASSWORD", password);
        }
        command.env("ASYNCAGENTS_API_ENABLED", "false").current_dir(self.project())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn log_path(&self) -> PathBuf {
        self.path(&format!("log.{}", self.starts))
    }
}

impl Drop for RealOpenCode {
    fn drop(&mut self) {
        self.kill();
        if self.path("data/asyncagents").exists() {
            let mut stop = Command::new(env!("CARGO_BIN_EXE_asyncagents"));
            let _ = self.surround(&mut stop).args(["daemon", "stop"]).output();
        }
    }
}

/// A second OpenCode; killed when it is dropped, like the first.
pub struct SecondOpenCode {
    process: Child,
    pub talk: Talk,
}

impl Drop for SecondOpenCode {
    fn drop(&mut self) {
        kill(&mut self.process);
    }
}

/// Kills it with every process its tools have started.
fn kill(process: &mut Child) {
    let group = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
    // The process may be gone already.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = process.wait();
}

/// The port, once it reports that it listens.
async fn listening(process: &mut Child, log: &Path) -> u16 {
    let started = Instant::now();
    loop {
        let log = fs::read_to_string(log).unwrap_or_default();
        let line = log.lines().find_map(|line| line.strip_prefix(LISTENING));
        if let Some(port) = line.filter(|_| log.ends_with('\n')) {
            return port.trim().parse().unwrap();
        }
        let over = process.try_wait().unwrap();
        assert_eq!(over, None, "opencode ended: {log}");
        assert!(started.elapsed() < PATIENCE, "opencode does not listen: {log}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The models have the same names as those of the stub `OpenCode`, so that tests can use both
/// servers.
fn config(model: &str, context: u64) -> Value {
    let one = json!({
        "name": "scripted",
        "tool_call": true,
        "limit": {"context": context, "output": 8_192},
        "cost": {"input": 1, "output": 2},
    });
    json!({
        "autoupdate": false,
        "share": "disabled",
        "snapshot": false,
        "lsp": false,
        "formatter": false,
        "model": "scripted/first",
        "small_model": "scripted/first",
        "enabled_providers": ["scripted"],
        "provider": {"scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": model, "apiKey": "none"},
            "models": {"first": one, "second": one},
        }},
        "permission": {"*": "allow"},
    })
}

fn overlay(config: &mut Value, over: &Value) {
    match (config, over.as_object()) {
        (Value::Object(config), Some(over)) => {
            for (name, value) in over {
                overlay(config.entry(name.clone()).or_insert(json!({})), value);
            }
        }
        (_, None) if over.is_null() => {}
        (config, _) => *config = over.clone(),
    }
}

fn installed(what: &str) -> PathBuf {
    let path = cache().join("oc/node_modules").join(what);
    let is_tool = what.starts_with("opencode");
    assert!(path.exists() || !is_tool, "run tests/tools/install-opencode.sh first: {path:?}");
    path
}

#[expect(clippy::disallowed_methods, reason = "where things are installed is known outside only")]
pub fn cache() -> PathBuf {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = named("ASYNCAGENTS_TEST_CACHE") {
        return cache.into();
    }
    let caches = named("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&named("HOME").expect("somebody's home")).join(".cache");
    caches.unwrap_or_else(home).join("asyncagents-test")
}
