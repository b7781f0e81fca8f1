//! Mapping between OpenCode's JSON and our types. Pure; the tests read recordings of a real server. Unknown
//! event kinds and forms are not errors: they map to `SessionChange::Other`, which makes what is cached of the
//! session stale.

use std::collections::HashMap;

use super::types::{
    Agent, Create, Envelope, MessageUpdated, Metadata, ModelRef, PartDelta, PartUpdated,
    Permission, PromptBody, Question, RecentMessage, RecentModel, Rule, SessionError,
    SessionReference, ShowToast, Status, StatusChanged, TextPart, Todo,
};
use crate::host::{AgentOffer, Ask, NewSession, Post, Prompt, Toast, Tone};
use crate::transcript::{Info, Part};

/// What an event says about a session.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SessionChange {
    /// It works, or backs off before a retry.
    Busy(Status),
    /// It may have ended; only a poll and a read can tell (G4).
    Suspect,
    /// It was deleted.
    Deleted,
    /// Something went wrong; not always terminal (G5: a context overflow is compacted and continues).
    Failed(String),
    Message(Info),
    Part {
        message: String,
        part: Part,
    },
    Delta {
        message: String,
        part: String,
        text: String,
    },
    /// A permission or question was asked, or answered.
    Asked,
    /// Of a kind or a form that we do not know: what is cached of the session may be stale.
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) session: String,
    pub(super) directory: Option<String>,
    pub(super) change: SessionChange,
}

/// `None` for events that do not concern a session, and for the duplicate `sync` records.
pub(super) fn event(line: &str) -> Option<Event> {
    let Envelope { directory, payload } = serde_json::from_str(line).ok()?;
    let properties = payload.properties?.get();
    let session = serde_json::from_str::<SessionReference>(properties).ok()?.session?;
    let change = change(&payload.kind, properties).unwrap_or(SessionChange::Other);
    Some(Event { session, directory, change })
}

/// `None` for a kind or a form that is not known.
fn change(kind: &str, properties: &str) -> Option<SessionChange> {
    Some(match kind {
        "session.status" => match serde_json::from_str::<StatusChanged>(properties).ok()?.status {
            Status::Idle => SessionChange::Suspect,
            status @ (Status::Busy | Status::Retry { .. } | Status::Other) => {
                SessionChange::Busy(status)
            }
        },
        "session.idle" | "session.compacted" | "todo.updated" => SessionChange::Suspect,
        "session.deleted" => SessionChange::Deleted,
        "session.error" => {
            let error = serde_json::from_str::<SessionError>(properties).ok()?.error;
            SessionChange::Failed(
                error.map_or_else(|| "unknown error".into(), |error| error.message()),
            )
        }
        "message.updated" => {
            SessionChange::Message(serde_json::from_str::<MessageUpdated>(properties).ok()?.info)
        }
        "message.part.updated" => {
            let part = serde_json::from_str::<PartUpdated>(properties).ok()?.part;
            SessionChange::Part { message: part.message, part: with_id(part.part, part.id) }
        }
        "message.part.delta" => {
            let delta: PartDelta = serde_json::from_str(properties).ok()?;
            let text = if delta.field == "text" { delta.delta } else { String::new() };
            SessionChange::Delta { message: delta.message, part: delta.part, text }
        }
        "permission.asked" | "permission.replied" | "question.asked" | "question.replied"
        | "question.rejected" => SessionChange::Asked,
        _ => return None,
    })
}

/// Puts the id back: `#[serde(flatten)]` gave it to the outer struct.
fn with_id(part: Part, id: String) -> Part {
    match part {
        Part::Text { text, synthetic, .. } => Part::Text { id, text, synthetic },
        other @ (Part::Reasoning { .. }
        | Part::Tool { .. }
        | Part::Compaction { .. }
        | Part::Other) => other,
    }
}

