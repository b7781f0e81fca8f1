//! The daemon and the scripted host as child processes, which are killed when their handles are
//! dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use asyncagents::client::{Client, Stop};
use asyncagents::host::scripted::{Control, Remote, Scripted};
use asyncagents::wire::ServerView;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_asyncagents");

const LONGEST_START: Duration = Duration::from_secs(20);
const LONGEST_STOP: Duration = Duration::from_secs(20);
const BETWEEN_TRIES: Duration = Duration::from_micros(500);

/// Kills the process, and only this one, when it is dropped.
pub(crate) struct Process(Child);

pub(crate) struct Host {
    pub(crate) process: Process,
    pub(crate) scripted: Scripted,
    pub(crate) socket: PathBuf,
    pub(crate) posts: PathBuf,
}

pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) client: Client,
    /// From the start of the process to its first response.
    pub(crate) ready_after: Duration,
}

impl Host {
    pub(crate) async fn start(place: &Path) -> anyhow::Result<Host> {
        let (socket, posts) = (place.join("host.sock"), place.join("posts.log"));
        let mut command = command(place);
        command.arg("scripted-host").arg("--socket").arg(&socket).arg("--log").arg(&posts);
        let process = Process(command.spawn().context("starting the scripted host")?);
        let scripted = Scripted::Process(Remote::new(&socket)?);
        let began = Instant::now();
        while scripted.control(Control::Ring).await.is_err() {
            if began.elapsed() > LONGEST_START {
                bail!("the scripted host does not answer");
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(Host { process, scripted, socket, posts })
    }
}

impl Daemon {
    /// `home` may hold a database. `config` is the text of a configuration file.
    pub(crate) async fn start(home: &Path, host: &Host, config: &str) -> anyhow::Result<Daemon> {
        Daemon::launch(home, host, config, "false").await
    }

    /// With an OpenCode server as its host.
    pub(crate) async fn on_opencode(
        home: &Path,
        url: &str,
        config: &str,
    ) -> anyhow::Result<Daemon> {
        Daemon::with(home, config, |command| {
            command.env("ASYNCAGENTS_HOST", "opencode").env("ASYNCAGENTS_OPENCODE_URL", url);
            command.env("ASYNCAGENTS_API_ENABLED", "false");
        })
        .await
    }

    /// With embedded agents that use this model server.
    pub(crate) async fn with_model(home: &Path, url: &str, config: &str) -> anyhow::Result<Daemon> {
        Daemon::with(home, config, |command| {
            command.env("ASYNCAGENTS_HOST", "embedded").env("ASYNCAGENTS_API_ENABLED", "false");
            command.env("ASYNCAGENTS_MODEL", "openai/bench").env("OPENAI_BASE_URL", url);
            command.env("MALLOC_MMAP_THRESHOLD_", "262144");
        })
        .await
    }

    /// With the status API enabled; returns its port.
    pub(crate) async fn open(home: &Path, host: &Host) -> anyhow::Result<(Daemon, u16)> {
        let daemon = Daemon::launch(home, host, "", "true").await?;
        let text = fs::read_to_string(home.join("server.json"))?;
        let server: ServerView = serde_json::from_str(&text)?;
        Ok((daemon, server.port))
    }

    async fn launch(home: &Path, host: &Host, config: &str, api: &str) -> anyhow::Result<Daemon> {
        Daemon::with(home, config, |command| {
            command
                .env("ASYNCAGENTS_HOST", format!("scripted:{}", host.socket.display()))
                .env("ASYNCAGENTS_API_ENABLED", api)
                .env("ASYNCAGENTS_API_PORT", "0");
        })
        .await
    }

    async fn with(
        home: &Path,
        config: &str,
        set: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Daemon> {
        let file = home.with_extension("toml");
        fs::write(&file, config)?;
        let mut command = command(home);
        command
            .arg("serve")
            .env("ASYNCAGENTS_HOME", home)
            .env("ASYNCAGENTS_CONFIG", &file)
            .env("ASYNCAGENTS_LOG", "warn");
        set(&mut command);
        let began = Instant::now();
        let mut process = Process(command.spawn().context("starting the daemon")?);
        let client = Client::new(&home.join("asyncagents.sock"));
        while client.health().await.is_err() {
            if let Some(status) = process.0.try_wait()? {
                bail!("the daemon ended with {status}");
            }
            if began.elapsed() > LONGEST_START {
                bail!("the daemon does not answer");
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(Daemon { process, client, ready_after: began.elapsed() })
    }

    /// A clean shutdown, so that the next daemon on the directory has nothing to recover.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.client.stop(Stop::ForGood).await?;
        let began = Instant::now();
        while self.process.0.try_wait()?.is_none() {
            if began.elapsed() > LONGEST_STOP {
                bail!("the daemon does not stop");
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(())
    }
}

impl Process {
    /// Its resident memory (RSS), in MB.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        self.megabytes("VmRSS:")
    }

    /// Its peak resident memory, in MB.
    pub(crate) fn peak(&self) -> anyhow::Result<f64> {
        self.megabytes("VmHWM:")
    }

    /// Bytes written so far, to files and sockets, in MB.
    pub(crate) fn written(&self) -> anyhow::Result<f64> {
        let io = fs::read_to_string(format!("/proc/{}/io", self.0.id()))?;
        let line = io.lines().find_map(|line| line.strip_prefix("wchar:"));
        let bytes: f64 = line.context("no such line")?.trim().parse()?;
        Ok(bytes / 1024.0 / 1024.0)
    }

    fn megabytes(&self, name: &str) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kilobytes: f64 = kilobytes.context("no such line")?.trim().parse()?;
        Ok(kilobytes / 1024.0)
    }

    /// This program again, in the role that the argument names.
    pub(crate) fn of_ourselves(argument: &str) -> anyhow::Result<(Process, ChildStdout)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(argument).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a part of the bench")?;
        let stdout = child.stdout.take().context("no output")?;
        Ok((Process(child), stdout))
    }

    /// Its processor time so far, over all threads, in seconds.
    pub(crate) fn processor(&self) -> anyhow::Result<f64> {
        processor(&self.0.id().to_string())
    }
}

pub(crate) fn own_processor() -> anyhow::Result<f64> {
    processor("self")
}

/// The kernel reports hundredths of a second (`USER_HZ`).
fn processor(process: &str) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let after_name = stat.rsplit_once(')').context("no name in stat")?.1;
    let ticks = |field: usize| -> anyhow::Result<f64> {
        Ok(after_name.split_whitespace().nth(field).context("stat is too short")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A clean environment: variables of the user's shell may configure the daemon.
fn command(place: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("HOME", place).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    command
}
