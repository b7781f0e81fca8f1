//! Sessions with an MCP server on stdio, by hand over its pipes: from the start of the process to
//! the result of the first call, in every protocol generation, compared with a no-op server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::mcp::{LIST, MOST_TIMES_NOTHING, NOTHING, SAID, nothing, ours_at};
use crate::table::{Row, Table, median};
use crate::{Scale, progress};

const GENERATIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", STATELESS];
/// A generation without a handshake: every request names its client.
const STATELESS: &str = "2026-07-28";

pub(crate) fn measure(home: &Path, scale: &Scale, table: &mut Table) -> anyhow::Result<()> {
    progress("first calls of sessions with MCP");
    let mut first_calls = Vec::new();
    for generation in GENERATIONS {
        let (mut figures, mut limits) = (Vec::new(), Vec::new());
        // Interleaved, so that both see the same background load. The first pair warms up the
        // caches.
        for n in 0..=scale.commands {
            let pair = (
                session(ours_at(home), generation, LIST)?,
                session(nothing()?, generation, NOTHING)?,
            );
            if n > 0 {
                figures.push(pair.0.until_first_answer);
                limits.push(pair.1.until_first_answer);
                first_calls.push(pair.0.first_call);
            }
        }
        let (figure, limit) = (median(&figures), median(&limits));
        table.add(Row {
            what: format!("start of a session → answer of its first call, MCP {generation}"),
            figure: format!("{figure:.1} ms"),
            limit: format!("{limit:.1} ms"),
            ratio: Some(figure / limit),
            target: format!("≤ {MOST_TIMES_NOTHING}×"),
            met: Some(figure / limit <= MOST_TIMES_NOTHING),
        });
    }
    table.note(format!(
        "first call of a session with MCP, without the start of the process: {:.1} ms",
        median(&first_calls)
    ));
    Ok(())
}

/// In milliseconds.
struct Times {
    until_first_answer: f64,
    first_call: f64,
}

/// The usual sequence of a client: handshake, list of tools, one call.
fn session(command: Command, generation: &'static str, tool: &str) -> anyhow::Result<Times> {
    let began = Instant::now();
    let mut served = StdioServer::start(command, generation)?;
    served.ask("tools/list", json!({}))?;
    let first_call = served.call(tool)? / 1e3;
    Ok(Times { until_first_answer: began.elapsed().as_secs_f64() * 1e3, first_call })
}

/// An MCP server as a client starts it.
pub(crate) struct StdioServer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: u64,
    /// Metadata sent with every request.
    meta: Option<Value>,
}

impl StdioServer {
    pub(crate) fn start(
        mut command: Command,
        generation: &'static str,
    ) -> anyhow::Result<StdioServer> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        let mut process = command.spawn().context("starting a server of MCP")?;
        let input = process.stdin.take().context("no input")?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        let mut served = StdioServer { process, input, output, calls: 0, meta: None };
        let about = json!({"name": "bench", "version": "1"});
        let capabilities = json!({"roots": {"listChanged": true}});
        if generation == STATELESS {
            served.meta = Some(json!({
                "io.modelcontextprotocol/protocolVersion": generation,
                "io.modelcontextprotocol/clientInfo": about,
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            }));
            served.ask("server/discover", json!({}))?;
            return Ok(served);
        }
        let greeting = json!({
            "protocolVersion": generation, "capabilities": capabilities, "clientInfo": about,
        });
        let greeted = served.ask("initialize", greeting)?;
        ensure!(greeted["result"]["protocolVersion"] == generation, "it answered {greeted}");
        served.tell(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(served)
    }

    /// Microseconds until the response.
    pub(crate) fn call(&mut self, name: &str) -> anyhow::Result<f64> {
        let began = Instant::now();
        let answer = self.ask("tools/call", json!({"name": name, "arguments": {}}))?;
        let took = began.elapsed();
        let text = &answer["result"]["content"][0]["text"];
        ensure!(text == SAID, "it answered {answer}");
        Ok(took.as_secs_f64() * 1e6)
    }

    fn ask(&mut self, method: &str, mut params: Value) -> anyhow::Result<Value> {
        self.calls += 1;
        let id = self.calls;
        if let Some(meta) = &self.meta {
            params["_meta"] = meta.clone();
        }
        self.tell(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            ensure!(self.output.read_line(&mut line)? > 0, "it hung up");
            let message: Value = serde_json::from_str(&line)?;
            match message["method"].as_str() {
                // The server may send requests of its own before it responds.
                Some("roots/list") => {
                    let roots = json!({"roots": [{"uri": "file:///"}]});
                    self.tell(&json!({"jsonrpc": "2.0", "id": message["id"], "result": roots}))?;
                }
                Some(_) => {}
                None => {
                    ensure!(message["id"] == id, "it answered {line}");
                    return Ok(message);
                }
            }
        }
    }

    fn tell(&mut self, message: &Value) -> anyhow::Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        Ok(self.input.write_all(line.as_bytes())?)
    }
}

impl Drop for StdioServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
