//! A long model answer: the daemon's peak memory and disk writes, relative to the answer's size.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::ensure;
use asyncagents::task::Status;
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{CallerView, LaunchRequest};

use crate::processes::Daemon;
use crate::progress;
use crate::table::{Row, Table};

const ANSWER: usize = 20_000_000;
const BOUND: usize = 32 << 20;
/// Allowed multiples of the answer's size.
const MOST: f64 = 5.0;
const LONGEST: Duration = Duration::from_secs(60);

pub(crate) async fn measure(table: &mut Table) -> anyhow::Result<()> {
    progress("answers");
    let place = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    std::thread::spawn(move || listener.incoming().flatten().try_for_each(answer));
    let config = format!("[agent]\nanswer_bytes = {BOUND}\n");
    let daemon = Daemon::with_model(&place.path().join("home"), &url, &config).await?;
    let process = &daemon.process;
    let before = (process.peak()?, process.written()?);
    let caller = CallerView {
        session_id: "bench".into(),
        directory: place.path().display().to_string(),
        ..CallerView::default()
    };
    let arguments = Arguments {
        description: Some("a long answer".into()),
        prompt: Some("go on".into()),
        agent: Some("explore".into()),
        ..Arguments::default()
    };
    let request = LaunchRequest { caller, arguments, ..LaunchRequest::default() };
    let task = daemon.client.launch(&request).await?;
    let began = std::time::Instant::now();
    while daemon.client.tasks(&[]).await?.tasks[0].status == Status::Running {
        ensure!(began.elapsed() < LONGEST, "the task does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = (process.peak()?, process.written()?);
    // Fetched after the measurement, so that the response does not count.
    let ended = daemon.client.task(&task.session_id).await?;
    let length = ended.result.map_or(0, |result| result.len());
    ensure!(length == ANSWER, "{} with {length} bytes", ended.status.name());
    for (what, megabytes) in [
        ("memory for an answer of 20 MB", after.0 - before.0),
        ("bytes written for an answer of 20 MB", after.1 - before.1),
    ] {
        let ratio = megabytes * 1024.0 * 1024.0 / ANSWER as f64;
        table.add(Row {
            what: what.to_owned(),
            figure: format!("{:.0} MB", ratio * 20.0),
            limit: "20 MB".to_owned(),
            ratio: Some(ratio),
            target: format!("≤ {MOST}"),
            met: Some(ratio <= MOST),
        });
    }
    Ok(())
}

/// Streams the answer in events of 64 kB.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 64 * 1024];
    // The body is JSON, and `}` is the last byte of the request only when all of it has arrived.
    while !request.ends_with(b"}") {
        let length = stream.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..length]);
        if length == 0 {
            return Ok(());
        }
    }
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
    )?;
    let words = "words that a model might say, over and over again; ".repeat(1_300);
    let mut left = ANSWER;
    while left > 0 {
        let bit = &words[..left.min(60_000)];
        left -= bit.len();
        let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{bit}\"}}}}]}}\n\n");
        stream.write_all(event.as_bytes())?;
    }
    stream.write_all(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")?;
    stream.write_all(b"data: [DONE]\n\n")
}
