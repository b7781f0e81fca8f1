//! The loop, event by event.

use serde_json::json;

use super::*;
use crate::transcript::{Outcome, Seal, SealKind, Tokens};

struct CountingMint(u32);

impl Mint for CountingMint {
    fn message_id(&mut self) -> String {
        self.0 += 1;
        format!("m{}", self.0)
    }

    fn now(&mut self) -> i64 {
        7
    }
}

const LIMITS: Limits = Limits {
    steps: 3,
    retries: 2,
    compact_at: 1_000,
    answer_bytes: 100,
    parallel_calls: 2,
    transcript_bytes: 10_000,
};

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

fn turn(messages: Vec<Message>) -> Turn<CountingMint> {
    Turn::new("s", "explore", messages, LIMITS, CountingMint(0))
}

fn call(id: &str) -> Call {
    Call { id: id.into(), name: "read".into(), arguments: json!({ "path": id }) }
}

fn end(finish: Finish) -> Event {
    Event::Piece(Piece::End(finish))
}

/// What was saved, as `id: parts -> finish or error`, or `id[part]: call` for one call of it.
fn saved(turn: &Turn<CountingMint>, effects: &[Effect]) -> Vec<String> {
    let saves = effects.iter().filter_map(|effect| match effect {
        Effect::Save(id) => Some(line(turn.message(id).unwrap())),
        Effect::SaveCall { message, part } => {
            let saved = turn.message(message).unwrap();
            Some(format!("{message}[{part}]: {}", show(&saved.parts[*part])))
        }
        _ => None,
    });
    saves.collect()
}

fn line(message: &Message) -> String {
    let parts = message.parts.iter().map(show).collect::<Vec<_>>().join(" ");
    let info = &message.info;
    let error = info.error.as_ref();
    let error = error.map(|error| format!("!{} {}", error.name.name(), error.message()));
    let summary = if message.is_summary() { " summary" } else { "" };
    let how = error.or(info.finish.clone().map(String::from)).unwrap_or_default();
    format!("{}: {parts} -> {how}{summary}", info.id)
}

fn show(part: &Part) -> String {
    match part {
        Part::Text { text, .. } => text.clone(),
        Part::Reasoning { text, .. } => format!("({text})"),
        Part::Tool { call, state, .. } => {
            let text = state.output.as_ref().or(state.error.as_ref());
            let text = text.map(|text| format!(":{text}")).unwrap_or_default();
            format!("{call}={}{text}", String::from(state.status.clone()))
        }
        Part::Compaction { .. } => "compaction".into(),
        Part::Other => "other".into(),
    }
}

fn rest(effects: &[Effect]) -> Vec<Effect> {
    let is_save = |effect: &&Effect| matches!(effect, Effect::Save(_) | Effect::SaveCall { .. });
    effects.iter().filter(|effect| !is_save(effect)).cloned().collect()
}

/// The effects of an event, and of hearing nothing where it wants to hear.
fn on(turn: &mut Turn<CountingMint>, event: Event) -> Vec<Effect> {
    let mut effects = turn.on(event);
    if effects.last() == Some(&Effect::Hear) {
        effects.pop();
        effects.extend(turn.on(Event::Heard(Vec::new())));
    }
    effects
}

fn outcome(turn: &Turn<CountingMint>) -> Outcome {
    crate::transcript::outcome(turn.messages(), "p1", None)
}

#[test]
fn a_prompt_is_asked_and_its_answer_is_saved_whole() {
    let mut turn = turn(vec![prompt()]);
    // The place of the answer is on disk before the model is asked.
    let begun = [Effect::Save("m1".into()), Effect::AskModel(Purpose::Answer)];
    assert_eq!(turn.on(Event::Begin), [Effect::Hear]);
    assert_eq!(turn.on(Event::Heard(vec![])), begun);
    assert_eq!(line(turn.message("m1").unwrap()), "m1:  -> ");
    assert_eq!(turn.asked(), [prompt()]);
    assert_eq!(on(&mut turn, Event::Piece(Piece::Thought("hm".into()))), []);
    assert_eq!(on(&mut turn, Event::Piece(Piece::Text("fo".into()))), []);
    assert_eq!(on(&mut turn, Event::Piece(Piece::Text("und".into()))), []);
    let effects = on(&mut turn, end(Finish::Stop));
    assert_eq!(saved(&turn, &effects), ["m1: (hm) found -> stop"]);
    assert_eq!(rest(&effects), [Effect::Done]);
    assert_eq!(on(&mut turn, Event::Begin), []);
}

