//! Stand-ins for the daemon on its socket: a stub with canned responses, like a daemon of another
//! version, and a proxy that drops one response of the real daemon.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The start of a request line, and the status and body of its response.
pub type Answers = Vec<(&'static str, u16, String)>;

/// Sends canned responses, and exits when it is asked to stop.
pub struct CannedDaemon {
    asked: Arc<Mutex<Vec<String>>>,
}

impl CannedDaemon {
    pub fn listen(socket: &Path, answers: Answers) -> CannedDaemon {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (socket, heard) = (socket.to_owned(), asked.clone());
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                while let Some(request) = Request::read(&mut stream) {
                    let line = request.line();
                    heard.lock().unwrap().push(line.clone());
                    let answer = answers.iter().find(|(known, ..)| line.starts_with(known));
                    let missing = (404, r#"{"error":"no such route","status":404}"#.to_owned());
                    let (status, body) =
                        answer.map_or(missing, |(_, status, body)| (*status, body.clone()));
                    write_answer(&mut stream, status, &body);
                    if line.starts_with("POST /v1/daemon/stop") {
                        fs::remove_file(&socket).unwrap();
                        return;
                    }
                }
            }
        });
        CannedDaemon { asked }
    }

    /// The request lines since the last call, without the protocol.
    pub fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// A proxy in the daemon's place that forwards everything and drops the first response to a request
/// that starts like this: the daemon executed it, and its client does not know. Afterwards the
/// daemon gets its socket back.
pub fn lose_answer(socket: &Path, beginning: &str) -> Arc<Mutex<Vec<String>>> {
    let behind = socket.with_extension("behind");
    fs::rename(socket, &behind).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    let lost = Arc::<Mutex<Vec<String>>>::default();
    let (socket, beginning, losing) = (socket.to_owned(), beginning.to_owned(), lost.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while let Some(request) = Request::read(&mut stream) {
                let answer = hand_on(&behind, &request);
                if request.line().starts_with(&beginning) {
                    losing.lock().unwrap().push(request.line());
                    fs::rename(&behind, &socket).unwrap();
                    return;
                }
                stream.write_all(&answer).unwrap();
            }
        }
    });
    lost
}

struct Request(Vec<u8>);

impl Request {
    /// `None` when the client has closed the connection.
    fn read(stream: &mut UnixStream) -> Option<Request> {
        read_message(stream).map(Request)
    }

    fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        text.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned()
    }
}

fn hand_on(behind: &PathBuf, request: &Request) -> Vec<u8> {
    let mut stream = UnixStream::connect(behind).unwrap();
    stream.write_all(&request.0).unwrap();
    read_message(&mut stream).unwrap()
}

/// A header block and as much of a body as it announces.
fn read_message(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    let mut byte = [0];
    while !message.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        message.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&message).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    message.extend(body);
    Some(message)
}

fn write_answer(stream: &mut UnixStream, status: u16, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // The client may have disconnected.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}
