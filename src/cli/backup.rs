//! `asyncagents backup`: a consistent copy of the task store, made with SQLite's backup API while the daemon may
//! be writing to it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::show;
use super::spinner::Spinner;
use crate::config::Settings;
use crate::daemon;

#[derive(Args)]
#[command(after_help = "\
The copy has all tasks with their results and conversations, as of one moment. Nobody but you can
read it. To go back to it, stop the daemon and put the copy in the place of `asyncagents.db` in the
storage directory.

Example:
  asyncagents backup tasks.db
  asyncagents backup --force /backups/asyncagents.db")]
pub(super) struct Backup {
    /// Where the copy goes
    file: PathBuf,
    /// Overwrite a file that is there
    #[arg(long)]
    force: bool,
    /// Print where the copy is and its size as JSON
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let copying = Spinner::with_percentage("copying the task store");
        // Called while a snapshot of the store is held open.
        let mut progress = |done: u64, of: u64| copying.reach(done * 100 / of.max(1));
        let bytes = daemon::back_up(&settings.home, &self.file, self.force, &mut progress)?;
        drop(copying);
        if self.json {
            show::json(&serde_json::json!({ "file": self.file, "bytes": bytes }))?;
            return Ok(ExitCode::SUCCESS);
        }
        show::line(&format!("Copied the task store to {} ({bytes} bytes).", self.file.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
