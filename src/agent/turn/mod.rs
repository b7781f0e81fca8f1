//! The agent's loop as a state machine: an event in, effects out. The conversation is its whole
//! state, so a loop that was cut off goes on from its last saved message. No model, no tool, no
//! disk is touched here.

use std::time::Duration;

use serde_json::{Value, json};

use super::model::{self, Call, Finish, Piece, Price};
use crate::transcript::{Failure, Info, Message, Part, Role, Time, Tokens, ToolState};

/// What the answer to a call that was cut off says.
pub const INTERRUPTED: &str = "interrupted: the tool was cut off and may have done a part of it";

const COMPACTION_PROMPT: &str = "Sum up this conversation so that somebody else can go on with it: \
    the task, what was done and found (with files and lines), what is left to do.";
const GO_ON: &str = "Go on with the task from this summary.";

/// A server that asks for more patience than this is asked again all the same.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Answers of the model in one run.
    pub steps: u32,
    pub retries: u32,
    /// Tokens of one request from which on the conversation is summed up first.
    pub compact_at: u64,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Look at the conversation and do what is to be done next.
    Begin,
    Piece(Piece),
    /// The model has no more pieces, or never had.
    ModelFailed(model::Error),
    /// It is time to try again.
    Retry,
    /// The call may run.
    Started {
        call: String,
    },
    ToolEnded {
        call: String,
        result: Result<String, String>,
    },
    /// The call was refused, and the run ends with it.
    Refused {
        call: String,
        why: String,
    },
    Cancel,
}

/// What is to be done about it, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put this message on disk, over an earlier state of it. Nothing else is done before.
    Save(Box<Message>),
    AskModel(Purpose),
    /// All at once. Each is answered by an event.
    RunTools(Vec<Call>),
    /// Ask again after a while.
    Wait {
        pause: Duration,
        why: String,
    },
    /// The run is over; the conversation says how.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Answer,
    /// Sum up what was said, without tools.
    Summary,
}

/// Everything that is new: ids and times come from outside.
pub trait Mint {
    fn message_id(&mut self) -> String;
    fn now(&mut self) -> i64;
}

pub struct Turn<M> {
    pub messages: Vec<Message>,
    session: String,
    agent: String,
    limits: Limits,
    price: Option<Price>,
    mint: M,
    steps: u32,
    failures: u32,
    /// The answer that is being written; not saved before it is whole.
    writing: Option<Message>,
    purpose: Purpose,
    over: bool,
}

impl<M: Mint> Turn<M> {
    pub fn new(
        session: &str,
        agent: &str,
        messages: Vec<Message>,
        limits: Limits,
        mint: M,
    ) -> Turn<M> {
        Turn {
            messages,
            session: session.to_owned(),
            agent: agent.to_owned(),
            limits,
            price: None,
            mint,
            steps: 0,
            failures: 0,
            writing: None,
            purpose: Purpose::Answer,
            over: false,
        }
    }

    /// With what its model costs, where that is known.
    pub fn priced(self, price: Option<Price>) -> Turn<M> {
        Turn { price, ..self }
    }