/// Denied tools are rules of the session. The prompt's `tools` map would replace them, and stay for later
/// prompts (G11, T12).
pub(super) fn create(new: &NewSession) -> Create {
    let deny = |tool: &String| Rule { permission: tool.clone(), pattern: "*", action: "deny" };
    Create {
        parent: new.parent.as_ref().map(|parent| parent.session.to_string()),
        title: new.title.clone(),
        agent: new.agent.clone(),
        metadata: Metadata { asyncagents: Some(new.nonce.clone()) },
        permission: new.deny.iter().map(deny).collect(),
    }
}

/// Always with its agent: a prompt without one runs as the default agent, whatever came before (G13).
pub(super) fn prompt(prompt: &Prompt) -> PromptBody {
    let model = prompt.model.as_deref().and_then(|name| name.split_once('/'));
    let model = model.map(|(provider, model)| ModelRef {
        provider: provider.to_owned(),
        model: model.to_owned(),
    });
    PromptBody {
        message: prompt.message.to_string(),
        agent: prompt.agent.clone(),
        model,
        variant: None,
        no_reply: false,
        parts: vec![text(prompt.message.part(0), &prompt.text, false)],
    }
}

/// With the agent and model of the parent's last message, so that a notice changes neither (G13).
pub(super) fn notice(post: &Post, last_words: &[RecentMessage]) -> PromptBody {
    let spoken = last_words.iter().rev().map(|spoken| &spoken.info);
    // `summary: true` marks the assistant's compaction summary, made by an agent of its own. User messages
    // may have an object there.
    let mut spoken = spoken.filter(|info| info.summary != Some(serde_json::Value::Bool(true)));
    let spoken = spoken.find(|info| info.agent.is_some());
    let agent = spoken.and_then(|info| info.agent.clone()).unwrap_or_else(|| post.agent.clone());
    let (model, variant) = match spoken {
        Some(info) => match (&info.model, &info.provider, &info.model_id) {
            (Some(RecentModel { provider, model, variant }), _, _) => {
                let model = ModelRef { provider: provider.clone(), model: model.clone() };
                (Some(model), variant.clone())
            }
            (None, Some(provider), Some(model)) => {
                (Some(ModelRef { provider: provider.clone(), model: model.clone() }), None)
            }
            (None, _, _) => (None, None),
        },
        None => (None, None),
    };
    PromptBody {
        message: post.message.to_string(),
        agent,
        model,
        variant,
        no_reply: !post.wake,
        parts: vec![
            text(post.message.part(0), &post.visible, false),
            text(post.message.part(1), &post.hidden, true),
        ],
    }
}

fn text(id: String, text: &str, synthetic: bool) -> TextPart {
    TextPart { kind: "text", id, text: text.to_owned(), synthetic }
}

pub(super) fn open_todos(todos: Vec<Todo>) -> Vec<String> {
    let open = |todo: &Todo| matches!(todo.status.as_str(), "pending" | "in_progress");
    todos.into_iter().filter(open).map(|todo| todo.content).collect()
}

/// The agents that can be launched; internal ones of the server are marked hidden.
pub(super) fn agents(agents: Vec<Agent>) -> Vec<AgentOffer> {
    let offer = |agent: Agent| AgentOffer {
        name: agent.name,
        model: agent.model.map(|model| format!("{}/{}", model.provider, model.model)),
        reads_only: false,
    };
    agents.into_iter().filter(|agent| !agent.hidden).map(offer).collect()
}

/// An open permission request or question, and the tool call that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenRequest {
    pub(super) ask: Ask,
    pub(super) call: Option<String>,
}

/// Open requests by session. For `bash` the command itself is shown: the patterns are only what rules match.
pub(super) fn asks(
    permissions: Vec<Permission>,
    questions: Vec<Question>,
) -> HashMap<String, Vec<OpenRequest>> {
    let mut asks: HashMap<String, Vec<OpenRequest>> = HashMap::new();
    for Permission { id, session, permission, patterns, metadata, tool } in permissions {
        let command = metadata["command"].as_str().map(str::to_owned);
        let subject = command.unwrap_or_else(|| patterns.join(" "));
        let what = format!("{permission} {subject}").trim_end().to_owned();
        let open = OpenRequest { ask: Ask { id, what }, call: tool.map(|tool| tool.call) };
        asks.entry(session).or_default().push(open);
    }
    for Question { id, session, questions, tool } in questions {
        let texts: Vec<&str> = questions.iter().map(|asked| asked.question.as_str()).collect();
        let what = format!("question: {}", texts.join(" / "));
        let open = OpenRequest { ask: Ask { id, what }, call: tool.map(|tool| tool.call) };
        asks.entry(session).or_default().push(open);
    }
    asks
}

