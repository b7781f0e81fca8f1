//! A model server that breaks the protocol on demand. The last user message selects how:
//! `@endless`, `@bytes 8388609`, `@filter call`, …; anything else gets a valid answer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// A handle; the server runs until the test process ends.
#[derive(Clone)]
pub struct HostileServer {
    port: u16,
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
}

type SendResult = std::io::Result<()>;

impl HostileServer {
    pub fn start() -> HostileServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = HostileServer { port, asked: Arc::default() };
        let served = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                // The client may disconnect at any time.
                std::thread::spawn(move || served.answer(stream));
            }
        });
        server
    }

    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// How many requests there were for this prompt.
    pub fn asked(&self, prompt: &str) -> usize {
        self.asked.lock().unwrap().get(prompt).copied().unwrap_or(0)
    }

    fn answer(&self, mut stream: TcpStream) -> SendResult {
        let body = read_request(&stream)?;
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let is_user = |message: &&Value| message["role"] == "user";
        let prompt = messages.iter().rev().find(is_user);
        let prompt = prompt.and_then(|prompt| prompt["content"].as_str()).unwrap_or_default();
        *self.asked.lock().unwrap().entry(prompt.to_owned()).or_default() += 1;
        // The run ends when the results of its calls arrive.
        if messages.last().is_some_and(|last| last["role"] == "tool") {
            return whole(&mut stream, "all calls were answered");
        }
        let (verb, rest) = prompt.split_once(' ').unwrap_or((prompt, ""));
        misbehave(&mut stream, verb, rest)
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Value> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

fn misbehave(stream: &mut TcpStream, verb: &str, rest: &str) -> SendResult {
    match verb {
        "@endless" => {
            head(stream)?;
            loop {
                say(stream, &"never ending ".repeat(1_000))?;
            }
        }
        // Empty events: no content, but never silent.
        "@endless-nothing" => {
            head(stream)?;
            loop {
                delta(stream, json!({}))?;
                stream.write_all(b": still here\n\n")?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        "@endless-line" => {
            head(stream)?;
            stream.write_all(b"data: {\"choices\": [{\"delta\": {\"content\": \"")?;
            loop {
                stream.write_all(&[b'x'; 64 * 1024])?;
            }
        }
        "@endless-arguments" => {
            head(stream)?;
            loop {
                call(stream, 0, "bash", &"x".repeat(20))?;
            }
        }
        "@endless-thoughts" => {
            head(stream)?;
            loop {
                delta(stream, json!({"reasoning_content": "hm ".repeat(1_000)}))?;
            }
        }
        // This many bytes, in chunks.
        "@bytes" => {
            head(stream)?;
            let mut left: usize = rest.parse().unwrap();
            while left > 0 {
                let bit = left.min(64 * 1024);
                say(stream, &"x".repeat(bit))?;
                left -= bit;
            }
            finish(stream, "stop")
        }
        // This many bytes in one event.
        "@event" => {
            head(stream)?;
            say(stream, &"x".repeat(rest.parse().unwrap()))?;
            finish(stream, "stop")
        }
        "@calls" => {
            head(stream)?;
            let (number, command) = rest.split_once(' ').unwrap();
            for index in 0..number.parse().unwrap() {
                call(stream, index, "bash", &json!({"command": command}).to_string())?;
            }
            finish(stream, "tool_calls")
        }
        // `@tool read {"path": "a"}`
        "@tool" => {
            head(stream)?;
            let (name, arguments) = rest.split_once(' ').unwrap();
            call(stream, 0, name, arguments)?;
            finish(stream, "tool_calls")
        }
        "@index" => {
            head(stream)?;
            call(stream, 4_000_000_000, "todo", "{}")?;
            finish(stream, "tool_calls")
        }
        "@values" => {
            head(stream)?;
            call(stream, 0, "bash", &format!("{{\"command\": [{}0]}}", "0,".repeat(3 << 20)))?;
            finish(stream, "tool_calls")
        }
        "@deep" => {
            head(stream)?;
            stream.write_all(
                format!("data: {}{}\n\n", "[".repeat(100_000), "]".repeat(100_000)).as_bytes(),
            )
        }
        "@garbage" => {
            head(stream)?;
            stream.write_all(b"data: {this is no JSON}\n\n")
        }
        "@bytes-that-are-no-text" => {
            head(stream)?;
            stream.write_all(b"data: {\"choices\": [{\"delta\": {\"content\": \"\xff\xfe\"}}]}\n\n")
        }
        "@crlf" => {
            head(stream)?;
            let event = |delta: Value, finish: Value| {
                let choice = json!({"delta": delta, "finish_reason": finish});
                format!("data: {}\r\n\r\n", json!({"choices": [choice]}))
            };
            stream.write_all(event(json!({"content": "with returns"}), Value::Null).as_bytes())?;
            stream.write_all(event(json!({}), json!("stop")).as_bytes())?;
            stream.write_all(b"data: [DONE]\r\n\r\n")
        }
        "@no-done" => {
            head(stream)?;
            say(stream, "whole")?;
            end(stream, "stop")
        }
        // The connection stays open after the finish reason.
        "@no-end" => {
            head(stream)?;
            say(stream, "whole")?;
            end(stream, "stop")?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        // `@cut length text`, `@cut content_filter call`, …
        "@cut" => {
            let (reason, place) = rest.split_once(' ').unwrap();
            head(stream)?;
            match place {
                "text" => say(stream, "half")?,
                "thought" => delta(stream, json!({"reasoning_content": "hm"}))?,
                "call" => {
                    say(stream, "half")?;
                    call(stream, 0, "bash", "{\"command\": \"touch made; ec")?;
                }
                "whole-call" => call(stream, 0, "glob", "{\"pattern\": \"*\"}")?,
                _ => {}
            }
            finish(stream, reason)
        }
        "@redirect" => stream.write_all(
            b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/elsewhere?x=y\r\n\
              Content-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        "@refusal" => {
            stream.write_all(b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 64 * 1024])?;
            }
        }
        "@not-streamed" => {
            let message = json!({"role": "assistant", "content": "all at once"});
            let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
            json_answer(stream, &body.to_string())
        }
        "@not-streamed-without-end" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")?;
            loop {
                stream.write_all(&[b' '; 64 * 1024])?;
            }
        }
        "@silent" => {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        "@falls-silent" => {
            head(stream)?;
            say(stream, "half")?;
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        _ => whole(stream, "a polite answer"),
    }
}

fn whole(stream: &mut TcpStream, text: &str) -> SendResult {
    head(stream)?;
    say(stream, text)?;
    finish(stream, "stop")
}

fn head(stream: &mut TcpStream) -> SendResult {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes())
}

fn json_answer(stream: &mut TcpStream, body: &str) -> SendResult {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn say(stream: &mut TcpStream, text: &str) -> SendResult {
    delta(stream, json!({ "content": text }))
}

fn call(stream: &mut TcpStream, index: u64, name: &str, arguments: &str) -> SendResult {
    let function = json!({"name": name, "arguments": arguments});
    let id = format!("c{index}");
    delta(stream, json!({"tool_calls": [{"index": index, "id": id, "function": function}]}))
}

fn delta(stream: &mut TcpStream, delta: Value) -> SendResult {
    event(stream, json!({"choices": [{"delta": delta, "finish_reason": null}]}))
}

/// The finish reason as the last event.
fn end(stream: &mut TcpStream, reason: &str) -> SendResult {
    event(stream, json!({"choices": [{"delta": {}, "finish_reason": reason}]}))
}

fn finish(stream: &mut TcpStream, reason: &str) -> SendResult {
    end(stream, reason)?;
    stream.write_all(b"data: [DONE]\n\n")
}

fn event(stream: &mut TcpStream, event: Value) -> SendResult {
    stream.write_all(format!("data: {event}\n\n").as_bytes())
}
