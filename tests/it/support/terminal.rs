//! A command on a pseudoterminal, which the test reads and types on.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::process::until;

/// The command is killed when this is dropped.
pub struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Standard input and error are the terminal; so is standard output unless another one is
    /// given.
    pub fn start(command: &mut Command, stdout: Option<Stdio>) -> Terminal {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = PathBuf::from(ptsname(&keys, Vec::new()).unwrap().into_string().unwrap());
        let side = || {
            let flags = OFlags::NOCTTY.bits().cast_signed();
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&name).unwrap()
        };
        command.stdin(side()).stderr(side()).stdout(stdout.unwrap_or_else(|| side().into()));
        let child = command.spawn().unwrap();
        // `command` would keep its side of the terminal open.
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
        let keys = File::from(keys);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut output, shown) = (keys.try_clone().unwrap(), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            // An error is the end: the other side was closed.
            while let Ok(n @ 1..) = output.read(&mut some) {
                shown.lock().unwrap().extend_from_slice(&some[..n]);
            }
        });
        Terminal { child, keys, screen, reader: Some(reader) }
    }

    pub fn until_shows(&self, text: &str) {
        until(text, || self.shown().contains(text));
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code, and everything that was shown, including the echo of typed input.
    pub fn wait(mut self) -> (i32, String) {
        until("the command ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code().expect("ended by itself");
        self.reader.take().unwrap().join().unwrap();
        (code, self.shown())
    }

    fn shown(&self) -> String {
        String::from_utf8(self.screen.lock().unwrap().clone()).unwrap().replace("\r\n", "\n")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