/// Allowing a question without naming an answer picks the first option.
pub(super) fn first_choices(question: &Question) -> Vec<String> {
    let first = |choices: &[super::types::Choice]| choices.first().map(|c| c.label.clone());
    question.questions.iter().map(|asked| first(&asked.options).unwrap_or("yes".into())).collect()
}

pub(super) fn toast(toast: &Toast) -> ShowToast {
    let variant = match toast.tone {
        Tone::Info => "info",
        Tone::Success => "success",
        Tone::Warning => "warning",
        Tone::Error => "error",
    };
    let duration = toast.shown.as_millis().try_into().unwrap_or(5_000);
    ShowToast { title: toast.title.clone(), message: toast.message.clone(), variant, duration }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::host::Place;
    use crate::task::{MessageId, SessionId};
    use crate::transcript::{self, Message, Outcome};

    /// What a real server sent.
    macro_rules! sample {
        ($name:literal) => {
            serde_json::from_str::<Value>(include_str!(concat!(
                "../../../tests/it/samples/opencode/",
                $name,
                ".json"
            )))
            .unwrap()
        };
    }

    fn messages(value: &Value) -> Vec<Message> {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// A recorded last answer, after the message it answers.
    fn check_last(last: &Value, expected: Outcome) {
        let prompt = last["info"]["parentID"].as_str().unwrap();
        let info = json!({"id": prompt, "role": "user", "time": {"created": 1}});
        let conversation = messages(&json!([{ "info": info, "parts": [] }, last]));
        assert_eq!(transcript::outcome(&conversation, prompt, None), expected);
    }

    fn check(conversation: &Value, expected: Outcome) {
        let conversation = messages(conversation);
        let prompt = conversation[0].info.id.clone();
        assert_eq!(transcript::outcome(&conversation, &prompt, None), expected);
    }

    fn answered(text: &str) -> Outcome {
        Outcome::Answered { text: text.into() }
    }

    #[test]
    fn g4_finish_stop_and_completed_and_no_error_is_completed() {
        let text = "FINAL after 1 tool result(s): hello\n";
        check(&sample!("session.messages"), answered(text));
    }

    #[test]
    fn g4_a_message_aborted_error_is_cancelled() {
        check_last(&sample!("abort-llm")["last"], Outcome::Aborted);
        check_last(&sample!("abort-tool")["last"], Outcome::Aborted);
        check_last(&sample!("abort-beforefirstbyte")["last"], Outcome::Aborted);
    }

    #[test]
    fn g4_any_other_error_is_failed_with_the_servers_words() {
        let failed = |error: &str| Outcome::Failed { error: error.into(), partial: None };
        check(&sample!("fail-400")["messages"], failed("fake rejection"));
        check(&sample!("fail-500")["messages"], failed("fake backend exploded"));
    }

    #[test]
    fn g4_finish_tool_calls_and_idle_means_that_something_was_refused() {
        let why = "The user rejected permission to use this specific tool call.";
        let refused = Outcome::Refused { what: format!("bash: {why}"), partial: None };
        check_last(&sample!("behaviours-perm")["perm.reject.last"], refused);
    }

    #[test]
    fn g4_completed_with_neither_finish_nor_error_was_aborted_during_a_retry() {
        check_last(&sample!("behaviours-fail500")["fail500.abort"]["last"], Outcome::Aborted);
    }

    #[test]
    fn g4_not_completed_is_the_first_idle_of_a_pair_or_a_restart() {
        let mut last = sample!("session.messages")[2].clone();
        let info = last["info"].as_object_mut().unwrap();
        info.remove("finish");
        info["time"].as_object_mut().unwrap().remove("completed");
        let partial = Some("FINAL after 1 tool result(s): hello\n".into());
        check_last(&last, Outcome::Unfinished { partial });
    }

    #[test]
    fn prompts_to_a_busy_session_are_merged_and_answered_with_a_later_message() {
        let conversation = messages(&sample!("busy-second-prompt")["messages"]);
        let second = conversation[2].info.id.clone();
        let expected = answered("ECHO: second while busy\nnoReply while busy");
        assert_eq!(transcript::outcome(&conversation, &second, None), expected);
    }

    #[test]
    fn an_auto_compaction_in_mid_run_is_no_answer() {
        let conversation = messages(&sample!("compaction.auto.messages"));
        let prompt = conversation[2].info.id.clone();
        let outcome = transcript::outcome(&conversation, &prompt, None);
        let Outcome::Answered { text } = outcome else { panic!("{outcome:?}") };
        assert!(text.starts_with("ECHO: Continue if you have next steps"), "{text}");
        // Cut off before the run went on: not the summary, and not over.
        let outcome = transcript::outcome(&conversation[..6], &prompt, None);
        let what = "a permission or question".to_owned();
        assert_eq!(outcome, Outcome::Refused { what, partial: None });
    }

    #[test]
    fn only_events_of_sessions_are_read_from_the_global_stream() {
        let lines = sample!("global-event.sample");
        let lines = lines.as_array().unwrap().iter();
        let read: Vec<_> = lines.map(|line| event(&line.to_string())).collect();
        let other = Event {
            session: "ses_e1efceb36ffe1z8HL3sntebQS1".into(),
            directory: Some("/proj".into()),
            change: SessionChange::Other,
        };
        assert_eq!(read, [Some(other.clone()), None, Some(other)]);
        for line in ["", "nonsense", "{}", "{\"payload\":{\"type\":\"session.idle\"}}"] {
            assert_eq!(event(line), None, "{line}");
        }
    }

    /// The events of a recording, as they come over the global stream.
    fn events(recorded: &Value) -> Vec<Event> {
        let recorded = recorded.as_array().unwrap().iter();
        let lines = recorded.map(|e| json!({"directory": "/proj", "payload": e}).to_string());
        lines.filter_map(|line| event(&line)).collect()
    }

    #[test]
    fn a_retry_comes_with_the_servers_message() {
        let retries = events(&sample!("fail-500-retry")).into_iter();
        let retries = retries.filter_map(|event| match event.change {
            SessionChange::Busy(Status::Retry { message }) => Some(message),
            _ => None,
        });
        assert_eq!(retries.collect::<Vec<_>>(), ["fake backend exploded"; 3]);
    }

    #[test]
    fn g4_on_failure_the_idle_comes_twice_and_neither_is_taken_for_an_end() {
        let suspicions = events(&sample!("fail-500")["events"]).into_iter();
        let suspicions = suspicions.filter(|event| event.change == SessionChange::Suspect);
        assert_eq!(suspicions.count(), 4, "status idle and session.idle, twice");
    }

    #[test]
    fn g6_an_unknown_agent_or_model_is_reported_only_by_an_error_event() {
        let sample = sample!("behaviours-errors");
        let errors = |recorded: &Value| -> Vec<String> {
            let all = events(recorded).into_iter();
            all.filter_map(|event| match event.change {
                SessionChange::Failed(error) => Some(error),
                _ => None,
            })
            .collect()
        };
        let bad_agent = errors(&sample["err.badagent.async.events"]);
        assert!(bad_agent[0].starts_with("Agent not found: \""), "{bad_agent:?}");
        assert_eq!(errors(&sample["err.badmodel.events"])[0], "Model not found: fake/zzz.");
    }

    #[test]
    fn g15_a_tool_part_is_updated_again_and_again_and_counted_once() {
        use super::super::mirror::Mirror;
        use crate::host::Activity;
        let recorded = sample!("events.run-with-tool");
        let session = recorded[0]["properties"]["sessionID"].as_str().unwrap();
        let session = SessionId::new(session);
        let mut mirror = Mirror::new(0);
        let now = std::time::Duration::ZERO;
        mirror.expect(&session, &MessageId::new("msg_prompt"), "/proj", now);
        for event in events(&recorded) {
            mirror.hear(event, now);
        }
        let (activity, idle) = mirror.tell(&session, now).unwrap();
        assert_eq!(activity, Activity::Streaming);
        let figures = transcript::figures(&messages(&sample!("session.messages")));
        assert_eq!(idle.figures, figures);
        assert_eq!(idle.figures.tool_calls, 1);
    }

    #[test]
    fn every_event_of_a_session_invalidates_what_was_cached_of_it() {
        use super::super::mirror::Mirror;
        let recorded = sample!("events.run-with-tool");
        let session = SessionId::new(recorded[0]["properties"]["sessionID"].as_str().unwrap());
        let mut mirror = Mirror::new(7);
        let now = std::time::Duration::ZERO;
        mirror.expect(&session, &MessageId::new("msg_prompt"), "/proj", now);
        assert_eq!(mirror.version(&session), None, "nobody listens");
        mirror.listen();
        let mut versions = std::collections::BTreeSet::from([mirror.version(&session)]);
        for event in events(&recorded) {
            let is_own = event.session == session.as_str();
            mirror.hear(event, now);
            assert_eq!(versions.insert(mirror.version(&session)), is_own);
        }
        for (kind, body) in [
            ("message.removed", json!({"sessionID": session.as_str(), "messageID": "msg_1"})),
            ("message.part.removed", json!({"sessionID": session.as_str(), "partID": "prt_1"})),
            ("message.updated", json!({"sessionID": session.as_str(), "info": "of another form"})),
            ("permission.asked", json!({"sessionID": session.as_str()})),
        ] {
            for event in events(&json!([{"type": kind, "properties": body}])) {
                mirror.hear(event, now);
            }
            assert!(versions.insert(mirror.version(&session)), "{kind}");
        }
        assert!(versions.len() > 5 && !versions.contains(&None), "{versions:?}");
        mirror.stop_listening();
        assert_eq!(mirror.version(&session), None);
    }

    #[test]
    fn g13_a_notice_keeps_the_agent_and_the_model_the_parent_last_spoke_with() {
        let post = Post {
            to: Place::unknown(SessionId::new("ses_p")),
            message: MessageId::new("msg_abcdefghijklmnopqrstuvwxyz"),
            visible: "✓ done".into(),
            hidden: "hint".into(),
            agent: "recorded".into(),
            wake: false,
        };
        let body = |last_words: Value| {
            let spoken: Vec<RecentMessage> = serde_json::from_value(last_words).unwrap();
            serde_json::to_value(notice(&post, &spoken)).unwrap()
        };
        let said = json!({
            "messageID": "msg_abcdefghijklmnopqrstuvwxyz", "agent": "recorded", "noReply": true,
            "parts": [
                {"type": "text", "id": "prt_abcdefghijklmnopqrstuvwxy0", "text": "✓ done"},
                {"type": "text", "id": "prt_abcdefghijklmnopqrstuvwxy1", "text": "hint",
                 "synthetic": true},
            ],
        });
        assert_eq!(body(json!([])), said);
        let user = json!({"info": {"agent": "plan", "role": "user", "model":
            {"providerID": "a", "modelID": "b/c", "variant": "high"}}, "parts": []});
        let assistant = json!({"info": {"agent": "build", "role": "assistant", "providerID": "d",
            "modelID": "e"}, "parts": []});
        let summary = json!({"info": {"agent": "compaction", "summary": true, "providerID": "x",
            "modelID": "y"}, "parts": []});
        let mut expected = said;
        expected["agent"] = "plan".into();
        expected["model"] = json!({"providerID": "a", "modelID": "b/c"});
        expected["variant"] = "high".into();
        assert_eq!(body(json!([assistant, user, summary])), expected);
        expected["agent"] = "build".into();
        expected["model"] = json!({"providerID": "d", "modelID": "e"});
        expected.as_object_mut().unwrap().remove("variant");
        assert_eq!(body(json!([user, assistant, summary])), expected);
    }

    #[test]
    fn t12_children_are_denied_our_tools_by_rules_of_the_session() {
        let new = NewSession {
            parent: Some(Place::unknown(SessionId::new("ses_p"))),
            title: "Background: look".into(),
            nonce: "n".into(),
            directory: "/proj".into(),
            agent: "general".into(),
            deny: vec!["asyncagents_*".into(), "task".into()],
            handed: Default::default(),
        };
        let rule = |tool: &str| json!({"permission": tool, "pattern": "*", "action": "deny"});
        let expected = json!({
            "parentID": "ses_p", "title": "Background: look", "agent": "general",
            "metadata": {"asyncagents": "n"},
            "permission": [rule("asyncagents_*"), rule("task")],
        });
        assert_eq!(serde_json::to_value(create(&new)).unwrap(), expected);
    }

    #[test]
    fn agents_of_the_servers_own_machinery_are_not_offered() {
        let agents = serde_json::from_value(sample!("agents")).unwrap();
        let offered = super::agents(agents).into_iter().map(|offer| (offer.name, offer.model));
        let named = ["build", "explore", "general", "plan"].map(|name| (name.to_owned(), None));
        assert_eq!(offered.collect::<Vec<_>>(), named);
        let tuned = json!([{"name": "tuned", "model": {"providerID": "acme", "modelID": "one"}}]);
        let offer =
            AgentOffer { name: "tuned".into(), model: Some("acme/one".into()), reads_only: false };
        assert_eq!(super::agents(serde_json::from_value(tuned).unwrap()), [offer]);
    }

    #[test]
    fn todos_that_are_pending_or_in_progress_are_open() {
        let todos = serde_json::from_value(sample!("todo.get")).unwrap();
        assert_eq!(open_todos(todos), ["second thing", "third thing"]);
    }

    #[test]
    fn a_request_for_a_command_says_what_will_run() {
        let permission = |metadata: serde_json::Value| {
            let permission = serde_json::json!({
                "id": "per_1", "sessionID": "ses_1", "permission": "bash",
                "patterns": ["ls", "rm"], "metadata": metadata,
            });
            let permission = serde_json::from_value(permission).unwrap();
            asks(vec![permission], Vec::new())["ses_1"][0].ask.what.clone()
        };
        assert_eq!(permission(serde_json::json!({ "command": "ls; rm -r x" })), "bash ls; rm -r x");
        assert_eq!(permission(serde_json::Value::Null), "bash ls rm");
    }

    #[test]
    fn permissions_and_questions_are_listed_by_session() {
        let permissions = sample!("behaviours-perm")["perm.list"]["data"].clone();
        let permissions: Vec<Permission> = serde_json::from_value(permissions).unwrap();
        let questions = sample!("behaviours-question")["question.list"].clone();
        let questions: Vec<Question> = serde_json::from_value(questions).unwrap();
        let open = |id: &str, what: &str, call: &str| {
            vec![OpenRequest {
                ask: Ask { id: id.into(), what: what.into() },
                call: Some(call.into()),
            }]
        };
        let expected = HashMap::from([
            (
                "ses_e1ef93c6fffe849avjw92BmdgI".to_owned(),
                open("per_1e106c5d4001MTABxanY1sYuIt", "bash echo needs-permission", "call_35_0"),
            ),
            (
                "ses_e1ef91fc9ffeSuB9XvY54beS9f".to_owned(),
                open("que_1e106e1cb001HR1Owuxzn8x154", "question: Which?", "call_45_0"),
            ),
        ]);
        assert_eq!(first_choices(&questions[0]), ["A"]);
        assert_eq!(asks(permissions, questions), expected);
    }
}