    /// The answer as far as it has come.
    pub fn writing(&self) -> Option<&Message> {
        self.writing.as_ref()
    }

    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Begin => self.begin(),
            Event::Piece(Piece::End(finish)) => self.close(finish),
            Event::Piece(piece) => self.add(piece),
            Event::ModelFailed(error) => self.model_failed(error),
            Event::Retry => self.ask(),
            Event::Started { call } => self.set_call(&call, "running", None, None),
            Event::ToolEnded { call, result } => self.tool_ended(&call, result),
            Event::Refused { call, why } => self.refused(&call, why),
            Event::Cancel => self.cancel(),
        }
    }

    fn begin(&mut self) -> Vec<Effect> {
        let Some(last) = self.messages.last_mut() else { return self.done() };
        match (last.info.role, last.info.finish.as_deref(), &last.info.error) {
            (Role::User, _, _) => self.next_step(),
            (Role::Assistant, Some("tool-calls"), None) => {
                let mut cut = false;
                for state in tool_states(last).filter(|state| state.status == "running") {
                    state.status = "error".into();
                    state.error = Some(INTERRUPTED.into());
                    cut = true;
                }
                let mut effects = Vec::new();
                effects.extend(cut.then(|| save(last)));
                effects.extend(self.after_tools());
                effects
            }
            (Role::Assistant, _, _) => match is_summary(last) {
                true => self.go_on_after_summary(),
                false => self.done(),
            },
        }
    }

    /// Asks for the next answer, or for a summary when there is too much to show.
    fn next_step(&mut self) -> Vec<Effect> {
        if self.steps >= self.limits.steps {
            let why = format!("turn limit reached: {} answers of the model", self.limits.steps);
            return self.fail("TurnLimitError", &why);
        }
        if self.last_request_tokens() >= self.limits.compact_at && self.purpose == Purpose::Answer {
            return self.compact();
        }
        self.ask()
    }

    fn ask(&mut self) -> Vec<Effect> {
        self.writing = Some(self.blank());
        vec![Effect::AskModel(self.purpose)]
    }

    fn compact(&mut self) -> Vec<Effect> {
        self.purpose = Purpose::Summary;
        let marker = self.user(vec![
            Part::Compaction { auto: true },
            Part::Text { id: String::new(), text: COMPACTION_PROMPT.into(), synthetic: true },
        ]);
        let mut effects = vec![save(&marker)];
        effects.extend(self.ask());
        effects
    }

    fn go_on_after_summary(&mut self) -> Vec<Effect> {
        self.purpose = Purpose::Answer;
        let go_on =
            self.user(vec![Part::Text { id: String::new(), text: GO_ON.into(), synthetic: true }]);
        let mut effects = vec![save(&go_on)];
        effects.extend(self.ask());
        effects
    }

    fn add(&mut self, piece: Piece) -> Vec<Effect> {
        let Some(message) = &mut self.writing else { return Vec::new() };
        match piece {
            Piece::Text(text) => match message.parts.last_mut() {
                Some(Part::Text { text: said, .. }) => said.push_str(&text),
                _ => message.parts.push(Part::Text { id: String::new(), text, synthetic: false }),
            },
            Piece::Thought(text) => match message.parts.last_mut() {
                Some(Part::Reasoning { text: thought }) => thought.push_str(&text),
                _ => message.parts.push(Part::Reasoning { text }),
            },
            Piece::Call(Call { id, name, arguments }) => message.parts.push(Part::Tool {
                call: id,
                tool: name,
                state: ToolState {
                    status: "pending".into(),
                    input: arguments,
                    output: None,
                    error: None,
                },
            }),
            Piece::Usage(tokens) => {
                message.info.tokens = Some(tokens);
                message.info.cost = self.price.map(|price| price.of(tokens));
            }
            Piece::End(_) => {}
        }
        Vec::new()
    }

    /// The answer is whole. With calls in it there is more to do, whatever word the model used.
    fn close(&mut self, finish: Finish) -> Vec<Effect> {
        let Some(mut message) = self.writing.take() else { return Vec::new() };
        self.failures = 0;
        self.steps += 1;
        let calls = tool_states(&mut message).next().is_some();
        message.info.finish = Some(match (calls, finish) {
            (true, _) => "tool-calls".into(),
            (false, Finish::Stop | Finish::ToolCalls) => "stop".into(),
            (false, Finish::Length) => "length".into(),
            (false, Finish::Other(word)) => word,
        });
        message.info.time.completed = Some(self.mint.now());
        let summary = self.purpose == Purpose::Summary;
        message.info.summary = summary.then_some(Value::Bool(true));
        self.messages.push(message.clone());
        let mut effects = vec![save(&message)];
        effects.extend(match (summary, calls) {
            (true, _) => self.go_on_after_summary(),
            (false, true) => self.after_tools(),
            (false, false) => self.done(),
        });
        effects
    }

    fn model_failed(&mut self, error: model::Error) -> Vec<Effect> {
        if error.is_worth_a_retry() && self.failures < self.limits.retries {
            let pause = match &error {
                model::Error::Busy { retry_after: Some(pause), .. } => (*pause).min(LONGEST_PAUSE),
                _ => Duration::from_millis(500) * 2u32.pow(self.failures.min(6)),
            };
            self.failures += 1;
            self.writing = None;
            return vec![Effect::Wait { pause, why: error.to_string() }];
        }
        self.fail("APIError", &error.to_string())
    }

    fn tool_ended(&mut self, call: &str, result: Result<String, String>) -> Vec<Effect> {
        let mut effects = match result {
            Ok(output) => self.set_call(call, "completed", Some(output), None),
            Err(error) => self.set_call(call, "error", None, Some(error)),
        };
        if !effects.is_empty() && self.waiting_calls().is_empty() {
            effects.extend(self.next_step());
        }
        effects
    }

    /// Runs what has not run yet; when all is answered, asks the model.
    fn after_tools(&mut self) -> Vec<Effect> {
        let calls = self.waiting_calls();
        match calls.is_empty() {
            true => self.next_step(),
            false => vec![Effect::RunTools(calls)],
        }
    }

    fn refused(&mut self, call: &str, why: String) -> Vec<Effect> {
        let mut effects = self.set_call(call, "error", None, Some(why));
        effects.extend(self.done());
        effects
    }

    fn cancel(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(last) = self.messages.last_mut() {
            let mut cut = false;
            let unanswered = |state: &&mut ToolState| is_unanswered(state);
            for state in tool_states(last).filter(unanswered) {
                state.status = "error".into();
                state.error = Some("aborted".into());
                cut = true;
            }
            effects.extend(cut.then(|| save(last)));
        }
        effects.extend(self.fail("MessageAbortedError", "aborted"));
        effects
    }

    /// Ends the run with an error, keeping what was said so far.
    fn fail(&mut self, name: &str, error: &str) -> Vec<Effect> {
        let mut message = match self.writing.take() {
            Some(writing) => writing,
            None => self.blank(),
        };
        message.parts.retain(|part| !matches!(part, Part::Tool { .. }));
        message.info.error = Some(Failure { name: name.into(), data: json!({ "message": error }) });
        message.info.time.completed = Some(self.mint.now());
        self.messages.push(message.clone());
        let mut effects = vec![save(&message)];
        effects.extend(self.done());
        effects
    }

    fn done(&mut self) -> Vec<Effect> {
        self.over = true;
        vec![Effect::Done]
    }

    fn set_call(
        &mut self,
        call: &str,
        status: &str,
        output: Option<String>,
        error: Option<String>,
    ) -> Vec<Effect> {
        let Some(last) = self.messages.last_mut() else { return Vec::new() };
        let state = last.parts.iter_mut().find_map(|part| match part {
            Part::Tool { call: id, state, .. } if id == call && is_unanswered(state) => Some(state),
            _ => None,
        });
        let Some(state) = state else { return Vec::new() };
        state.status = status.to_owned();
        state.output = output;
        state.error = error;
        vec![save(last)]
    }

    fn waiting_calls(&self) -> Vec<Call> {
        let parts = self.messages.last().map(|message| message.parts.as_slice());
        let calls = parts.unwrap_or_default().iter().filter_map(|part| match part {
            Part::Tool { call, tool, state } if is_unanswered(state) => {
                Some(Call { id: call.clone(), name: tool.clone(), arguments: state.input.clone() })
            }
            _ => None,
        });
        calls.collect()
    }

    fn last_request_tokens(&self) -> u64 {
        let last = self.messages.iter().rev().find(|m| m.info.role == Role::Assistant);
        match last {
            Some(message) if !is_summary(message) => {
                message.info.tokens.map_or(0, |Tokens { input, output, .. }| input + output)
            }
            Some(_) | None => 0,
        }
    }

    fn user(&mut self, parts: Vec<Part>) -> Message {
        let mut message = self.blank();
        message.info.role = Role::User;
        message.info.parent = None;
        message.parts = parts;
        self.messages.push(message.clone());
        message
    }

    fn blank(&mut self) -> Message {
        let info = Info {
            id: self.mint.message_id(),
            session: self.session.clone(),
            role: Role::Assistant,
            time: Time { created: self.mint.now(), completed: None },
            parent: self.messages.last().map(|message| message.info.id.clone()),
            agent: Some(self.agent.clone()),
            cost: None,
            tokens: None,
            finish: None,
            error: None,
            summary: None,
        };
        Message { info, parts: Vec::new() }
    }
}

