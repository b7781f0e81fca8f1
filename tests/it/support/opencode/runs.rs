//! Runs of a session: one model answer after the other until no prompt is open. The order of events
//! is the recorded one, including the two idle events of a failure.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::script::{Answer, Refusal, Step, lines};
use super::world::{Continuation, Message, SessionGone, World, no_tokens};
use super::{MODELS, ModelInput, Server, compaction, prompt, tools};

const RETRIES: u32 = 5;

/// A run that works through a session's prompts.
pub(super) struct Run {
    pub(super) server: Arc<Server>,
    pub(super) session: String,
    pub(super) stop: CancellationToken,
    told: UnboundedReceiver<Continuation>,
    /// The script and the position in it, which survives a compaction.
    script: (Vec<String>, usize),
    /// Whether the model has begun to answer.
    heard: bool,
    /// The text part being streamed.
    writing: Option<Value>,
    summed_up: bool,
}

/// Why a run ends early.
pub(super) enum End {
    Failed {
        answer: Value,
        error: Box<Value>,
    },
    /// The run ends without an error, for instance while it waits for a retry.
    Left {
        answer: Value,
    },
    NoSuchModel(String),
    Rejected,
    Gone,
}

impl From<SessionGone> for End {
    fn from(_: SessionGone) -> End {
        End::Gone
    }
}

pub(super) async fn run(
    server: Arc<Server>,
    session: String,
    stop: CancellationToken,
    told: UnboundedReceiver<Continuation>,
) {
    let script = (Vec::new(), 0);
    let mut run =
        Run { server, session, stop, told, script, heard: false, writing: None, summed_up: false };
    let end = run.work().await;
    run.end(end).await;
    let ended = run.world().runs.remove(&run.session);
    if ended.is_some_and(|running| running.again) {
        prompt::start(&run.server, &run.session);
    }
}

