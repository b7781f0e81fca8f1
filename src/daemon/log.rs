//! The daemon's log: a file a day in the storage directory, the oldest ones removed.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use anyhow::Context;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::config;

/// How much is logged; it can be changed while the daemon runs.
pub struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    /// `false` when it is no level.
    pub(super) fn set(&self, level: &str) -> bool {
        EnvFilter::try_new(level).is_ok_and(|filter| self.0.reload(filter).is_ok())
    }
}

/// Logs to files from here on; to the terminal as well when somebody watches.
pub fn init(home: &Path, config: &config::Log, watched: bool) -> anyhow::Result<Level> {
    use tracing_subscriber::prelude::*;
    let folder = home.join("log");
    let unwritable = || format!("cannot write logs to `{}`", folder.display());
    // The appender complains on the terminal when there is nothing to look through.
    // Nobody else looks in, whatever the umask says.
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).with_context(unwritable)?;
    std::fs::set_permissions(&folder, Permissions::from_mode(0o700)).with_context(unwritable)?;
    let files = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("asyncagents")
        .filename_suffix("log")
        .max_log_files(config.keep_days.max(1))
        .build(&folder)
        .with_context(unwritable)?;
    // The appender makes its files as the umask says; those of later days are still in that folder.
    for file in std::fs::read_dir(&folder).with_context(unwritable)?.flatten() {
        let _ = std::fs::set_permissions(file.path(), Permissions::from_mode(0o600));
    }
    let filter = EnvFilter::try_new(&config.level)
        .with_context(|| format!("`{}` is not a log level; try `info`", config.level))?;
    let (filter, level) = reload::Layer::new(filter);
    let to_files = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(files);
    let to_terminal = watched
        .then(|| tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr));
    tracing_subscriber::registry().with(filter).with(to_files).with(to_terminal).try_init()?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Level(level))
}