#[test]
fn parallel_calls_are_saved_run_concurrently_and_sent_back_when_all_have_results() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Call(call("a"))));
    on(&mut turn, Event::Piece(Piece::Call(call("b"))));
    let effects = on(&mut turn, end(Finish::ToolCalls));
    assert_eq!(saved(&turn, &effects), ["m1: a=pending b=pending -> tool-calls"]);
    assert_eq!(rest(&effects), [Effect::RunTools(vec![call("a"), call("b")])]);
    let effects = on(&mut turn, Event::Started { call: "a".into() });
    assert_eq!(saved(&turn, &effects), ["m1[0]: a=running"]);
    let effects = on(&mut turn, Event::ToolEnded { call: "b".into(), result: Ok("two".into()) });
    assert_eq!(saved(&turn, &effects), ["m1[1]: b=completed:two"]);
    assert_eq!(rest(&effects), []);
    // Twice changes nothing.
    assert_eq!(on(&mut turn, Event::ToolEnded { call: "b".into(), result: Ok("x".into()) }), []);
    let effects = on(&mut turn, Event::ToolEnded { call: "a".into(), result: Err("no".into()) });
    assert_eq!(saved(&turn, &effects), ["m1[0]: a=error:no", "m2:  -> "]);
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
}

fn cut_off() -> Message {
    let tool = |id: &str, status: &str| Part::Tool {
        call: id.into(),
        tool: "read".into(),
        state: ToolState {
            status: CallStatus::from(status.to_owned()),
            output: (status == "completed").then(|| "text".into()),
            ..ToolState::pending(json!({ "path": id }))
        },
    };
    let parts = vec![tool("a", "completed"), tool("b", "running"), tool("c", "pending")];
    let mut message = message("m9", Role::Assistant, parts);
    message.info.finish = Some(Finish::ToolCalls);
    message
}

#[test]
fn after_a_crash_finished_calls_are_not_repeated_and_a_cut_one_is_answered_interrupted() {
    let mut turn = turn(vec![prompt(), cut_off()]);
    let effects = on(&mut turn, Event::Begin);
    assert_eq!(saved(&turn, &effects), [format!("m9[1]: b=error:{INTERRUPTED}")]);
    assert_eq!(rest(&effects), [Effect::RunTools(vec![call("c")])]);
}

#[test]
fn after_a_crash_an_answered_conversation_is_done_and_an_unanswered_one_is_asked() {
    let mut answer = message("m9", Role::Assistant, vec![say("found")]);
    answer.info.finish = Some(Finish::Stop);
    assert_eq!(turn(vec![prompt(), answer]).on(Event::Begin), [Effect::Done]);
    assert_eq!(turn(vec![]).on(Event::Begin), [Effect::Done]);
    let mut unanswered = turn(vec![prompt()]);
    let begun = [Effect::Save("m1".into()), Effect::AskModel(Purpose::Answer)];
    assert_eq!(on(&mut unanswered, Event::Begin), begun);
    // One that was asked for and never came is asked for again in its place.
    let mut again = turn(vec![prompt(), message("m9", Role::Assistant, vec![])]);
    let begun = [Effect::Save("m9".into()), Effect::AskModel(Purpose::Answer)];
    assert_eq!(on(&mut again, Event::Begin), begun);
}

