//! OpenAI-compatible model servers: the requests they get, and how their responses are read.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use asyncagents::agent::model::provider::{Key, Provider};
use asyncagents::agent::model::remote::Remote;
use asyncagents::agent::model::{Call, Error, Finish, Piece, Request};
use asyncagents::agent::tools::Spec;
use asyncagents::transcript::{Message, Tokens};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::support::{ModelServer, RecordedRequest};

pub const KEY: &str = "sk-only-for-tests";
/// A time-out that is not reached unless a test is about it.
pub const LONG: Duration = Duration::from_secs(30);
/// Longer than a busy machine pauses.
pub const SHORT: Duration = Duration::from_millis(500);

pub fn message(value: Value) -> Message {
    serde_json::from_value(value).unwrap()
}

pub fn user(text: &str) -> Message {
    let info = json!({"id": "m", "role": "user", "time": {"created": 1}});
    message(json!({"info": info, "parts": [{"type": "text", "text": text}]}))
}

pub fn assistant(parts: Value) -> Message {
    let info = json!({"id": "m", "role": "assistant", "time": {"created": 1}});
    message(json!({"info": info, "parts": parts}))
}

pub fn request(messages: Vec<Message>) -> Request {
    let (model, system) = ("scripted".to_owned(), "You are a test.".to_owned());
    Request { model, system, messages, tools: Vec::new() }
}

fn remote(base_url: &str, silence: Duration) -> Remote {
    remote_of("openai", base_url, silence)
}

/// A known provider at this address.
pub fn remote_of(name: &str, base_url: &str, silence: Duration) -> Remote {
    let provider = provider(name, Some(KEY), Some(base_url));
    Remote::new(&provider, silence).ok().unwrap()
}

fn provider(name: &str, key: Option<&str>, base_url: Option<&str>) -> Provider {
    let key = key.map_or(Key::None, |key| Key::Text(key.to_owned()));
    Provider { key, base_url: base_url.map(str::to_owned), ..Provider::named(name) }
}

/// Returns the pieces and the end of the answer.
pub async fn ask(remote: &Remote, request: Request) -> (Vec<Piece>, Result<(), Error>) {
    let (sink, mut pieces) = mpsc::channel(1);
    let answer = async {
        let end = remote.answer(request, sink).await;
        if let Err(error) = &end {
            assert!(!format!("{error} {error:?}").contains(KEY), "the key is in `{error}`");
        }
        end
    };
    let collect = async {
        let mut all = Vec::new();
        while let Some(piece) = pieces.recv().await {
            all.push(piece);
        }
        all
    };
    let (end, all) = tokio::join!(answer, collect);
    (all, end)
}

async fn check(prompt: &str, pieces: Vec<Piece>, end: Result<(), Error>) {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), LONG);
    assert_eq!(ask(&remote, request(vec![user(prompt)])).await, (pieces, end));
}

pub fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

pub fn thought(text: &str) -> Piece {
    Piece::Thought(text.to_owned())
}

pub fn call(id: &str, name: &str, arguments: Value) -> Piece {
    Piece::Call(Call { id: id.to_owned(), name: name.to_owned(), arguments })
}

pub fn busy(message: &str, retry_after: Option<Duration>) -> Error {
    Error::Busy { message: message.to_owned(), retry_after }
}

pub fn refused(status: u16, message: &str) -> Error {
    Error::Refused { status, message: message.to_owned() }
}

#[tokio::test]
async fn an_answer_is_streamed() {
    let pieces = vec![text("two "), text("wörds"), Piece::End(Finish::Stop)];
    check("@say two wörds", pieces, Ok(())).await;
}

#[tokio::test]
async fn reasoning_is_separate_from_the_answer_and_counted_separately() {
    let tokens = Tokens { input: 100, output: 15, reasoning: 5, ..Tokens::default() };
    let pieces = vec![
        thought("let "),
        thought("me"),
        text("so"),
        Piece::Usage(tokens),
        Piece::End(Finish::Stop),
    ];
    check("@think let me | say so | usage 100 20 5", pieces, Ok(())).await;
}