impl Run {
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.server.world()
    }

    async fn work(&mut self) -> Result<(), End> {
        loop {
            self.world().set_busy(&self.session);
            // Let other tasks run, whatever the script does.
            tokio::task::yield_now().await;
            let Some(prompt) = self.due()? else { return Ok(()) };
            self.answer(&prompt).await?;
        }
    }

    /// The last prompt, unless it has a finished answer.
    fn due(&self) -> Result<Option<Message>, SessionGone> {
        let world = self.world();
        let messages = &world.session(&self.session)?.messages;
        let Some(last) = messages.iter().rposition(Message::is_user) else { return Ok(None) };
        let answer = messages[last..].iter().rfind(|message| !message.is_user());
        let finish = answer.and_then(|answer| answer.info["finish"].as_str());
        let finished = finish.is_some_and(|finish| finish != "tool-calls");
        Ok((!finished).then(|| messages[last].clone()))
    }

    /// One model answer with its tool calls.
    async fn answer(&mut self, prompt: &Message) -> Result<(), End> {
        let model = prompt.info["model"]["modelID"].as_str().unwrap_or_default();
        if !MODELS.contains(&model) {
            let provider = prompt.info["model"]["providerID"].as_str().unwrap_or_default();
            return Err(End::NoSuchModel(format!("{provider}/{model}")));
        }
        let script = self.next_of_script(prompt)?;
        let mut answer = self.begin(prompt)?;
        self.refuse(&script, &answer).await?;
        if script.overflow {
            return compaction::after_overflow(self, prompt, answer);
        }
        self.heard = false;
        for step in &script.steps {
            self.carry_out(step, &answer).await?;
        }
        self.hear(&answer)?;
        self.stop_writing()?;
        let mut rejected = false;
        for (index, call) in script.calls.iter().enumerate() {
            rejected |= tools::call(self, &answer, call, index).await?.is_rejected();
        }
        let usual = if script.calls.is_empty() { "stop" } else { "tool-calls" };
        let finish = script.finish.as_deref().unwrap_or(usual);
        self.finish(&mut answer, finish, tokens(&script, prompt))?;
        if rejected {
            return Err(End::Rejected);
        }
        let used = answer["tokens"]["total"].as_u64().unwrap_or(0);
        if used > self.world().context_limit {
            compaction::after_usage(self, prompt)?;
        }
        Ok(())
    }

    fn next_of_script(&mut self, prompt: &Message) -> Result<Answer, SessionGone> {
        let goes_on =
            prompt.parts.iter().any(|part| part["metadata"]["compaction_continue"] == true);
        if !goes_on {
            let world = self.server.world();
            let messages = &world.session(&self.session)?.messages;
            let since = messages.iter().rev().take_while(|message| !message.is_user());
            let turn = since.filter(|message| message.info.get("finish").is_some()).count();
            self.script = (lines(&prompt.texts().join("\n")), turn);
        }
        let (lines, turn) = &mut self.script;
        let answer = Answer::nth(lines, *turn);
        *turn += 1;
        Ok(answer)
    }

    /// Stores an empty answer.
    fn begin(&mut self, prompt: &Message) -> Result<Value, SessionGone> {
        let mut world = self.server.world();
        let messages = &world.session(&self.session)?.messages;
        let unanswered = messages.iter().rev().skip_while(|message| !message.is_user());
        let unanswered = unanswered.take_while(|message| message.is_user());
        let mut texts: Vec<_> = unanswered.map(Message::texts).collect();
        texts.reverse();
        let given = ModelInput { session: self.session.clone(), texts: texts.concat() };
        world.given.push(given);
        let agent = prompt.info["agent"].clone();
        let answer = blank(&mut world, &prompt.info, &agent);
        world.put_message(&answer)?;
        world.sum_up(&self.session)?;
        world.set_busy(&self.session);
        Ok(answer)
    }

    /// The model server may refuse, permanently or temporarily.
    async fn refuse(&mut self, script: &Answer, answer: &Value) -> Result<(), End> {
        let Some(refusal) = &script.refusal else { return Ok(()) };
        let said = script.said();
        let passing = refusal.status >= 500 || refusal.status == 429;
        let attempts = match (passing, refusal.once) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => RETRIES,
        };
        for attempt in 1..=attempts {
            let pause = refusal.retry_after.unwrap_or(Duration::from_secs(1 << attempt));
            let next = self.world().now() + pause.as_millis() as i64;
            let status =
                json!({"type": "retry", "attempt": attempt, "message": said, "next": next});
            self.world().set_status(&self.session, &status);
            if self.stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Err(End::Left { answer: answer.clone() });
            }
            self.world().set_busy(&self.session);
        }
        if passing && refusal.once {
            return Ok(());
        }
        Err(End::Failed { answer: answer.clone(), error: refused(refusal, &said).into() })
    }

    async fn carry_out(&mut self, step: &Step, answer: &Value) -> Result<(), End> {
        match step {
            Step::Think(text) => self.write(answer, "reasoning", text),
            Step::Say(text) => self.write(answer, "text", text),
            Step::Wait(time) => self.wait(answer, tokio::time::sleep(*time)).await,
            Step::Hang => match self.wait_until_told(answer).await? {
                Continuation::Finish(text) => self.write(answer, "text", &text),
                Continuation::Fail { status, message } => {
                    let refusal = Refusal { status, once: false, retry_after: None };
                    Err(End::Failed {
                        answer: answer.clone(),
                        error: refused(&refusal, &message).into(),
                    })
                }
            },
        }
    }

    async fn wait_until_told(&mut self, answer: &Value) -> Result<Continuation, End> {
        tokio::select! {
            Some(told) = self.told.recv() => Ok(told),
            () = self.stop.cancelled() => Err(aborted(answer)),
        }
    }

    pub(super) async fn wait<T>(
        &self,
        answer: &Value,
        wanted: impl Future<Output = T>,
    ) -> Result<T, End> {
        self.stop.run_until_cancelled(wanted).await.ok_or_else(|| aborted(answer))
    }

    /// Records the first byte of an answer.
    fn hear(&mut self, answer: &Value) -> Result<(), SessionGone> {
        if !std::mem::replace(&mut self.heard, true) {
            self.put_part(answer, json!({"type": "step-start"}))?;
        }
        Ok(())
    }

    /// Streams word by word. The stored part stays empty until the text is complete.
    fn write(&mut self, answer: &Value, kind: &str, text: &str) -> Result<(), End> {
        self.hear(answer)?;
        if self.writing.as_ref().is_some_and(|part| part["type"] != kind) {
            self.stop_writing()?;
        }
        let mut part = match self.writing.take() {
            Some(part) => part,
            None => {
                let start = self.world().now();
                let part = json!({"type": kind, "text": "", "time": {"start": start}});
                self.put_part(answer, part)?
            }
        };
        for word in text.split_inclusive(' ') {
            let delta = json!({
                "sessionID": self.session,
                "messageID": answer["id"],
                "partID": part["id"],
                "field": "text",
                "delta": word,
            });
            self.world().emit(&self.session, "message.part.delta", delta);
        }
        part["text"] = json!(format!("{}{text}", part["text"].as_str().unwrap_or_default()));
        self.writing = Some(part);
        Ok(())
    }

    fn stop_writing(&mut self) -> Result<(), SessionGone> {
        let Some(mut part) = self.writing.take() else { return Ok(()) };
        let mut world = self.world();
        part["time"]["end"] = json!(world.now());
        world.put_part(&part)
    }

    pub(super) fn put_part(&self, message: &Value, rest: Value) -> Result<Value, SessionGone> {
        let mut world = self.world();
        let part = world.part(message, rest);
        world.put_part(&part)?;
        Ok(part)
    }

    /// Finishes a step; the answer is sent twice.
    fn finish(
        &mut self,
        answer: &mut Value,
        finish: &str,
        tokens: Value,
    ) -> Result<(), SessionGone> {
        finish_step(&mut self.server.world(), answer, finish, tokens)?;
        self.summed_up = true;
        Ok(())
    }

    async fn end(&mut self, end: Result<(), End>) {
        let nothing_else = match end {
            Ok(()) | Err(End::Rejected) => self.rest(),
            Err(End::NoSuchModel(name)) => {
                self.miss_model(&name);
                Ok(())
            }
            Err(End::Failed { answer, error }) => self.fail(answer, *error).await,
            Err(End::Left { answer }) => self.leave(answer),
            Err(End::Gone) => Err(SessionGone),
        };
        if nothing_else.is_err() {
            self.go_on_without_session().await;
        }
    }

    fn rest(&self) -> Result<(), SessionGone> {
        let mut world = self.world();
        world.set_idle(&self.session);
        if self.summed_up { world.sum_up(&self.session) } else { Ok(()) }
    }

    /// Idle is sent twice, the first time before the answer has its error.
    async fn fail(&mut self, mut answer: Value, error: Value) -> Result<(), SessionGone> {
        {
            let mut world = self.server.world();
            if let Some(running) = world.runs.get_mut(&self.session) {
                running.ending = true;
            }
            world.error(&self.session, &error);
            world.set_idle(&self.session);
        }
        tokio::time::sleep(self.server.knobs().between_idles).await;
        self.stop_writing()?;
        tools::abort_running(&mut self.world(), &answer)?;
        answer["error"] = error;
        self.leave(answer)
    }

    fn leave(&self, mut answer: Value) -> Result<(), SessionGone> {
        let mut world = self.world();
        answer["time"]["completed"] = json!(world.now());
        world.put_message(&answer)?;
        world.set_idle(&self.session);
        Ok(())
    }

    fn miss_model(&self, name: &str) {
        let mut world = self.world();
        let short = format!("Model not found: {name}.");
        let long =
            format!("ProviderModelNotFoundError: {short}\n    at <anonymous> (chunk.js:4:9)");
        world.error(&self.session, &unknown_error(&short));
        world.set_idle(&self.session);
        world.error(&self.session, &unknown_error(&long));
    }

    /// A deletion does not stop the run: its write fails, is retried and given up.
    async fn go_on_without_session(&self) {
        let message = "Failed query: insert into \"part\"";
        let next = self.world().now() + 20;
        let status = json!({"type": "retry", "attempt": 1, "message": message, "next": next});
        self.world().set_status(&self.session, &status);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut world = self.world();
        world.error(&self.session, &unknown_error(message));
        world.set_idle(&self.session);
    }
}