#[test]
fn a_failing_model_is_retried_with_a_pause_until_the_retries_are_used_up() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Text("half".into())));
    let wait = |millis, why: &str| {
        [Effect::Wait { pause: Duration::from_millis(millis), why: why.into() }]
    };
    let cut = "the model's answer broke off before its end";
    assert_eq!(on(&mut turn, Event::ModelFailed(model::Error::Truncated)), wait(500, cut));
    // Nothing is asked while nothing can be saved.
    let again = [Effect::Save("m1".into()), Effect::AskModel(Purpose::Answer)];
    assert_eq!(on(&mut turn, Event::Retry), again);
    assert_eq!(line(turn.message("m1").unwrap()), "m1:  -> ");
    let pause = Some(Duration::from_millis(33));
    let busy = model::Error::Busy { message: "later".into(), retry_after: pause };
    let why = "model server cannot answer now: later";
    assert_eq!(on(&mut turn, Event::ModelFailed(busy)), wait(33, why));
    on(&mut turn, Event::Retry);
    on(&mut turn, Event::Piece(Piece::Text("half".into())));
    let effects = on(&mut turn, Event::ModelFailed(model::Error::Truncated));
    assert_eq!(saved(&turn, &effects), [format!("m1: half -> !APIError {cut}")]);
    assert_eq!(rest(&effects), [Effect::Done]);
}

#[test]
fn a_refusal_of_the_model_server_is_final_at_once() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    let refused = model::Error::Refused { status: 400, message: "no such model".into() };
    let effects = on(&mut turn, Event::ModelFailed(refused));
    let error = "model server refused (400): no such model";
    assert_eq!(saved(&turn, &effects), [format!("m1:  -> !APIError {error}")]);
}

#[test]
fn refusing_one_of_several_calls_settles_all_of_them_and_ends_the_run_as_refused() {
    let mut turn = turn(vec![prompt(), cut_off()]);
    turn.limits.parallel_calls = 8;
    let answer = &mut turn.messages[1];
    let (running, waiting) = (call("d"), call("e"));
    for (made, status) in [(running, CallStatus::Pending), (waiting, CallStatus::Pending)] {
        let state = ToolState { status, ..ToolState::pending(made.arguments) };
        answer.parts.push(Part::Tool { call: made.id, tool: made.name, state });
    }
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Started { call: "d".into() });
    let effects = on(&mut turn, Event::Refused { call: "c".into(), what: "read /x".into() });
    let line = format!(
        "m9: a=completed:text b=error:{INTERRUPTED} c=error:refused: read /x \
         d=error:{CUT_BY_REFUSAL} e=error:{NOT_RUN} -> !PermissionRefusedError read /x"
    );
    assert_eq!(saved(&turn, &effects), [line]);
    assert_eq!(rest(&effects), [Effect::Done]);
    let refused = Outcome::Refused { what: "read /x".into(), partial: None };
    assert_eq!(outcome(&turn), refused);
    // News of the others comes too late.
    assert_eq!(on(&mut turn, Event::ToolEnded { call: "d".into(), result: Ok("x".into()) }), []);
    // Killed right after that write, the run is over all the same.
    let mut next = Turn::new("s", "explore", turn.messages, LIMITS, CountingMint(0));
    assert_eq!(on(&mut next, Event::Begin), [Effect::Done]);
    assert_eq!(outcome(&next), refused);
}

#[test]
fn a_refusal_of_a_call_that_has_its_answer_changes_nothing() {
    let mut turn = turn(vec![prompt(), cut_off()]);
    on(&mut turn, Event::Begin);
    let before = turn.messages().to_vec();
    assert_eq!(on(&mut turn, Event::Refused { call: "a".into(), what: "read /x".into() }), []);
    assert_eq!(turn.messages(), before);
}

#[test]
fn a_message_sent_in_mid_run_is_seen_before_the_next_step() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Call(call("a"))));
    on(&mut turn, end(Finish::ToolCalls));
    let effects = turn.on(Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
    assert_eq!(rest(&effects), [Effect::Hear]);
    let said = message("p2", Role::User, vec![say("and the logout")]);
    let effects = turn.on(Event::Heard(vec![said.clone(), said]));
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    let asked: Vec<String> = turn.asked().iter().map(line).collect();
    assert_eq!(asked[1..], ["m1: a=completed:ok -> tool-calls", "p2: and the logout -> "]);
}