#[tokio::test]
async fn several_tool_calls_in_one_answer_arrive_complete() {
    let pieces = vec![
        text("looking"),
        call("call_2_0", "read", json!({"path": "src/auth.rs", "from": 1})),
        call("call_2_1", "todo", json!({})),
        call("call_2_2", "grep", json!({"for": "wörd"})),
        Piece::End(Finish::ToolCalls),
    ];
    let prompt = r#"@say looking | call read {"path": "src/auth.rs", "from": 1} | call todo | call grep {"for": "wörd"}"#;
    check(prompt, pieces, Ok(())).await;
}

#[tokio::test]
async fn an_answer_with_tool_calls_finishes_as_such_whatever_finish_reason_a_server_gives() {
    let pieces =
        vec![call("call_2_0", "read", json!({"path": "a"})), Piece::End(Finish::ToolCalls)];
    check(r#"@call read {"path": "a"} | finish stop"#, pieces, Ok(())).await;
}

#[tokio::test]
async fn arguments_that_are_not_json_stay_text() {
    let pieces = vec![call("call_2_0", "read", json!("{path")), Piece::End(Finish::ToolCalls)];
    check("@call read {path", pieces, Ok(())).await;
}

#[tokio::test]
async fn the_arguments_of_a_call_cut_off_by_the_output_limit_stay_text() {
    let pieces = vec![
        call("call_2_0", "read", json!({"path": "a"})),
        call("call_2_1", "write", json!(r#"{"path": "b", "te"#)),
        Piece::End(Finish::Length),
    ];
    let prompt = r#"@call read {"path": "a"} | call write {"path": "b", "te | finish length"#;
    check(prompt, pieces, Ok(())).await;
}

#[tokio::test]
async fn other_finish_reasons_are_kept_as_the_server_names_them() {
    let pieces = vec![Piece::End(Finish::ContentFilter)];
    check("@finish content_filter", pieces, Ok(())).await;
    let pieces = vec![Piece::End(Finish::Other("tired".to_owned()))];
    check("@finish tired", pieces, Ok(())).await;
}

#[tokio::test]
async fn announced_tool_calls_that_are_missing_are_an_error() {
    let told = "the model server announced tool calls and sent none that can be read";
    check("@finish tool_calls", vec![], Err(Error::Unusable(told.to_owned()))).await;
}

#[tokio::test]
async fn an_answer_without_a_finish_reason_is_truncated() {
    for ending in ["cut", "end", "done", r#"call read {"path": "a"} | done"#] {
        let prompt = format!("@say half | {ending}");
        check(&prompt, vec![text("half")], Err(Error::Truncated)).await;
    }
    check("@cut", vec![], Err(Error::Truncated)).await;
}

#[tokio::test]
async fn refusals_come_with_the_servers_message() {
    check("@status 400 | say no such model", vec![], Err(refused(400, "no such model"))).await;
    let told = "wrong key: Bearer ***";
    check("@status 401 | say wrong key: {authorization}", vec![], Err(refused(401, told))).await;
}

#[tokio::test]
async fn the_retry_delay_of_a_busy_server_is_kept() {
    let told = |retry_after| Err(busy("slow down", retry_after));
    let soon = Some(Duration::from_millis(120));
    check("@status 429 retry-after-ms=120 | say slow down", vec![], told(soon)).await;
    let later = Some(Duration::from_secs(7));
    check("@status 503 retry-after=7 | say slow down", vec![], told(later)).await;
    check("@status 500 | say slow down", vec![], told(None)).await;
    check("@status 408 | say slow down", vec![], told(None)).await;
    check("@status 409 | say slow down", vec![], told(None)).await;
}

#[tokio::test]
async fn a_server_that_fails_once_answers_the_next_time() {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), LONG);
    let prompt = || request(vec![user("@once 500 | say fine")]);
    assert_eq!(ask(&remote, prompt()).await, (vec![], Err(busy("fine", None))));
    let pieces = vec![text("fine"), Piece::End(Finish::Stop)];
    assert_eq!(ask(&remote, prompt()).await, (pieces, Ok(())));
}

#[tokio::test]
async fn errors_and_garbage_within_a_stream_end_it() {
    let half = || vec![text("half")];
    check("@say half | garbage", half(), Err(busy("its answer is not readable", None))).await;
    let overloaded = r#"@say half | error {"message": "overloaded", "type": "server_error"}"#;
    check(overloaded, half(), Err(busy("overloaded", None))).await;
    let too_long = r#"@say half | error {"message": "too long", "code": 400}"#;
    check(too_long, half(), Err(refused(400, "too long"))).await;
}

#[tokio::test]
async fn a_server_that_falls_silent_times_out() {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), SHORT);
    let asked = ask(&remote, request(vec![user("@say half | hang")])).await;
    assert_eq!(asked, (vec![text("half")], Err(Error::Silent(SHORT))));
    server.until_answering(0).await;
}

