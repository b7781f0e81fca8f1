//! `asyncagents scripted-host`: the scripted host as a process of its own, for tests and benchmarks. It outlives
//! daemons that are killed, as a real OpenCode server does.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;
use crate::host::scripted::{World, serve};

#[derive(Args)]
pub(super) struct ScriptedHost {
    /// Where to listen
    #[arg(long)]
    socket: PathBuf,
    /// Append a line per post to this file
    #[arg(long)]
    log: Option<PathBuf>,
}

impl ScriptedHost {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let open = |path| OpenOptions::new().create(true).append(true).open(path);
        let log = self.log.map(open).transpose()?;
        let world = World::logging(Clock::system(), log);
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = async move {
            terminate.recv().await;
        };
        serve::serve(world, &self.socket, shutdown).await?;
        Ok(ExitCode::SUCCESS)
    }
}