#[test]
fn several_messages_sent_in_mid_run_are_answered_together_and_in_their_order() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Call(call("a"))));
    on(&mut turn, end(Finish::ToolCalls));
    turn.on(Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
    let said = |id: &str| message(id, Role::User, vec![say(id)]);
    turn.on(Event::Heard(vec![said("p2"), said("p3")]));
    let asked: Vec<&str> = turn.asked().iter().map(|asked| asked.info.id.as_str()).collect();
    assert_eq!(asked, ["p1", "m1", "p2", "p3"]);
    on(&mut turn, Event::Piece(Piece::Text("both".into())));
    assert_eq!(rest(&on(&mut turn, end(Finish::Stop))), [Effect::Done]);
    // The answer is one to each of them.
    for id in ["p1", "p2", "p3"] {
        let outcome = crate::transcript::outcome(turn.messages(), id, None);
        assert_eq!(outcome, Outcome::Answered { text: "both".into() });
    }
}

#[test]
fn after_a_crash_messages_sent_in_mid_run_are_answered_after_the_step_under_way() {
    // While tools ran: they are settled first.
    let said = || message("p2", Role::User, vec![say("and the logout")]);
    let mut tools = turn(vec![prompt(), cut_off(), said()]);
    let effects = on(&mut tools, Event::Begin);
    assert_eq!(rest(&effects), [Effect::RunTools(vec![call("c")])]);
    let effects = on(&mut tools, Event::ToolEnded { call: "c".into(), result: Ok("x".into()) });
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    // While an answer was written, which is whole: it is followed by another one.
    let mut answer = message("m9", Role::Assistant, vec![say("found")]);
    answer.info.finish = Some(Finish::Stop);
    let mut answered = turn(vec![prompt(), answer, said()]);
    let effects = on(&mut answered, Event::Begin);
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    // While an answer was written, which never came: the next one comes after what was said.
    let mut begun = turn(vec![prompt(), message("m9", Role::Assistant, vec![]), said()]);
    let effects = on(&mut begun, Event::Begin);
    let given_up = "m9:  -> !InterruptedError interrupted by a restart".to_owned();
    assert_eq!(saved(&begun, &effects), [given_up, "m1:  -> ".to_owned()]);
    assert_eq!(begun.asked().len(), 3);
}

#[test]
fn an_answer_beyond_the_size_limit_ends_the_run_and_its_beginning_is_kept() {
    let piece = |text: &str| Event::Piece(Piece::Text(text.into()));
    let mut whole = turn(vec![prompt()]);
    on(&mut whole, Event::Begin);
    assert_eq!(on(&mut whole, Event::Piece(Piece::Thought("x".repeat(50)))), []);
    assert_eq!(on(&mut whole, piece(&"y".repeat(50))), []);
    assert_eq!(rest(&on(&mut whole, end(Finish::Stop))), [Effect::Done]);
    let long = "the model's answer is longer than 100 bytes (`agent.answer_bytes`); what came \
                before is kept";
    let mut beyond = turn(vec![prompt()]);
    on(&mut beyond, Event::Begin);
    on(&mut beyond, piece(&"y".repeat(99)));
    let effects = on(&mut beyond, piece("ü"));
    let kept = format!("m1: {} -> !AnswerCutOffError {long}", "y".repeat(99));
    assert_eq!(saved(&beyond, &effects), [kept]);
    assert_eq!(rest(&effects), [Effect::Done]);
    let mut arguments = turn(vec![prompt()]);
    on(&mut arguments, Event::Begin);
    let made = Call { arguments: json!({ "text": "z".repeat(100) }), ..call("a") };
    let effects = on(&mut arguments, Event::Piece(Piece::Call(made)));
    assert_eq!(saved(&arguments, &effects), [format!("m1:  -> !AnswerCutOffError {long}")]);
}

