//! A minimal HTTP client over real TCP, without retries or redirects: tests see the bytes of each response.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use asyncagents::wire::{ServerView, TaskView};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::process::Shell;

/// Longer than any response takes, shorter than a test's time limit.
const PATIENCE: Duration = Duration::from_secs(60);

/// The status API of a shell's daemon.
pub struct Site {
    pub server: ServerView,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: u64,
    pub data: Value,
}

/// A client of the event stream.
pub struct Stream(BufReader<TcpStream>);

impl Site {
    /// Of a running daemon, found by its `server.json`.
    pub fn of(shell: &Shell) -> Site {
        let text = fs::read_to_string(shell.home().join("server.json")).unwrap();
        Site { server: serde_json::from_str(&text).unwrap() }
    }

    pub fn start(shell: &Shell) -> Site {
        shell.say(["daemon", "start"]);
        Site::of(shell)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends any request, with these lines as additional headers.
    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            request.push_str("Host: localhost\r\n");
        }
        for header in headers {
            request.push_str(&format!("{header}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        Answer::parse(&String::from_utf8(text).unwrap())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// The body of a successful response.
    pub fn read<T: DeserializeOwned>(&self, path: &str) -> T {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        answer.json()
    }

    pub fn task(&self, id: &str) -> TaskView {
        self.read(&format!("/v1/tasks/{id}"))
    }

    /// The descriptions in the list, and the total.
    pub fn listed(&self, query: &str) -> (Vec<String>, u64) {
        let page: asyncagents::wire::PageView = self.read(&format!("/v1/tasks{query}"));
        (page.tasks.into_iter().map(|task| task.description).collect(), page.total)
    }

    pub fn events(&self, query: &str) -> Stream {
        let mut stream = self.connect();
        let request = format!("GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut stream = Stream(BufReader::new(stream));
        let mut head = Vec::new();
        loop {
            let line = stream.line().expect("a head");
            if line.is_empty() {
                break;
            }
            head.push(line.to_lowercase());
        }
        assert_eq!(head[0], "http/1.1 200 ok");
        assert!(head.contains(&"content-type: text/event-stream".to_owned()), "{head:?}");
        assert!(head.contains(&"transfer-encoding: chunked".to_owned()), "{head:?}");
        stream
    }
}

impl Answer {
    pub fn parse(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_lowercase(), value.to_owned())
        };
        Answer { status, headers: lines.map(header).collect(), body: body.to_owned() }
    }

    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message in the JSON body that every error has.
    pub fn error(&self) -> String {
        let view: asyncagents::wire::ErrorView = self.json();
        assert_eq!(view.status, self.status);
        view.error
    }
}

impl Stream {
    /// A line without its line end; `None` when the server has closed the stream.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).unwrap();
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The next event; `None` when the stream has ended. Every event is a chunk of its own.
    pub fn next(&mut self) -> Option<Event> {
        let size = usize::from_str_radix(&self.line()?, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return None;
        }
        let text = String::from_utf8(chunk).unwrap();
        let lines: Vec<&str> = text.trim_end().split('\n').collect();
        let [name, id, data] = lines[..] else { panic!("{text}") };
        Some(Event {
            name: name.strip_prefix("event: ").unwrap().to_owned(),
            id: id.strip_prefix("id: ").unwrap().parse().unwrap(),
            data: serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
        })
    }

    /// The next event of this kind; skips others.
    pub fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().expect("the stream goes on");
            if event.name == name {
                return event;
            }
        }
    }
}

impl Event {
    /// The task it is about.
    pub fn task(&self) -> TaskView {
        assert_eq!(fields(&self.data), ["task"]);
        serde_json::from_value(self.data["task"].clone()).unwrap()
    }
}

/// The names of an object's fields, sorted.
pub fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}
