//! Every wire format against every way a server can answer: the same script yields the same pieces.
//! Also the requests in each format.

use std::time::Duration;

use asyncagents::agent::model::remote::Remote;
use asyncagents::agent::model::{Error, Finish, Piece, Request};
use asyncagents::agent::tools::Spec;
use asyncagents::transcript::{Cache, Message, Seal, SealKind, Tokens};
use serde_json::{Value, json};

use super::providers::{
    KEY, LONG, SHORT, ask, assistant, busy, call, refused, remote_of, request, text, thought, tool,
    user,
};
use crate::support::ModelServer;

/// A provider for each format.
const FORMATS: [&str; 4] = ["openai", "openai-responses", "anthropic", "gemini"];

fn connect(server: &ModelServer, format: &str, silence: Duration) -> Remote {
    remote_of(format, &server.origin(), silence)
}

/// Checks the script in all formats.
async fn check(prompt: &str, pieces: Vec<Piece>, end: Result<(), Error>) {
    for format in FORMATS {
        check_in(format, prompt, pieces.clone(), end.clone()).await;
    }
}

async fn check_in(format: &str, prompt: &str, pieces: Vec<Piece>, end: Result<(), Error>) {
    let server = ModelServer::start().await;
    let (mut came, ended) = ask(&connect(&server, format, LONG), request(vec![user(prompt)])).await;
    // Anthropic sends usage with every answer, also when the script has none.
    came.retain(|piece| !matches!(piece, Piece::Usage(_)));
    assert_eq!((came, ended), (pieces, end), "{format}: {prompt}");
}

/// Gemini's calls have no ids; the client assigns them.
fn id(format: &str, index: usize) -> String {
    match (format, index) {
        ("gemini", 0) => "call".to_owned(),
        ("gemini", index) => format!("call_{}", index + 1),
        (_, index) => format!("call_2_{index}"),
    }
}

fn seal(format: &str, kind: SealKind, data: &str) -> Seal {
    Seal { by: format!("{format}/scripted"), kind, data: data.to_owned() }
}

#[tokio::test]
async fn text_is_streamed_in_every_format() {
    let pieces = vec![text("two "), text("wörds"), Piece::End(Finish::Stop)];
    check("@say two wörds", pieces, Ok(())).await;
}