#[test]
fn the_model_is_not_asked_again_in_a_conversation_beyond_its_size_limit() {
    let mut turn = turn(vec![message("p1", Role::User, vec![say(&"x".repeat(10_001))])]);
    let effects = on(&mut turn, Event::Begin);
    let error = "the conversation is longer than 10000 bytes (`agent.transcript_bytes`); go on in a \
                 new task";
    assert_eq!(saved(&turn, &effects), [format!("m1:  -> !AnswerCutOffError {error}")]);
}

#[test]
fn only_a_limited_number_of_calls_of_one_answer_run_at_the_same_time() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    for id in ["a", "b", "c", "d"] {
        on(&mut turn, Event::Piece(Piece::Call(call(id))));
    }
    let effects = on(&mut turn, end(Finish::ToolCalls));
    assert_eq!(rest(&effects), [Effect::RunTools(vec![call("a"), call("b")])]);
    on(&mut turn, Event::Started { call: "a".into() });
    let ended = |id: &str| Event::ToolEnded { call: id.into(), result: Ok("ok".into()) };
    assert_eq!(rest(&on(&mut turn, ended("b"))), [Effect::RunTools(vec![call("c")])]);
    assert_eq!(rest(&on(&mut turn, ended("a"))), [Effect::RunTools(vec![call("d")])]);
    assert_eq!(rest(&on(&mut turn, ended("c"))), []);
    assert_eq!(rest(&on(&mut turn, ended("d"))), [Effect::AskModel(Purpose::Answer)]);
}

/// What becomes of an answer with these pieces that ends like this.
fn check_end(pieces: Vec<Piece>, finish: Finish, effects: &[Effect], expected: Outcome) {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    for piece in pieces {
        on(&mut turn, Event::Piece(piece));
    }
    assert_eq!(rest(&on(&mut turn, end(finish))), effects);
    assert_eq!(outcome(&turn), expected);
}

#[test]
fn cut_off_and_filtered_answers_are_marked_as_such_or_fail_the_run() {
    let text = || vec![Piece::Text("half".into())];
    let with = |made: Call| vec![Piece::Text("half".into()), Piece::Call(made)];
    let cut = || Call { arguments: json!("{\"path\": \"a"), ..call("a") };
    let failed = |error: &str, partial: Option<&str>| Outcome::Failed {
        error: error.into(),
        partial: partial.map(Into::into),
    };
    let half = "half\n\n[cut off: the model reached its output limit]".into();
    check_end(text(), Finish::Length, &[Effect::Done], Outcome::Answered { text: half });
    let nothing = failed("the answer was cut off (`length`) before its first word", None);
    check_end(vec![], Finish::Length, &[Effect::Done], nothing);
    let inside = failed("the answer was cut off (`length`) inside a tool call", Some("half"));
    check_end(with(cut()), Finish::Length, &[Effect::Done], inside);
    // All its calls are whole, so they are made.
    let goes_on = Outcome::Unfinished { partial: Some("half".into()) };
    let run = [Effect::RunTools(vec![call("a")])];
    check_end(with(call("a")), Finish::Length, &run, goes_on);
    let filtered = "the answer was stopped by the provider's content filter";
    check_end(vec![], Finish::ContentFilter, &[Effect::Done], failed(filtered, None));
    check_end(text(), Finish::ContentFilter, &[Effect::Done], failed(filtered, Some("half")));
    let called = failed(filtered, Some("half"));
    check_end(with(call("a")), Finish::ContentFilter, &[Effect::Done], called);
}

#[test]
fn cancelling_closes_open_calls_with_a_result_that_says_so() {
    let mut turn = turn(vec![prompt(), cut_off()]);
    on(&mut turn, Event::Begin);
    let effects = on(&mut turn, Event::Cancel);
    let lines = saved(&turn, &effects);
    assert!(lines[0].ends_with("c=error:aborted -> tool-calls"), "{lines:?}");
    assert_eq!(lines[1], "m1:  -> !MessageAbortedError aborted");
    assert_eq!(rest(&effects), [Effect::Done]);
    assert_eq!(outcome(&turn), Outcome::Aborted);
}