#[tokio::test]
async fn a_server_that_never_responds_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let asked = ask(&remote(&url, SHORT), request(vec![user("anybody?")])).await;
    assert_eq!(asked, (vec![], Err(Error::Silent(SHORT))));
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://user:{KEY}@{address}/v1?key={KEY}");
    let asked = ask(&remote(&url, LONG), request(vec![user("anybody?")])).await;
    let cause = std::net::TcpStream::connect(address).unwrap_err();
    let told = format!("`http://{address}/v1`: {cause}");
    assert_eq!(asked, (vec![], Err(Error::Unreachable(told))));
}

#[tokio::test]
async fn tls_is_spoken_where_the_address_asks_for_it() {
    let server = ModelServer::start().await;
    let url = server.base_url().replace("http:", "https:");
    let (pieces, end) = ask(&remote(&url, LONG), request(vec![user("@say plain")])).await;
    assert_eq!(pieces, []);
    let told = format!("`{url}`: received corrupt message of type InvalidContentType");
    assert_eq!(end, Err(Error::Unreachable(told)));
    assert_eq!(server.asked(), []);
}

#[tokio::test]
async fn a_dropped_receiver_closes_the_connection() {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), LONG);
    let (sink, mut pieces) = mpsc::channel(1);
    let prompt = request(vec![user("@say half | hang")]);
    let answering = tokio::spawn(async move { remote.answer(prompt, sink).await });
    assert_eq!(pieces.recv().await, Some(text("half")));
    server.until_answering(1).await;
    drop(pieces);
    assert_eq!(answering.await.unwrap(), Ok(()));
    server.until_answering(0).await;
}

#[tokio::test]
async fn a_missing_key_is_reported_with_the_way_out() {
    for (name, key, url) in [
        ("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("openai-responses", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
        ("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
        ("gemini", "GEMINI_API_KEY", "GEMINI_BASE_URL"),
        ("openrouter", "OPENROUTER_API_KEY", "OPENROUTER_BASE_URL"),
    ] {
        let way_out = format!(
            "run `asyncagents auth set {name}`, or set `{key}` where you launch, or `{url}` to a server \
             that needs none"
        );
        let told = Error::NoKey { provider: name.to_owned(), way_out };
        let no_key = provider(name, Some(" "), None);
        assert_eq!(Remote::new(&no_key, LONG).err(), Some(told));
    }
}

#[tokio::test]
async fn a_malformed_key_or_address_is_not_quoted_in_the_error() {
    let key = provider("openai", Some("sk-\nsecret"), None);
    let told = "`OPENAI_API_KEY` cannot be sent as it is; set it to the key alone";
    assert_eq!(Remote::new(&key, LONG).err(), Some(Error::Unusable(told.to_owned())));
    let told = "`OPENAI_BASE_URL` is not a URL; set it to one like `http://127.0.0.1:11434/v1`";
    for wrong in ["127.0.0.1:1234", "ftp://user:secret@host/", "http://"] {
        let url = provider("openai", None, Some(wrong));
        assert_eq!(Remote::new(&url, LONG).err(), Some(Error::Unusable(told.to_owned())));
    }
}

#[tokio::test]
async fn logs_do_not_contain_the_key() {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), LONG);
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (_, end) = ask(&remote, request(vec![user("@status 401 | say {authorization}")])).await;
    assert_eq!(end, Err(refused(401, "Bearer ***")));
    tracing::info!("the end");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("the end") && !log.contains(KEY), "{log}");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_self_hosted_server_needs_no_key() {
    let server = ModelServer::start().await;
    let url = server.base_url() + "/";
    let remote = Remote::new(&provider("openai", None, Some(&url)), LONG).ok().unwrap();
    let (_, end) = ask(&remote, request(vec![user("@say fine")])).await;
    assert_eq!(end, Ok(()));
    assert_eq!(server.asked()[0].authorization, Some("Bearer none".to_owned()));
}