#[tokio::test]
async fn one_call_and_parallel_calls_arrive_complete_in_every_format() {
    for format in FORMATS {
        let pieces = vec![
            text("looking"),
            call(&id(format, 0), "read", json!({"path": "src/auth.rs", "from": 1})),
            call(&id(format, 1), "todo", json!({})),
            call(&id(format, 2), "grep", json!({"for": "wörd"})),
            Piece::End(Finish::ToolCalls),
        ];
        let prompt = r#"@say looking | call read {"path": "src/auth.rs", "from": 1} | call todo | call grep {"for": "wörd"}"#;
        check_in(format, prompt, pieces, Ok(())).await;
        let one =
            vec![call(&id(format, 0), "read", json!({"path": "a"})), Piece::End(Finish::ToolCalls)];
        check_in(format, r#"@call read {"path": "a"}"#, one, Ok(())).await;
    }
}

#[tokio::test]
async fn reasoning_is_separate_from_the_answer_in_every_format() {
    let pieces = vec![thought("let "), thought("me"), text("so"), Piece::End(Finish::Stop)];
    check("@think let me | say so", pieces, Ok(())).await;
}

#[tokio::test]
async fn usage_counts_cached_tokens_separately_in_every_format_that_reports_them() {
    let tokens = |input, output, reasoning, read, write| Tokens {
        input,
        output,
        reasoning,
        cache: Cache { read, write },
    };
    for (format, tokens) in [
        ("openai", tokens(60, 15, 5, 40, 0)),
        ("openai-responses", tokens(60, 15, 5, 40, 0)),
        // Anthropic counts reasoning as output, and cache writes separately.
        ("anthropic", tokens(50, 20, 0, 40, 10)),
        ("gemini", tokens(60, 15, 5, 40, 0)),
    ] {
        let pieces = vec![text("so"), Piece::Usage(tokens), Piece::End(Finish::Stop)];
        let server = ModelServer::start().await;
        let prompt = request(vec![user("@say so | usage 100 20 5 40 10")]);
        let asked = ask(&connect(&server, format, LONG), prompt).await;
        assert_eq!((asked, tokens.total()), ((pieces, Ok(())), 120), "{format}");
    }
}

#[tokio::test]
async fn a_stream_without_its_end_is_truncated_however_it_closes_in_every_format() {
    for ending in ["cut", "end", "done"] {
        let prompt = format!("@say half | {ending}");
        check(&prompt, vec![text("half")], Err(Error::Truncated)).await;
    }
    check(r#"@call read {"path": "a"} | end"#, vec![], Err(Error::Truncated)).await;
    check("@cut", vec![], Err(Error::Truncated)).await;
}

#[tokio::test]
async fn the_retry_delay_of_a_busy_server_is_kept_in_every_format() {
    let told = |after| Err(busy("slow down", after));
    let later = Some(Duration::from_secs(7));
    check("@status 429 retry-after=7 | say slow down", vec![], told(later)).await;
    check("@status 529 | say slow down", vec![], told(None)).await;
    check("@status 503 retry-after=7 | say slow down", vec![], told(later)).await;
}

#[tokio::test]
async fn a_refusal_is_final_and_never_contains_the_key_in_every_format() {
    check("@status 400 | say no such model", vec![], Err(refused(400, "no such model"))).await;
    for format in FORMATS {
        let server = ModelServer::start().await;
        let prompt = request(vec![user("@status 401 | say wrong key: {authorization}")]);
        let (_, end) = ask(&connect(&server, format, LONG), prompt).await;
        let bearer = if format.starts_with("openai") { "Bearer " } else { "" };
        assert_eq!(end, Err(refused(401, &format!("wrong key: {bearer}***"))), "{format}");
        let asked = &server.asked()[0];
        assert_eq!(asked.authorization, Some(format!("{bearer}{KEY}")), "{format}");
        assert!(!format!("{}{}{}", asked.path, asked.query, asked.body).contains(KEY), "{format}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_times_out_in_every_format() {
    for format in FORMATS {
        let server = ModelServer::start().await;
        let remote = connect(&server, format, SHORT);
        let asked = ask(&remote, request(vec![user("@say half | hang")])).await;
        assert_eq!(asked, (vec![text("half")], Err(Error::Silent(SHORT))), "{format}");
        let asked = ask(&remote, request(vec![user("@hang")])).await;
        assert_eq!(asked, (vec![], Err(Error::Silent(SHORT))), "{format}");
    }
}

#[tokio::test]
async fn errors_and_garbage_within_a_stream_end_it_in_every_format() {
    let half = || vec![text("half")];
    check("@say half | garbage", half(), Err(busy("its answer is not readable", None))).await;
    for (format, again, final_one) in [
        (
            "openai",
            r#"{"message": "m", "type": "server_error"}"#,
            r#"{"message": "m", "code": 400}"#,
        ),
        (
            "openai-responses",
            r#"{"message": "m", "code": "rate_limit_exceeded"}"#,
            r#"{"message": "m", "code": "invalid_prompt"}"#,
        ),
        (
            "anthropic",
            r#"{"message": "m", "type": "overloaded_error"}"#,
            r#"{"message": "m", "type": "invalid_request_error"}"#,
        ),
        (
            "gemini",
            r#"{"message": "m", "code": 503, "status": "UNAVAILABLE"}"#,
            r#"{"message": "m", "code": 400, "status": "INVALID_ARGUMENT"}"#,
        ),
    ] {
        check_in(format, &format!("@say half | error {again}"), half(), Err(busy("m", None))).await;
        let refusal = Err(refused(400, "m"));
        check_in(format, &format!("@say half | error {final_one}"), half(), refusal).await;
    }
}

#[tokio::test]
async fn an_error_within_a_stream_has_the_retry_delay_of_the_response_headers() {
    let later = Some(Duration::from_secs(7));
    let prompt = r#"@head retry-after=7 | say half | error {"message": "m", "code": 503}"#;
    check(prompt, vec![text("half")], Err(busy("m", later))).await;
    let gemini = r#"@error {"message": "m", "code": 429, "details": [{"retryDelay": "7s"}]}"#;
    check_in("gemini", gemini, vec![], Err(busy("m", later))).await;
}

#[tokio::test]
async fn the_finish_reasons_of_every_format_are_known() {
    let other = |word: &str| Finish::Other(word.to_owned());
    for (format, word, finish) in [
        ("openai", "length", Finish::Length),
        ("openai", "content_filter", Finish::ContentFilter),
        ("openai-responses", "max_output_tokens", Finish::Length),
        ("openai-responses", "content_filter", Finish::ContentFilter),
        ("anthropic", "stop_sequence", Finish::Stop),
        ("anthropic", "max_tokens", Finish::Length),
        ("anthropic", "refusal", Finish::ContentFilter),
        ("anthropic", "pause_turn", other("pause_turn")),
        ("gemini", "MAX_TOKENS", Finish::Length),
        ("gemini", "SAFETY", Finish::ContentFilter),
        ("gemini", "PROHIBITED_CONTENT", Finish::ContentFilter),
        ("gemini", "LANGUAGE", other("LANGUAGE")),
    ] {
        let server = ModelServer::start().await;
        let prompt = request(vec![user(&format!("@say half | finish {word}"))]);
        let (mut pieces, end) = ask(&connect(&server, format, LONG), prompt).await;
        pieces.retain(|piece| !matches!(piece, Piece::Usage(_)));
        assert_eq!((pieces, end), (vec![text("half"), Piece::End(finish)], Ok(())), "{format}");
    }
    let unreadable = Err(busy("the model made a call that cannot be read", None));
    check_in("gemini", "@finish MALFORMED_FUNCTION_CALL", vec![], unreadable).await;
}

#[tokio::test]
async fn signatures_and_encrypted_reasoning_come_with_the_answer() {
    let read = |format| call(&id(format, 0), "read", json!({"path": "a"}));
    let prompt = r#"@think hm | sign s1 | call read {"path": "a"}"#;
    for (format, kind) in [
        ("anthropic", SealKind::Signature),
        ("openai-responses", SealKind::Encrypted),
        ("gemini", SealKind::Signature),
    ] {
        let pieces = vec![
            thought("hm"),
            Piece::Seal(seal(format, kind, "s1")),
            read(format),
            Piece::End(Finish::ToolCalls),
        ];
        check_in(format, prompt, pieces, Ok(())).await;
    }
    let hidden = vec![
        Piece::Seal(seal("anthropic", SealKind::Encrypted, "e1")),
        text("so"),
        Piece::End(Finish::Stop),
    ];
    check_in("anthropic", "@hide e1 | say so", hidden, Ok(())).await;
}

#[tokio::test]
async fn buffered_arguments_and_signatures_are_bounded_in_every_format() {
    let long = "x".repeat(2_000);
    let call = format!(r#"@call write {{"text": "{long}"}}"#);
    let signed = format!("@think hm | sign {long} | call read");
    for (format, prompt) in [
        ("openai", &call),
        ("openai-responses", &call),
        ("anthropic", &call),
        ("anthropic", &signed),
        ("gemini", &call),
        ("gemini", &signed),
    ] {
        let server = ModelServer::start().await;
        let remote = connect(&server, format, LONG).bounded(1_000);
        let (_, end) = ask(&remote, request(vec![user(prompt)])).await;
        assert_eq!(end, Err(Error::TooLong(1_000)), "{format}");
    }
}

/// The body of the request with these messages.
async fn sent(format: &str, model: &str, messages: Vec<Message>) -> Value {
    let server = ModelServer::start().await;
    let schema = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "default": "."},
            "from": {"type": ["integer", "null"], "minimum": 1, "exclusiveMinimum": 0},
            "list": {"type": "array", "items": {"type": "object", "additionalProperties": false}},
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    let spec = Spec { name: "read", description: "Reads a file.", schema };
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let bare = Spec { name: "look", description: "Looks.", schema: nothing };
    let request = Request { model: model.to_owned(), tools: vec![spec, bare], ..request(messages) };
    let (_, end) = ask(&connect(&server, format, LONG), request).await;
    assert_eq!(end, Ok(()));
    let asked = &server.asked()[0];
    json!({"path": asked.path, "query": asked.query, "body": asked.body})
}

/// Two turns with reasoning of the same model and of another one, parallel calls, and a message
/// that arrived while they ran.
fn conversation(format: &str, model: &str, kind: &str) -> Vec<Message> {
    let sealed = |by: &str, data: &str| json!({"by": by, "kind": kind, "data": data});
    let own = sealed(&format!("{format}/{model}"), "own seal");
    let foreign = sealed("other/model", "foreign seal");
    let found = json!({"status": "completed", "input": {"path": "a"}, "output": "fn auth"});
    let failed = json!({"status": "error", "input": {"path": "b"}, "error": "no such file"});
    let late = json!({"status": "completed", "input": {}, "output": "late"});
    vec![
        user("find the auth code"),
        assistant(json!([
            {"type": "reasoning", "text": "hm", "seal": own},
            {"type": "text", "text": "Looking."},
            tool("c1", "read", found),
            tool("c.2", "read", failed),
        ])),
        user("and be quick"),
        assistant(json!([
            {"type": "reasoning", "text": "well", "seal": foreign},
            {"type": "text", "text": " "},
            tool("c3", "look", late),
        ])),
        assistant(json!([{"type": "text", "text": "It is in a."}])),
        user("thanks\n@say fine"),
    ]
}

#[tokio::test]
async fn anthropic_is_sent_signed_reasoning_results_in_one_message_and_cache_markers() {
    let model = "claude-test";
    let messages = conversation("anthropic", model, "signature");
    insta::assert_json_snapshot!(sent("anthropic", model, messages).await);
}

#[tokio::test]
async fn anthropic_is_sent_the_tools_of_past_calls_when_none_are_offered() {
    let state = json!({"status": "completed", "input": {}, "output": "done"});
    let messages = vec![
        user("go"),
        assistant(json!([tool("c1", "read", state.clone()), tool("c2", "grep", state)])),
        user("sum up\n@say fine"),
    ];
    let server = ModelServer::start().await;
    let (_, end) = ask(&connect(&server, "anthropic", LONG), request(messages)).await;
    assert_eq!(end, Ok(()));
    let body = &server.asked()[0].body;
    let schema = json!({"type": "object"});
    let expected = json!([
        {"name": "grep", "input_schema": schema}, {"name": "read", "input_schema": schema},
    ]);
    assert_eq!((&body["tools"], &body["tool_choice"]), (&expected, &json!({"type": "none"})));
}

#[tokio::test]
async fn the_responses_api_is_sent_encrypted_reasoning_and_stores_nothing() {
    let messages = conversation("openai-responses", "gpt-5", "encrypted");
    insta::assert_json_snapshot!(sent("openai-responses", "gpt-5", messages).await);
}

#[tokio::test]
async fn gemini_is_sent_signed_calls_and_schemas_it_accepts() {
    let messages = conversation("gemini", "gemini-3-pro", "signature");
    insta::assert_json_snapshot!(sent("gemini", "gemini-3-pro", messages).await);
}

#[tokio::test]
async fn a_run_of_several_steps_works_in_every_format() {
    let state = json!({"status": "completed", "input": {}, "output": "done"});
    for format in FORMATS {
        let server = ModelServer::start().await;
        let messages = vec![
            user("Do this:\n@call read\n@say two"),
            assistant(json!([
                tool("c1", "read", state.clone()),
                tool("c2", "read", state.clone())
            ])),
        ];
        let (mut pieces, end) = ask(&connect(&server, format, LONG), request(messages)).await;
        pieces.retain(|piece| !matches!(piece, Piece::Usage(_)));
        assert_eq!(
            (pieces, end),
            (vec![text("two"), Piece::End(Finish::Stop)], Ok(())),
            "{format}"
        );
    }
}