#[test]
fn the_turn_limit_ends_a_run_that_goes_in_circles() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    let mut last = Vec::new();
    for n in 0..3 {
        on(&mut turn, Event::Piece(Piece::Call(call(&n.to_string()))));
        on(&mut turn, end(Finish::ToolCalls));
        last = on(&mut turn, Event::ToolEnded { call: n.to_string(), result: Ok("ok".into()) });
    }
    let error = "turn limit reached: 3 answers of the model";
    assert_eq!(saved(&turn, &last)[1], format!("m4:  -> !TurnLimitError {error}"));
    assert_eq!(rest(&last), [Effect::Done]);
}

#[test]
fn signatures_of_a_provider_stay_with_their_thought_or_call() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    let seal =
        |data: &str| Seal { by: "a/b".into(), kind: SealKind::Signature, data: data.to_owned() };
    for piece in [
        Piece::Thought("h".into()),
        Piece::Thought("m".into()),
        Piece::Seal(seal("one")),
        Piece::Thought("so".into()),
        Piece::Seal(seal("two")),
        Piece::Seal(seal("three")),
        Piece::Call(call("a")),
    ] {
        on(&mut turn, Event::Piece(piece));
    }
    let parts = &turn.messages().last().unwrap().parts;
    let thought =
        |text: &str, data: &str| Part::Reasoning { text: text.into(), seal: Some(seal(data)) };
    assert_eq!(parts[..3], [thought("hm", "one"), thought("so", "two"), thought("", "three")]);
    assert_eq!(parts.len(), 4);
    // A bound holds for them, too.
    let long = Event::Piece(Piece::Seal(seal(&"x".repeat(LIMITS.answer_bytes))));
    assert_eq!(rest(&on(&mut turn, long)), [Effect::Done]);
}

#[test]
fn a_reported_cost_counts_unless_the_model_has_a_price() {
    let check = |price: Option<Price>, expected: f64| {
        let mut turn = turn(vec![prompt()]);
        turn.price = price;
        on(&mut turn, Event::Begin);
        on(&mut turn, Event::Piece(Piece::Text("so".into())));
        let used = Tokens { input: 1_000_000, ..Tokens::default() };
        on(&mut turn, Event::Piece(Piece::Usage(used)));
        on(&mut turn, Event::Piece(Piece::Cost(0.25)));
        on(&mut turn, end(Finish::Stop));
        assert_eq!(turn.messages()[1].info.cost, Some(expected));
    };
    check(None, 0.25);
    check(Some(Price::flat(2.0, 10.0)), 2.0);
}

#[test]
fn a_long_conversation_is_summed_up_before_the_next_step() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Call(call("a"))));
    let used = Tokens { input: 900, output: 100, ..Tokens::default() };
    on(&mut turn, Event::Piece(Piece::Usage(used)));
    on(&mut turn, end(Finish::ToolCalls));
    let effects = on(&mut turn, Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
    let lines = saved(&turn, &effects);
    assert!(lines[1].starts_with("m2: compaction Sum up"), "{lines:?}");
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Summary)]);
    on(&mut turn, Event::Piece(Piece::Text("so far".into())));
    let effects = on(&mut turn, end(Finish::Stop));
    assert_eq!(saved(&turn, &effects)[0], "m3: so far -> stop summary");
    assert!(saved(&turn, &effects)[1].starts_with("m4: Go on"));
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    let seen: Vec<&str> = visible(turn.messages()).iter().map(|m| m.info.id.as_str()).collect();
    assert_eq!(seen, ["m3", "m4", "m5"]);
    on(&mut turn, Event::Piece(Piece::Text("found".into())));
    assert_eq!(rest(&on(&mut turn, end(Finish::Stop))), [Effect::Done]);
    assert_eq!(outcome(&turn), Outcome::Answered { text: "found".into() });
}