#[tokio::test]
async fn an_unknown_model_name_is_sent_unchanged() {
    let server = ModelServer::start().await;
    let remote = remote(&server.base_url(), LONG);
    let body = json!({
        "model": "gpt-6-max",
        "stream": true,
        "messages": [{"role": "user", "content": "@say fine"}],
        "stream_options": {"include_usage": true},
    });
    let request = Request {
        model: "gpt-6-max".to_owned(),
        system: String::new(),
        ..request(vec![user("@say fine")])
    };
    assert_eq!(ask(&remote, request).await.1, Ok(()));
    let path = "/v1/chat/completions".to_owned();
    let authorization = Some(format!("Bearer {KEY}"));
    let (query, session, parent_session) = (String::new(), None, None);
    let asked = server.asked();
    let at = asked[0].at;
    let expected =
        RecordedRequest { at, path, query, authorization, session, parent_session, body };
    assert_eq!(asked, [expected]);
}

/// The messages of the request, without the system prompt.
async fn sent(messages: Vec<Message>) -> Value {
    let server = ModelServer::start().await;
    let (_, end) = ask(&remote(&server.base_url(), LONG), request(messages)).await;
    assert_eq!(end, Ok(()));
    let mut messages = server.asked()[0].body["messages"].take();
    let system = messages.as_array_mut().unwrap().remove(0);
    assert_eq!(system, json!({"role": "system", "content": "You are a test."}));
    messages
}

pub fn tool(id: &str, tool: &str, state: Value) -> Value {
    json!({"type": "tool", "callID": id, "tool": tool, "state": state})
}

fn sent_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn sent_result(id: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": content})
}

