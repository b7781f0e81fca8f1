//! `asyncagents daemon logs`: the last lines of the daemon's log, and what is added to it. The files are read
//! here: a daemon that does not run, or does not start, is when they are wanted most.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::cli::show;
use crate::config::Settings;

/// How often the file is looked at while it is followed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How much is read from the end of a file, at most.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Args)]
#[command(after_help = "\
Example:
  asyncagents daemon logs
  asyncagents daemon logs -f -n 200")]
pub(super) struct Logs {
    /// Go on with what is logged from now on, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Show this many of the last lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: usize,
}

impl Logs {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let folder = settings.home.join("log");
        let current = folder.join("asyncagents.log");
        if !current.exists() && !self.follow {
            bail!("there is no log in `{}` yet; the daemon writes it", folder.display());
        }
        // Before the last lines are read: what is added meanwhile is shown with what follows.
        let mut followed = LogTail::at_the_end(&current)?;
        let until = followed.as_ref().map(|followed| followed.read);
        for line in last_lines(&folder, self.lines, until)? {
            show::line(&line)?;
        }
        if !self.follow {
            return Ok(ExitCode::SUCCESS);
        }
        loop {
            if let Some(file) = &mut followed {
                file.show_new()?;
            }
            // Full, or of another day: it was renamed, and another one begun. What came last is in the old one.
            if followed.as_ref().is_none_or(|file| !file.is_still(&current)) {
                if let Some(file) = &mut followed {
                    file.show_new()?;
                }
                followed = LogTail::at_the_start(&current)?;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The file that is written to, and how far it was read.
struct LogTail {
    file: File,
    read: u64,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
}

impl LogTail {
    fn at_the_start(path: &Path) -> anyhow::Result<Option<LogTail>> {
        match File::open(path) {
            Ok(file) => Ok(Some(LogTail { file, read: 0, rest: Vec::new() })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read `{}`", path.display())),
        }
    }

    fn at_the_end(path: &Path) -> anyhow::Result<Option<LogTail>> {
        let Some(mut followed) = LogTail::at_the_start(path)? else { return Ok(None) };
        followed.read = followed.file.metadata()?.len();
        Ok(Some(followed))
    }

    fn is_still(&self, path: &Path) -> bool {
        let ours = self.file.metadata().map(|ours| (ours.dev(), ours.ino()));
        let there = fs::metadata(path).map(|there| (there.dev(), there.ino()));
        matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
    }

    fn show_new(&mut self) -> anyhow::Result<()> {
        self.file.seek(SeekFrom::Start(self.read))?;
        self.read += self.file.by_ref().take(MOST_BYTES).read_to_end(&mut self.rest)? as u64;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        for line in String::from_utf8_lossy(&whole).lines() {
            show::line(line)?;
        }
        Ok(())
    }
}

/// The last lines of all files together, oldest first; of the current one up to `until`.
fn last_lines(folder: &Path, most: usize, until: Option<u64>) -> anyhow::Result<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    for (n, file) in files(folder)?.into_iter().enumerate() {
        if lines.len() >= most {
            break;
        }
        let end = until.filter(|_| n == 0);
        let mut earlier = lines_of(&file, end).with_context(|| cannot_read(&file))?;
        earlier.extend(lines);
        lines = earlier;
    }
    let surplus = lines.len().saturating_sub(most);
    Ok(lines.split_off(surplus))
}

fn cannot_read(file: &Path) -> String {
    format!("cannot read `{}`", file.display())
}

fn lines_of(file: &Path, end: Option<u64>) -> std::io::Result<Vec<String>> {
    let mut file = File::open(file)?;
    let end = end.map_or_else(|| file.metadata().map(|metadata| metadata.len()), Ok)?;
    let start = end.saturating_sub(MOST_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(end - start).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// The newest first. Rotated ones are named after the time of the rotation; the current one has the shortest name.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| cannot_read(folder))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("asyncagents.") && name.ends_with(".log") {
            files.push((name != "asyncagents.log", entry.metadata()?.modified()?, entry.path()));
        }
    }
    files.sort_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(&one.1)));
    Ok(files.into_iter().map(|(_, _, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_read_across_rotated_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(last_lines(folder.path(), 9, None).unwrap(), [] as [&str; 0]);
        write("asyncagents.1.log", "a\nb\n");
        write("asyncagents.log", "c\nd\ne\n");
        write("other.log", "x\n");
        let check = |most: usize, until: Option<u64>, expected: &[&str]| {
            assert_eq!(last_lines(folder.path(), most, until).unwrap(), expected, "{most}");
        };
        check(0, None, &[]);
        check(2, None, &["d", "e"]);
        check(4, None, &["b", "c", "d", "e"]);
        check(9, None, &["a", "b", "c", "d", "e"]);
        check(2, Some(2), &["b", "c"]);
    }
}