/// A new, empty answer to a prompt.
pub(super) fn blank(world: &mut World, prompt: &Value, agent: &Value) -> Value {
    let directory = world.directory_of(prompt["sessionID"].as_str().unwrap_or_default());
    json!({
        "id": world.id("msg"),
        "sessionID": prompt["sessionID"],
        "role": "assistant",
        "time": {"created": world.now()},
        "parentID": prompt["id"],
        "modelID": prompt["model"]["modelID"],
        "providerID": prompt["model"]["providerID"],
        "mode": agent,
        "agent": agent,
        "path": {"cwd": directory, "root": "/"},
        "cost": 0,
        "tokens": no_tokens(),
    })
}

pub(super) fn finish_step(
    world: &mut World,
    answer: &mut Value,
    finish: &str,
    tokens: Value,
) -> Result<(), SessionGone> {
    let cost = cost(&tokens);
    let rest =
        json!({"type": "step-finish", "reason": finish, "cost": cost, "tokens": tokens.clone()});
    let part = world.part(answer, rest);
    world.put_part(&part)?;
    (answer["cost"], answer["tokens"], answer["finish"]) = (json!(cost), tokens, json!(finish));
    answer["time"]["completed"] = json!(world.now());
    world.put_message(answer)?;
    world.put_message(answer)
}