#[tokio::test]
async fn a_transcript_is_sent_as_a_chat() {
    let mut first = user("find the auth code");
    let parts =
        json!([{"type": "text", "text": "and be quick", "synthetic": true}, {"type": "file"}]);
    first.parts.extend(serde_json::from_value::<Vec<_>>(parts).unwrap());
    let found = json!({"status": "completed", "input": {"path": "a"}, "output": "fn auth"});
    let failed = json!({"status": "error", "input": {"for": "b"}, "error": "no such directory"});
    let messages = vec![
        first,
        assistant(json!([
            {"type": "step-start"},
            {"type": "reasoning", "text": "hm"},
            {"type": "text", "text": "Looking."},
            tool("c1", "read", found),
            tool("c2", "grep", failed),
        ])),
        assistant(json!([{"type": "text", "text": "It is in a."}])),
        user("thanks"),
    ];
    let expected = json!([
        {"role": "user", "content": "find the auth code\nand be quick"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [
            sent_call("c1", "read", r#"{"path":"a"}"#),
            sent_call("c2", "grep", r#"{"for":"b"}"#),
        ]},
        sent_result("c1", "fn auth"),
        sent_result("c2", "no such directory"),
        {"role": "assistant", "content": "It is in a."},
        {"role": "user", "content": "thanks"},
    ]);
    assert_eq!(sent(messages).await, expected);
}

#[tokio::test]
async fn every_tool_call_is_sent_with_a_result_whatever_became_of_it() {
    let state = |status: &str, input: Value| json!({"status": status, "input": input});
    let done = json!({"status": "completed", "input": {"path": "a"}, "output": "late"});
    let messages = vec![
        user("go"),
        assistant(json!([
            tool("c1", "bash", state("pending", Value::Null)),
            tool("c2", "bash", state("running", json!({"command": "make"}))),
            tool("c3", "bash", state("completed", json!({}))),
            tool("c4", "bash", state("error", json!({}))),
            tool("c5", "functions.read file", state("error", json!("{path"))),
            tool("c6", "", state("running", json!({}))),
            tool("c6", "", done),
        ])),
    ];
    let expected = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [
            sent_call("c1", "bash", "{}"),
            sent_call("c2", "bash", r#"{"command":"make"}"#),
            sent_call("c3", "bash", "{}"),
            sent_call("c4", "bash", "{}"),
            sent_call("c5", "functions_read_file", r#"{"malformed":"{path"}"#),
            sent_call("c6", "unnamed", "{}"),
        ]},
        sent_result("c1", "interrupted"),
        sent_result("c2", "interrupted"),
        sent_result("c3", ""),
        sent_result("c4", "failed"),
        sent_result("c5", "failed"),
        sent_result("c6", "late"),
    ]);
    assert_eq!(sent(messages).await, expected);
}

#[tokio::test]
async fn a_summary_replaces_everything_before_it() {
    let summary = |text: &str| {
        let mut summary = assistant(json!([{"type": "text", "text": text}]));
        summary.info.summary = Some(json!(true));
        summary
    };
    let mut odd = user("with something else there");
    odd.info.summary = Some(json!({"diffs": []}));
    let messages = vec![
        user("long ago"),
        summary("first summary"),
        user("still long ago"),
        summary("newest summary"),
        odd,
        assistant(json!([])),
        user("go on"),
    ];
    let expected = json!([
        {"role": "user", "content": "newest summary\n\nwith something else there\n\ngo on"},
    ]);
    assert_eq!(sent(messages).await, expected);
}

#[tokio::test]
async fn tools_are_sent_with_their_schema() {
    let server = ModelServer::start().await;
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "from": {"type": "integer"}},
        "required": ["path"],
    });
    let spec = Spec { name: "read", description: "Reads a file.", schema: schema.clone() };
    let request = Request { tools: vec![spec], ..request(vec![user("go")]) };
    assert_eq!(ask(&remote(&server.base_url(), LONG), request).await.1, Ok(()));
    let expected = json!([{"type": "function", "function": {
        "name": "read",
        "description": "Reads a file.",
        "parameters": schema,
        "strict": false,
    }}]);
    assert_eq!(server.asked()[0].body["tools"], expected);
}

#[tokio::test]
async fn a_call_whose_id_was_used_before_gets_another() {
    let server = ModelServer::start().await;
    let state = json!({"status": "completed", "input": {}, "output": "done"});
    let messages =
        vec![assistant(json!([tool("call_4_0", "read", state)])), user("@call read | call read")];
    let (pieces, end) = ask(&remote(&server.base_url(), LONG), request(messages)).await;
    let expected = [
        call("call_4_0_2", "read", json!({})),
        call("call_4_1", "read", json!({})),
        Piece::End(Finish::ToolCalls),
    ];
    assert_eq!((pieces, end), (expected.into(), Ok(())));
}

#[tokio::test]
async fn the_second_line_of_a_script_is_the_reply_after_the_calls_of_the_first() {
    let server = ModelServer::start().await;
    let state = json!({"status": "completed", "input": {}, "output": "done"});
    let messages = vec![
        user("@say never answered"),
        user("Do this:\n@call read\n@say two"),
        assistant(json!([tool("c1", "read", state)])),
    ];
    let (pieces, end) = ask(&remote(&server.base_url(), LONG), request(messages)).await;
    assert_eq!((pieces, end), (vec![text("two"), Piece::End(Finish::Stop)], Ok(())));
}
