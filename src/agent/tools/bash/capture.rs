//! Captures the output of a command in bounded memory: its beginning and its end, and the whole in an
//! overflow file once it is too long to show. The file is bounded by what the session may still store; if
//! it cannot be written, the command goes on and the model is told what is missing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::fs::{DirBuilder, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use crate::agent::tools::OutputRoom;
use crate::agent::tools::text::lossy;
use crate::text;

/// What the model is shown at most.
const MOST_CHARACTERS: usize = 30_000;
const HALF: usize = MOST_CHARACTERS / 2;
/// A character has at most four bytes, so these hold enough of the beginning and the end.
const HEAD_BYTES: usize = 4 * MOST_CHARACTERS;
const TAIL_BYTES: usize = 4 * HALF;

/// The output so far.
pub(super) struct Capture {
    /// The directory of the overflow file.
    overflow: PathBuf,
    room: OutputRoom,
    head: Vec<u8>,
    /// What came after `head`, or the last part of that.
    tail: Vec<u8>,
    tail_is_cut: bool,
    total: u64,
    storage: Storage,
}

/// Where the whole output is.
enum Storage {
    InMemory,
    InFile { file: File, path: PathBuf, kept: u64, whole: bool },
    Lost { reason: String },
}

impl Capture {
    /// Long output goes to a file in `overflow`, as far as there is room.
    pub(super) fn new(overflow: &Path, room: OutputRoom) -> Capture {
        Capture {
            overflow: overflow.to_owned(),
            room,
            head: Vec::new(),
            tail: Vec::new(),
            tail_is_cut: false,
            total: 0,
            storage: Storage::InMemory,
        }
    }

    /// Reads until the end of the pipe.
    pub(super) async fn drain(&mut self, pipe: &mut pipe::Receiver) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
            self.add(&buffer[..length]).await;
        }
    }

    pub(super) async fn add(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = (HEAD_BYTES - self.head.len()).min(bytes.len());
        let (early, late) = bytes.split_at(room);
        // The head is full: from here on the middle would be lost without a file.
        if let (Storage::InMemory, false) = (&self.storage, late.is_empty()) {
            self.spill().await;
        }
        self.keep(bytes).await;
        self.head.extend_from_slice(early);
        self.tail.extend_from_slice(late);
        // Trimmed only at twice its size, so that moving the bytes stays linear in the output.
        if self.tail.len() > 2 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
            self.tail_is_cut = true;
        }
    }

    /// The output as the model is shown it.
    pub(super) async fn finish(mut self) -> String {
        // Joined before decoding, where nothing is missing in between: a character may be split between
        // head and tail.
        let (head, tail) = if self.tail_is_cut {
            (lossy(&self.head), lossy(&self.tail))
        } else {
            let whole = lossy(&[self.head.as_slice(), &self.tail].concat());
            if whole.chars().count() <= MOST_CHARACTERS && matches!(self.storage, Storage::InMemory)
            {
                return whole;
            }
            (whole.clone(), whole)
        };
        if let Storage::InMemory = self.storage {
            self.spill().await;
        }
        let where_to = self.where_to().await;
        format!(
            "{}\n\n… cut here: of {} bytes you see the beginning and the end; {where_to} …\n\n{}",
            text::head(&head, HALF),
            self.total,
            text::tail(&tail, HALF),
        )
    }

    /// Starts the overflow file with what is in memory so far.
    async fn spill(&mut self) {
        self.storage = match create(&self.overflow).await {
            Ok((path, file)) => Storage::InFile { file, path, kept: 0, whole: true },
            Err(error) => Storage::Lost { reason: error.to_string() },
        };
        // Taken out and put back, because `keep` borrows all of `self`.
        let head = std::mem::take(&mut self.head);
        self.keep(&head).await;
        self.head = head;
    }

    /// Appends to the overflow file, if there is one and there is room.
    async fn keep(&mut self, bytes: &[u8]) {
        let Storage::InFile { file, kept, whole, .. } = &mut self.storage else { return };
        // Once something did not fit, nothing more is written: the file has no gaps.
        let length = if *whole { self.room.take(bytes.len()) } else { 0 };
        *kept += length as u64;
        *whole &= length == bytes.len();
        if let Err(error) = file.write_all(&bytes[..length]).await {
            self.storage = Storage::Lost { reason: error.to_string() };
        }
    }

    async fn where_to(&mut self) -> String {
        let flushed = match &mut self.storage {
            Storage::InFile { file, .. } => file.flush().await,
            Storage::InMemory | Storage::Lost { .. } => Ok(()),
        };
        if let Err(error) = flushed {
            self.storage = Storage::Lost { reason: error.to_string() };
        }
        match &self.storage {
            Storage::InFile { path, kept, whole: false, .. } => format!(
                "the first {kept} are in `{}`; there is no room for more (`agent.output_bytes`)",
                path.display()
            ),
            Storage::InFile { path, .. } => {
                format!("all is in `{}`, for `read` and `grep`", path.display())
            }
            Storage::Lost { reason } => format!("the rest could not be kept: {reason}"),
            Storage::InMemory => "the rest was not kept".to_owned(),
        }
    }
}

async fn create(overflow: &Path) -> std::io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    DirBuilder::new().recursive(true).mode(0o700).create(overflow).await?;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = overflow.join(format!("bash-{}-{number}.txt", std::process::id()));
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(&path).await {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}
