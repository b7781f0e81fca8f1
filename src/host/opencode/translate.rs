//! Between OpenCode's words and ours. Pure; the tests read what a real server sent.

use std::collections::HashMap;

use super::types::{
    Agent, Create, Envelope, MessageUpdated, Metadata, ModelRef, OfSession, PartDelta, PartUpdated,
    Permission, Question, Rule, Say, SessionError, ShowToast, Spoken, SpokenModel, Status,
    StatusChanged, TextPart, Todo,
};
use crate::host::{Ask, NewSession, Post, Prompt, Toast, Tone};
use crate::transcript::{Info, Part};

/// What an event says about a session.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum News {
    /// It works, or waits before it tries again.
    Busy(Status),
    /// It may have come to an end; whoever wants to know has to look.
    Suspect,
    /// Something went wrong, perhaps for good.
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
    /// Something is asked, or was answered.
    Asked,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) session: String,
    pub(super) directory: Option<String>,
    pub(super) news: News,
}

/// `None` for what does not concern a session, or says nothing new.
pub(super) fn event(line: &str) -> Option<Event> {
    let Envelope { directory, payload } = serde_json::from_str(line).ok()?;
    let properties = payload.properties?.get();
    let session = serde_json::from_str::<OfSession>(properties).ok()?.session?;
    let news = match payload.kind.as_str() {
        "session.status" => match serde_json::from_str::<StatusChanged>(properties).ok()?.status {
            Status::Idle => News::Suspect,
            status @ (Status::Busy | Status::Retry { .. } | Status::Other) => News::Busy(status),
        },
        "session.idle" | "session.deleted" | "session.compacted" | "todo.updated" => News::Suspect,
        "session.error" => {
            let error = serde_json::from_str::<SessionError>(properties).ok()?.error;
            News::Failed(error.map_or_else(|| "unknown error".into(), |error| error.message()))
        }
        "message.updated" => {
            News::Message(serde_json::from_str::<MessageUpdated>(properties).ok()?.info)
        }
        "message.part.updated" => {
            let part = serde_json::from_str::<PartUpdated>(properties).ok()?.part;
            News::Part { message: part.message, part: with_id(part.part, part.id) }
        }
        "message.part.delta" => {
            let delta: PartDelta = serde_json::from_str(properties).ok()?;
            let text = if delta.field == "text" { delta.delta } else { String::new() };
            News::Delta { message: delta.message, part: delta.part, text }
        }
        "permission.asked" | "permission.replied" | "question.asked" | "question.replied"
        | "question.rejected" => News::Asked,
        _ => return None,
    };
    Some(Event { session, directory, news })
}

/// `#[serde(flatten)]` hands the id to whoever asks first.
fn with_id(part: Part, id: String) -> Part {
    match part {
        Part::Text { text, synthetic, .. } => Part::Text { id, text, synthetic },
        other @ (Part::Reasoning { .. }
        | Part::Tool { .. }
        | Part::Compaction { .. }
        | Part::Other) => other,
    }
}

/// Rules of the session and not the prompt's `tools`, which would replace them (T12).
pub(super) fn create(new: &NewSession) -> Create {
    let deny = |tool: &String| Rule { permission: tool.clone(), pattern: "*", action: "deny" };
    Create {
        parent: new.parent.as_ref().map(ToString::to_string),
        title: new.title.clone(),
        agent: new.agent.clone(),
        metadata: Metadata { asyncagents: Some(new.nonce.clone()) },
        permission: new.deny.iter().map(deny).collect(),
    }
}

/// Always with its agent: the server does not remember one (G13).
pub(super) fn prompt(prompt: &Prompt) -> Say {
    let model = prompt.model.as_deref().and_then(|name| name.split_once('/'));
    let model = model.map(|(provider, model)| ModelRef {
        provider: provider.to_owned(),
        model: model.to_owned(),
    });
    Say {
        message: prompt.message.to_string(),
        agent: prompt.agent.clone(),
        model,
        variant: None,
        no_reply: false,
        parts: vec![text(prompt.message.part(0), &prompt.text, false)],
    }
}

/// With the agent and model the parent last spoke with, so that a notice changes neither.
pub(super) fn notice(post: &Post, last_words: &[Spoken]) -> Say {
    let spoken = last_words.iter().rev().map(|spoken| &spoken.info);
    let mut spoken = spoken.filter(|info| info.summary != Some(serde_json::Value::Bool(true)));
    let spoken = spoken.find(|info| info.agent.is_some());
    let agent = spoken.and_then(|info| info.agent.clone()).unwrap_or_else(|| post.agent.clone());
    let (model, variant) = match spoken {
        Some(info) => match (&info.model, &info.provider, &info.model_id) {
            (Some(SpokenModel { provider, model, variant }), _, _) => {
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
    Say {
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

/// Those that can be launched: agents of the server's own machinery are hidden.
pub(super) fn agent_names(agents: Vec<Agent>) -> Vec<String> {
    agents.into_iter().filter(|agent| !agent.hidden).map(|agent| agent.name).collect()
}

/// What sessions wait for, by session.
pub(super) fn asks(
    permissions: &[Permission],
    questions: &[Question],
) -> HashMap<String, Vec<Ask>> {
    let mut asks: HashMap<String, Vec<Ask>> = HashMap::new();
    for Permission { id, session, permission, patterns } in permissions {
        let what = format!("{permission} {}", patterns.join(" "));
        let ask = Ask { id: id.clone(), what: what.trim_end().to_owned() };
        asks.entry(session.clone()).or_default().push(ask);
    }
    for Question { id, session, questions } in questions {
        let texts: Vec<&str> = questions.iter().map(|asked| asked.question.as_str()).collect();
        let ask = Ask { id: id.clone(), what: format!("question: {}", texts.join(" / ")) };
        asks.entry(session.clone()).or_default().push(ask);
    }
    asks
}

/// Who allows a question without saying more takes what is offered first.
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