#[test]
fn a_message_that_an_answer_was_begun_without_is_answered_after_it() {
    let said = message("p2", Role::User, vec![say("and the logout")]);
    let mut answer = message("m9", Role::Assistant, vec![say("found")]);
    answer.info.finish = Some(Finish::Stop);
    answer.info.parent = Some("p1".into());
    // On disk it came before the place of the answer.
    let mut missed = turn(vec![prompt(), said.clone(), answer.clone()]);
    assert_eq!(rest(&on(&mut missed, Event::Begin)), [Effect::AskModel(Purpose::Answer)]);
    let ids: Vec<&str> = missed.asked().iter().map(|m| m.info.id.as_str()).collect();
    assert_eq!(ids, ["p1", "m9", "p2"]);
    // An answer that knew of it is the last word.
    answer.info.parent = Some("p2".into());
    assert_eq!(on(&mut turn(vec![prompt(), said, answer]), Event::Begin), [Effect::Done]);
}

#[test]
fn after_a_summary_new_messages_are_read_before_the_next_answer() {
    let mut turn = turn(vec![prompt()]);
    on(&mut turn, Event::Begin);
    on(&mut turn, Event::Piece(Piece::Call(call("a"))));
    let used = Tokens { input: 900, output: 100, ..Tokens::default() };
    on(&mut turn, Event::Piece(Piece::Usage(used)));
    on(&mut turn, end(Finish::ToolCalls));
    on(&mut turn, Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
    on(&mut turn, Event::Piece(Piece::Text("so far".into())));
    assert_eq!(rest(&turn.on(end(Finish::Stop))), [Effect::Hear]);
}

#[test]
fn an_empty_summary_ends_the_run_and_hides_no_messages() {
    for finish in [Finish::Stop, Finish::Length, Finish::ContentFilter] {
        let mut turn = turn(vec![prompt()]);
        on(&mut turn, Event::Begin);
        on(&mut turn, Event::Piece(Piece::Call(call("a"))));
        let used = Tokens { input: 900, output: 100, ..Tokens::default() };
        on(&mut turn, Event::Piece(Piece::Usage(used)));
        on(&mut turn, end(Finish::ToolCalls));
        on(&mut turn, Event::ToolEnded { call: "a".into(), result: Ok("ok".into()) });
        on(&mut turn, Event::Piece(Piece::Thought("hm".into())));
        assert_eq!(rest(&on(&mut turn, end(finish))), [Effect::Done]);
        let error = "the model returned an empty summary of the conversation".to_owned();
        assert_eq!(outcome(&turn), Outcome::Failed { error, partial: None });
        assert_eq!(visible(turn.messages())[0].info.id, "p1");
    }
}

#[test]
fn a_copy_of_a_session_does_not_make_the_calls_of_the_original() {
    let mut original = cut_off();
    original.info.session = "another".into();
    let mut copy = turn(vec![prompt(), original, message("p2", Role::User, vec![say("go")])]);
    let effects = on(&mut copy, Event::Begin);
    assert_eq!(rest(&effects), [Effect::AskModel(Purpose::Answer)]);
    let settled =
        format!("m9: a=completed:text b=error:{NOT_OURS} c=error:{NOT_OURS} -> tool-calls");
    assert_eq!(saved(&copy, &effects)[0], settled);
}

#[test]
fn a_run_ended_from_outside_keeps_an_answer_it_has() {
    let mut answer = message("m9", Role::Assistant, vec![say("found")]);
    answer.info.finish = Some(Finish::Stop);
    assert_eq!(turn(vec![prompt(), answer.clone()]).interrupt("gone"), []);
    assert_eq!(turn(vec![prompt(), answer]).abort(), []);
    let mut cut = turn(vec![prompt(), cut_off()]);
    let effects = cut.abort();
    assert_eq!(saved(&cut, &effects)[1], "m1:  -> !MessageAbortedError aborted");
    assert_eq!(outcome(&cut), Outcome::Aborted);
    let mut begun = turn(vec![prompt(), message("m9", Role::Assistant, vec![])]);
    let effects = begun.interrupt("gone");
    assert_eq!(saved(&begun, &effects), ["m9:  -> !InterruptedError gone"]);
}
