//! Hot reload of the configuration file, by polling: before every command and every few seconds its metadata is
//! compared with that of the last read. Limits and log level are applied at once; for every other key that changed,
//! commands say that a restart is needed. A file that cannot be used changes nothing, and that is said, too.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::limits;
use super::log::Level;
use crate::config::{self, Config, Settings};
use crate::http::RestartNeeded;
use crate::supervisor::Supervisor;

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How long a request waits for a look at the file; a network file system that hangs must not hang the health check.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// What was set up before the daemon and can be changed while it runs.
pub struct ReloadTargets {
    /// Reads the settings again, from the same sources as at the start.
    pub reread: Box<dyn Fn() -> Result<Settings, config::Error> + Send + Sync>,
    pub level: Level,
}

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct Watch(Arc<Inner>);

struct Inner {
    file: PathBuf,
    reloadable: ReloadTargets,
    supervisor: Supervisor,
    /// Single flight: held while the file is read, so that a file system that hangs occupies one thread and not one
    /// per request.
    looking: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

struct State {
    /// What is in force.
    config: Config,
    /// Of the file as it was last read.
    stamp: Option<Stamp>,
    /// What commands say about it.
    note: Option<String>,
}

/// The file's validator, as an ETag: it changes whenever the file does, also when it is replaced by one of the same
/// size within the resolution of its time (then the inode differs).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Absent,
    There { modified: Option<SystemTime>, inode: u64, bytes: u64 },
}

impl Watch {
    pub(super) fn new(
        settings: &Settings,
        reloadable: ReloadTargets,
        supervisor: Supervisor,
    ) -> Watch {
        let state = State { config: settings.config.clone(), stamp: None, note: None };
        Watch(Arc::new(Inner {
            file: settings.config_file.clone(),
            reloadable,
            supervisor,
            looking: Arc::default(),
            state: Mutex::new(state),
        }))
    }

    /// Looks every few seconds, until told to stop.
    pub(super) async fn run(self, stopping: CancellationToken) {
        while stopping.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            self.look_now().await;
        }
    }

    async fn look_now(&self) -> Option<String> {
        if let Ok(turn) = self.0.looking.clone().try_lock_owned() {
            let inner = Arc::clone(&self.0);
            let look = tokio::task::spawn_blocking(move || {
                inner.read_if_changed();
                drop(turn);
            });
            let _ = tokio::time::timeout(LONGEST_LOOK, look).await;
        }
        self.known()
    }
}

impl RestartNeeded for Watch {
    fn known(&self) -> Option<String> {
        self.0.state.lock().note.clone()
    }

    fn look(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.look_now())
    }
}

impl Inner {
    fn read_if_changed(&self) {
        // Taken before the file is read: if it changes in between, the next look finds another stamp and reads again.
        let stamp = stamp(&self.file);
        if self.state.lock().stamp == Some(stamp) {
            return;
        }
        // Without the lock: reading may hang, and `known` must answer meanwhile.
        let read = (self.reloadable.reread)();
        let mut state = self.state.lock();
        state.stamp = Some(stamp);
        let file = self.file.display();
        state.note = match read {
            Ok(new) => {
                self.apply(&mut state.config, &new.config);
                let keys = state.config.changed_keys(&new.config);
                (!keys.is_empty()).then(|| {
                    let keys = keys.join("`, `");
                    format!(
                        "the configuration file `{file}` was changed (`{keys}`); `asyncagents daemon \
                         restart` applies it, and live runs go on"
                    )
                })
            }
            Err(error) => Some(format!(
                "the configuration file `{file}` was changed and cannot be used: {}; the daemon goes \
                 on with what it read before",
                chain(&error)
            )),
        };
        if let Some(note) = &state.note {
            tracing::warn!(%note, "configuration file changed; not all of it takes effect");
        }
    }

    /// Applies the keys that are read at each use, and copies them, so that they do not count as changed.
    fn apply(&self, current: &mut Config, new: &Config) {
        let before = limits(current);
        current.limits = new.limits.clone();
        current.task_tool.active_per_parent = new.task_tool.active_per_parent;
        if limits(current) != before {
            self.supervisor.set_limits(limits(current));
            tracing::info!("limits changed; queued tasks are admitted by the new ones");
        }
        if new.log.level != current.log.level && self.reloadable.level.set(&new.log.level) {
            current.log.level = new.log.level.clone();
            tracing::info!(level = new.log.level, "log level changed");
        }
    }
}

fn stamp(file: &std::path::Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(file) {
        Ok(found) => {
            let (inode, bytes) = (found.ino(), found.len());
            Stamp::There { modified: found.modified().ok(), inode, bytes }
        }
        Err(_) => Stamp::Absent,
    }
}

/// The error and all its sources in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
