//! Programs that are run for a notification: with an environment of their own, a time limit, and killed with everything
//! they started when it is over. What they print is dropped.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::Error;
use crate::process::Variables;

const LIMIT: Duration = Duration::from_secs(30);

/// A command line for `sh` that gets the JSON of a notification on its standard input.
pub struct Hook {
    pub command: String,
    /// Its whole environment.
    pub environment: Variables,
}

impl Hook {
    pub(super) async fn run(&self, body: &str) -> Result<(), Error> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command]);
        run("notify.command", shell, &self.environment, body, LIMIT).await
    }
}

/// Kills the process group when dropped, also with the future that waits for it.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.0.map(|group| kill_process_group(group, Signal::KILL));
    }
}

pub(super) async fn run(
    name: &'static str,
    mut command: Command,
    environment: &Variables,
    input: &str,
    limit: Duration,
) -> Result<(), Error> {
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    // A daemon must not keep a directory busy; a group of its own, so that all of it can be killed.
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| Error::NotStarted(name, error))?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group(pid);
    let stdin = child.stdin.take();
    let work = async {
        if let Some(mut stdin) = stdin {
            // One that does not read it may succeed all the same.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait().await
    };
    let ended = tokio::time::timeout(limit, work).await;
    let status = ended.map_err(|_| Error::TooSlow(name, limit.as_secs()))?;
    // What it left in the background on purpose may go on.
    group.0 = None;
    match status.map_err(|error| Error::NotStarted(name, error))? {
        status if status.success() => Ok(()),
        status => Err(Error::Failed(name, status)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn sh(line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]);
        shell
    }

    #[tokio::test]
    async fn a_command_gets_the_json_and_only_its_own_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("heard");
        let variables = [("PATH", "/usr/bin:/bin"), ("FILE", file.to_str().unwrap())];
        let environment: Variables =
            Arc::new(variables.map(|(name, value)| (name.into(), value.into())).to_vec());
        let line = "{ cat; env | grep -c -v -e ^PATH= -e ^FILE= -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; pwd; } > $FILE";
        let command = Hook { command: line.into(), environment: Arc::clone(&environment) };
        command.run("{\"a\":1}\n").await.unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{\"a\":1}\n0\n/\n");
        let failed = run("x", sh("exit 3"), &environment, "", LIMIT).await.unwrap_err();
        assert_eq!(failed.to_string(), "`x` failed (exit status: 3)");
    }

    #[tokio::test]
    async fn a_command_that_does_not_end_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let environment: Variables = Arc::new(vec![("PATH".into(), "/usr/bin:/bin".into())]);
        let line = format!("sh -c 'echo $$ > {}; exec sleep 600'; true", file.display());
        let limit = Duration::from_secs(1);
        let error = run("x", sh(&line), &environment, "", limit).await.unwrap_err();
        assert_eq!(error.to_string(), "`x` took longer than 1 s");
        let pid = std::fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    }
}