fn save(message: &Message) -> Effect {
    Effect::Save(Box::new(message.clone()))
}

/// What the model is to see: from the newest summary on.
pub fn visible(messages: &[Message]) -> &[Message] {
    let newest = messages.iter().rposition(is_summary).unwrap_or(0);
    &messages[newest..]
}

fn is_summary(message: &Message) -> bool {
    message.info.role == Role::Assistant && message.info.summary == Some(Value::Bool(true))
}

fn is_unanswered(state: &ToolState) -> bool {
    matches!(state.status.as_str(), "pending" | "running")
}

fn tool_states(message: &mut Message) -> impl Iterator<Item = &mut ToolState> {
    message.parts.iter_mut().filter_map(|part| match part {
        Part::Tool { state, .. } => Some(state),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(u32);

    impl Mint for Counting {
        fn message_id(&mut self) -> String {
            self.0 += 1;
            format!("m{}", self.0)
        }

        fn now(&mut self) -> i64 {
            7
        }
    }

    const LIMITS: Limits = Limits { steps: 3, retries: 2, compact_at: 1_000 };

    fn prompt() -> Message {
        message("p1", Role::User, vec![say("look")])
    }

    fn say(text: &str) -> Part {
        Part::Text { id: String::new(), text: text.into(), synthetic: false }
    }

    fn message(id: &str, role: Role, parts: Vec<Part>) -> Message {
        let info = serde_json::from_value(json!({
            "id": id, "sessionID": "s", "role": role, "time": { "created": 7 },
        }));
        Message { info: info.unwrap(), parts }
    }

    fn turn(messages: Vec<Message>) -> Turn<Counting> {
        Turn::new("s", "explore", messages, LIMITS, Counting(0))
    }

    fn call(id: &str) -> Call {
        Call { id: id.into(), name: "read".into(), arguments: json!({ "path": id }) }
    }

    fn end(finish: Finish) -> Event {
        Event::Piece(Piece::End(finish))
    }

    /// What was saved, as `id: parts -> finish or error`.
    fn saved(effects: &[Effect]) -> Vec<String> {
        let line = |message: &Message| {
            let parts = message.parts.iter().map(|part| match part {
                Part::Text { text, .. } => text.clone(),
                Part::Reasoning { text } => format!("({text})"),
                Part::Tool { call, state, .. } => {
                    let text = state.output.as_ref().or(state.error.as_ref());
                    format!(
                        "{call}={}{}",
                        state.status,
                        text.map(|t| format!(":{t}")).unwrap_or_default()
                    )
                }
                Part::Compaction { .. } => "compaction".into(),
                Part::Other => "other".into(),
            });
            let parts = parts.collect::<Vec<_>>().join(" ");
            let info = &message.info;
            let error =
                info.error.as_ref().map(|error| format!("!{} {}", error.name, error.message()));
            let summary = if is_summary(message) { " summary" } else { "" };
            let how = error.or(info.finish.clone()).unwrap_or_default();
            format!("{}: {parts} -> {how}{summary}", info.id)
        };
        let saves = effects.iter().filter_map(|effect| match effect {
            Effect::Save(message) => Some(line(message)),
            _ => None,
        });
        saves.collect()
    }

    fn rest(effects: &[Effect]) -> Vec<Effect> {
        effects.iter().filter(|effect| !matches!(effect, Effect::Save(_))).cloned().collect()
    }

    #[test]
    fn a_prompt_is_asked_and_its_answer_is_saved_whole() {
        let mut turn = turn(vec![prompt()]);
        assert_eq!(turn.on(Event::Begin), [Effect::AskModel(Purpose::Answer)]);
        assert_eq!(turn.on(Event::Piece(Piece::Thought("hm".into()))), []);
        assert_eq!(turn.on(Event::Piece(Piece::Text("fo".into()))), []);
        assert_eq!(turn.on(Event::Piece(Piece::Text("und".into()))), []);
        let effects = turn.on(end(Finish::Stop));
        assert_eq!(saved(&effects), ["m1: (hm) found -> stop"]);
        assert_eq!(rest(&effects), [Effect::Done]);
        assert_eq!(turn.on(Event::Begin), []);
    }

    #[test]
    fn parallel_calls_are_saved_run_together_and_asked_about_when_all_are_answered() {
        let mut turn = turn(vec![prompt()]);
        turn.on(Event::Begin);
        turn.on(Event::Piece(Piece::Call(call("a"))));
        turn.on(Event::Piece(Piece::Call(call("b"))));
        let effects = turn.on(end(Finish::ToolCalls));
        assert_eq!(saved(&effects), ["m1: a=pending b=pending -> tool-calls"]);
        assert_eq!(rest(&effects), [Effect::RunTools(vec![call("a"), call("b")])]);
        let effects = turn.on(Event::Started { call: "a".into() });
        assert_eq!(saved(&effects), ["m1: a=running b=pending -> tool-calls"]);
        let effects = turn.on(Event::ToolEnded { call: "b".into(), result: Ok("two".into()) });
        assert_eq!(saved(&effects), ["m1: a=running b=completed:two -> tool-calls"]);
        assert_eq!(rest(&effects), []);
        // Twice changes nothing.
        assert_eq!(turn.on(Event::ToolEnded { call: "b".into(), result: Ok("x".into()) }), []);
        let effects = turn.on(Event::ToolEnded { call: "a".into(), result: Err("no".into()) });
        assert_eq!(saved(&effects), ["m1: a=error:no b=completed:two -> tool-calls"]);
        assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    }

    fn cut_off() -> Message {
        let tool = |id: &str, status: &str| Part::Tool {
            call: id.into(),
            tool: "read".into(),
            state: ToolState {
                status: status.into(),
                input: json!({ "path": id }),
                output: (status == "completed").then(|| "text".into()),
                error: None,
            },
        };
        let parts = vec![tool("a", "completed"), tool("b", "running"), tool("c", "pending")];
        let mut message = message("m9", Role::Assistant, parts);
        message.info.finish = Some("tool-calls".into());
        message
    }

    #[test]
    fn after_a_crash_finished_calls_are_not_repeated_and_a_cut_one_is_answered_interrupted() {
        let mut turn = turn(vec![prompt(), cut_off()]);
        let effects = turn.on(Event::Begin);
        assert_eq!(
            saved(&effects),
            [format!("m9: a=completed:text b=error:{INTERRUPTED} c=pending -> tool-calls")]
        );
        assert_eq!(rest(&effects), [Effect::RunTools(vec![call("c")])]);
    }

    #[test]
    fn after_a_crash_an_answered_conversation_is_done_and_an_unanswered_one_is_asked() {
        let mut answer = message("m9", Role::Assistant, vec![say("found")]);
        answer.info.finish = Some("stop".into());
        assert_eq!(turn(vec![prompt(), answer]).on(Event::Begin), [Effect::Done]);
        assert_eq!(turn(vec![]).on(Event::Begin), [Effect::Done]);
        let asked = turn(vec![prompt()]).on(Event::Begin);
        assert_eq!(asked, [Effect::AskModel(Purpose::Answer)]);
    }

    #[test]
    fn a_failing_model_is_asked_again_and_then_believed() {
        let mut turn = turn(vec![prompt()]);
        turn.on(Event::Begin);
        turn.on(Event::Piece(Piece::Text("half".into())));
        let wait = |millis, why: &str| {
            [Effect::Wait { pause: Duration::from_millis(millis), why: why.into() }]
        };
        let cut = "the model's answer broke off before its end";
        assert_eq!(turn.on(Event::ModelFailed(model::Error::Truncated)), wait(500, cut));
        assert_eq!(turn.on(Event::Retry), [Effect::AskModel(Purpose::Answer)]);
        let pause = Some(Duration::from_millis(33));
        let busy = model::Error::Busy { message: "later".into(), retry_after: pause };
        let why = "model server is not able to answer now: later";
        assert_eq!(turn.on(Event::ModelFailed(busy)), wait(33, why));
        turn.on(Event::Retry);
        turn.on(Event::Piece(Piece::Text("half".into())));
        let effects = turn.on(Event::ModelFailed(model::Error::Truncated));
        assert_eq!(saved(&effects), [format!("m3: half -> !APIError {cut}")]);
        assert_eq!(rest(&effects), [Effect::Done]);
    }

    #[test]
    fn a_refusal_of_the_model_server_is_final_at_once() {
        let mut turn = turn(vec![prompt()]);
        turn.on(Event::Begin);
        let refused = model::Error::Refused { status: 400, message: "no such model".into() };
        let effects = turn.on(Event::ModelFailed(refused));
        let error = "model server refused (400): no such model";
        assert_eq!(saved(&effects), [format!("m1:  -> !APIError {error}")]);
    }

    #[test]
    fn a_refused_permission_ends_the_run_with_the_call_named() {
        let mut turn = turn(vec![prompt(), cut_off()]);
        turn.on(Event::Begin);
        let effects = turn.on(Event::Refused { call: "c".into(), why: "refused".into() });
        assert_eq!(saved(&effects).len(), 1);
        assert!(saved(&effects)[0].contains("c=error:refused"));
        assert_eq!(rest(&effects), [Effect::Done]);
        let outcome = crate::transcript::outcome(&turn.messages, "p1", None);
        let what = "read: refused".to_owned();
        assert_eq!(outcome, crate::transcript::Outcome::Refused { what, partial: None });
    }

    #[test]
    fn cancelling_answers_what_is_open_and_says_so() {
        let mut turn = turn(vec![prompt(), cut_off()]);
        turn.on(Event::Begin);
        let effects = turn.on(Event::Cancel);
        let lines = saved(&effects);
        assert!(lines[0].ends_with("c=error:aborted -> tool-calls"), "{lines:?}");
        assert_eq!(lines[1], "m1:  -> !MessageAbortedError aborted");
        assert_eq!(rest(&effects), [Effect::Done]);
        let outcome = crate::transcript::outcome(&turn.messages, "p1", None);
        assert_eq!(outcome, crate::transcript::Outcome::Aborted);
    }

    #[test]
    fn the_turn_limit_ends_a_run_that_goes_in_circles() {
        let mut turn = turn(vec![prompt()]);
        turn.on(Event::Begin);
        let mut last = Vec::new();
        for n in 0..3 {
            turn.on(Event::Piece(Piece::Call(call(&n.to_string()))));
            turn.on(end(Finish::ToolCalls));
            last = turn.on(Event::ToolEnded { call: n.to_string(), result: Ok("ok".into()) });
        }
        let error = "turn limit reached: 3 answers of the model";
        assert_eq!(saved(&last)[1], format!("m4:  -> !TurnLimitError {error}"));
        assert_eq!(rest(&last), [Effect::Done]);
    }

    #[test]
    fn a_long_conversation_is_summed_up_before_the_next_step() {
        let mut turn = turn(vec![prompt()]);
        turn.on(Event::Begin);
        turn.on(Event::Piece(Piece::Call(call("a"))));
        let used = Tokens { input: 900, output: 100, reasoning: 0 };
        turn.on(Event::Piece(Piece::Usage(used)));
        turn.on(end(Finish::ToolCalls));
        let effects = turn.on(Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
        assert!(saved(&effects)[1].starts_with("m2: compaction Sum up"), "{:?}", saved(&effects));
        assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Summary)]);
        turn.on(Event::Piece(Piece::Text("so far".into())));
        let effects = turn.on(end(Finish::Stop));
        assert_eq!(saved(&effects)[0], "m3: so far -> stop summary");
        assert!(saved(&effects)[1].starts_with("m4: Go on"));
        assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
        let seen: Vec<&str> = visible(&turn.messages).iter().map(|m| m.info.id.as_str()).collect();
        assert_eq!(seen, ["m3", "m4"]);
        turn.on(Event::Piece(Piece::Text("found".into())));
        assert_eq!(rest(&turn.on(end(Finish::Stop))), [Effect::Done]);
        let outcome = crate::transcript::outcome(&turn.messages, "p1", None);
        let text = "found".to_owned();
        assert_eq!(outcome, crate::transcript::Outcome::Answered { text });
    }
}
