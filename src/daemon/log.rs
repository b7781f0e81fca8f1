//! Log rotation: the daemon logs to files in the storage directory, bounded in total size and age. The current one is
//! `asyncagents.log`; a full one, or one of an earlier day, is renamed after the time of the rotation. Logging never
//! fails the daemon: if a file cannot be rotated, the current one grows.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::clock::Clock;
use crate::config;
use crate::task::Timestamp;

/// The size limit is divided into this many files: the oldest one, an eighth of the log, is removed at a time.
const FILES: u64 = 8;

const DAY: i64 = 86_400_000;

/// How much is logged; it can be changed while the daemon runs.
pub struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    /// `false` when it is no level.
    pub(super) fn set(&self, level: &str) -> bool {
        filter(level).is_ok_and(|filter| self.0.reload(filter).is_ok())
    }
}

/// The MCP library logs every session and every client's mistake; what matters of that we log ourselves.
fn filter(level: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    match level.contains("rmcp") {
        true => EnvFilter::try_new(level),
        false => EnvFilter::try_new(format!("{level},rmcp=off")),
    }
}

/// Logs to files from here on; to the terminal as well in the foreground.
pub fn init(home: &Path, config: &config::Log, watched: bool) -> anyhow::Result<Level> {
    use tracing_subscriber::prelude::*;
    let folder = home.join("log");
    let unwritable = || format!("cannot write logs to `{}`", folder.display());
    // Private to the user, whatever the umask says.
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).with_context(unwritable)?;
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).with_context(unwritable)?;
    let files = Files::open(&folder, config, Clock::system()).with_context(unwritable)?;
    let filter = filter(&config.level)
        .with_context(|| format!("`{}` is not a log level; try `info`", config.level))?;
    let (filter, level) = reload::Layer::new(filter);
    // The `Mutex` of `std`: the library implements its writer for no other.
    let to_files = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(Mutex::new(files));
    let to_terminal = watched
        .then(|| tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr));
    tracing_subscriber::registry().with(filter).with(to_files).with(to_terminal).try_init()?;
    // A background daemon has no terminal: without a hook, panics would be written to nowhere.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Level(level))
}

struct Files {
    folder: PathBuf,
    clock: Clock,
    most_bytes: u64,
    age: Duration,
    current: File,
    bytes: u64,
    day: i64,
}

impl Files {
    fn open(folder: &Path, config: &config::Log, clock: Clock) -> io::Result<Files> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let current = append(&folder.join(CURRENT))?;
        let metadata = current.metadata()?;
        let files = Files {
            folder: folder.to_owned(),
            most_bytes: config.max_bytes,
            age: Duration::from_secs(86_400) * u32::try_from(config.keep_days).unwrap_or(u32::MAX),
            bytes: metadata.len(),
            // An old one is of the day on which something was last written to it.
            day: match metadata.len() {
                0 => day(clock.now()),
                _ => day(modified(&metadata)),
            },
            current,
            clock,
        };
        files.remove_old();
        Ok(files)
    }

    /// Renames the current file to a name that is still free, and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        let named = |n: u32| {
            let time = now.to_string().replace(':', "-");
            let n = if n == 0 { String::new() } else { format!("-{n}") };
            self.folder.join(format!("asyncagents.{time}{n}.log"))
        };
        let free = (0..).map(named).find(|path| !path.exists());
        fs::rename(self.folder.join(CURRENT), free.unwrap_or_else(|| named(0)))?;
        self.current = append(&self.folder.join(CURRENT))?;
        self.bytes = 0;
        self.day = day(now);
        self.remove_old();
        Ok(())
    }

    /// Removes files that are too old, and the oldest ones beyond the size limit. Once one was removed, all older ones
    /// are, so that the log has no gap. An eighth is left for the current file.
    fn remove_old(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| {
            let name = entry.file_name().into_string().unwrap_or_default();
            name.starts_with("asyncagents.") && name.ends_with(".log") && name != CURRENT
        });
        let mut old: Vec<(Timestamp, PathBuf, u64)> = ours
            .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
            .map(|(metadata, path)| (modified(&metadata), path, metadata.len()))
            .collect();
        old.sort();
        let now = self.clock.now();
        let mut left = self.most_bytes - self.most_bytes / FILES;
        for (at, path, bytes) in old.iter().rev() {
            match left.checked_sub(*bytes) {
                Some(rest) if now.since(*at) <= self.age => left = rest,
                Some(_) | None => {
                    left = 0;
                    let _ = fs::remove_file(path);
                }
            }
        }
    }
}

const CURRENT: &str = "asyncagents.log";

impl Write for Files {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let full = self.bytes > 0 && self.bytes + line.len() as u64 > self.most_bytes / FILES;
        if full || (self.bytes > 0 && day(self.clock.now()) != self.day) {
            // If that fails, a log that is too long is better than none.
            let _ = self.rotate();
        }
        let written = self.current.write(line)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.current.flush()
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn modified(metadata: &fs::Metadata) -> Timestamp {
    let since = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Timestamp::from_millis(since.map_or(0, |since| since.as_millis() as i64))
}

fn day(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_and_bytes(folder: &Path) -> (Vec<String>, u64) {
        let entries: Vec<fs::DirEntry> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
        let bytes = entries.iter().map(|entry| entry.metadata().unwrap().len()).sum();
        let names = entries.iter().map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        (names, bytes)
    }

    fn config(max_bytes: u64) -> config::Log {
        config::Log { max_bytes, ..config::Log::default() }
    }

    #[test]
    fn log_files_stay_within_their_size_limit_and_the_newest_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = Files::open(directory.path(), &config(8_000), Clock::system()).unwrap();
        for n in 0..1_000 {
            writeln!(files, "line {n:04} {}", "x".repeat(90)).unwrap();
        }
        let (names, bytes) = names_and_bytes(directory.path());
        assert!((6_000..=8_000).contains(&bytes), "{bytes} bytes in {names:?}");
        let current = fs::read_to_string(directory.path().join(CURRENT)).unwrap();
        assert!(current.contains("line 0999 "), "{current}");
    }

    #[test]
    fn a_new_day_begins_a_new_file_and_old_ones_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        // Ages are counted by what the file system says, which knows of no manual clock.
        let clock = Clock::manual(Clock::system().now());
        let mut files = Files::open(directory.path(), &config(1 << 20), clock.clone()).unwrap();
        let mut said = |line: &str| {
            writeln!(files, "{line}").unwrap();
            names_and_bytes(directory.path()).0.len()
        };
        assert_eq!([said("today"), said("today")], [1, 1]);
        clock.advance(Duration::from_secs(86_400));
        assert_eq!([said("tomorrow"), said("tomorrow")], [2, 2]);
        clock.advance(Duration::from_secs(86_400 * 9));
        assert_eq!(said("much later"), 1);
    }
}