/// From the script, or in proportion to the texts.
fn tokens(script: &Answer, prompt: &Message) -> Value {
    let length = |texts: &[String]| texts.iter().map(String::len).sum::<usize>() as u64 / 4;
    let guessed = [2_400 + length(&prompt.texts()), 10 + length(&[script.said()]), 0];
    let [input, output, reasoning] = script.usage.unwrap_or(guessed);
    let mut tokens = no_tokens();
    (tokens["input"], tokens["output"]) = (json!(input), json!(output));
    (tokens["reasoning"], tokens["total"]) = (json!(reasoning), json!(input + output));
    tokens
}

/// One dollar per million input tokens, two per million output tokens.
fn cost(tokens: &Value) -> f64 {
    let count = |name: &str| tokens[name].as_u64().unwrap_or(0);
    (count("input") + 2 * count("output")) as f64 / 1e6
}

pub(super) fn aborted(answer: &Value) -> End {
    let error = json!({"name": "MessageAbortedError", "data": {"message": "Aborted"}});
    End::Failed { answer: answer.clone(), error: Box::new(error) }
}

fn unknown_error(message: &str) -> Value {
    json!({"name": "UnknownError", "data": {"message": message}})
}

fn refused(refusal: &Refusal, message: &str) -> Value {
    let kind = if refusal.status >= 500 { "server_error" } else { "invalid_request_error" };
    let body = json!({"error": {"message": message, "type": kind, "code": kind}});
    let mut headers = json!({
        "connection": "keep-alive",
        "content-type": "application/json",
        "date": "Sun, 15 Nov 2026 21:03:25 GMT",
        "keep-alive": "timeout=60",
        "transfer-encoding": "chunked",
    });
    if let Some(pause) = refusal.retry_after {
        headers["retry-after-ms"] = json!(pause.as_millis().to_string());
    }
    json!({"name": "APIError", "data": {
        "message": message,
        "statusCode": refusal.status,
        "isRetryable": refusal.status >= 500 || refusal.status == 429,
        "responseHeaders": headers,
        "responseBody": body.to_string(),
        "metadata": {"url": "http://127.0.0.1:4010/v1/chat/completions"},
    }})
}
