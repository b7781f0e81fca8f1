//! The messages of a task's session as text, cut to what the caller wants to see.

use serde::Deserialize;

use crate::transcript::{Message, Part, Role};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    include_thinking: bool,
    include_tool_results: bool,
    since_message_id: Option<String>,
    message_limit: Option<usize>,
    thinking_max_chars: Option<usize>,
}

pub(super) fn render(messages: &str, shown: &Shown) -> String {
    let messages: Vec<Message> = match serde_json::from_str(messages) {
        Ok(messages) => messages,
        Err(error) => return format!("[the host's messages cannot be read: {error}]"),
    };
    let after = shown.since_message_id.as_ref().and_then(|since| {
        messages.iter().position(|message| message.info.id == *since).map(|at| at + 1)
    });
    let messages = &messages[after.unwrap_or(0)..];
    let first = shown.message_limit.map_or(0, |limit| messages.len().saturating_sub(limit));
    let blocks: Vec<String> =
        messages[first..].iter().map(|message| block(message, shown)).collect();
    if blocks.is_empty() { "[no messages]".to_owned() } else { blocks.join("\n\n") }
}

fn block(message: &Message, shown: &Shown) -> String {
    let role = match message.info.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let mut lines = vec![format!("[{role} {}]", message.info.id)];
    for part in &message.parts {
        match part {
            Part::Text { text, .. } => lines.push(text.clone()),
            Part::Reasoning { text } if shown.include_thinking => {
                let most = shown.thinking_max_chars.unwrap_or(usize::MAX);
                lines.push(format!("[Thinking] {}", text.chars().take(most).collect::<String>()));
            }
            Part::Tool { tool, state, call } => {
                lines.push(format!("[Tool: {tool} {call}] {} {}", state.status, state.input));
                let result = state.output.as_ref().or(state.error.as_ref());
                if let Some(result) = result.filter(|_| shown.include_tool_results) {
                    lines.push(format!("[Tool result] {result}"));
                }
            }
            Part::Compaction { .. } => lines.push("[Compaction]".to_owned()),
            Part::Reasoning { .. } | Part::Other => {}
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"[
        {"info":{"id":"msg_1","role":"user","time":{"created":1}},
         "parts":[{"type":"text","text":"look"}]},
        {"info":{"id":"msg_2","role":"assistant","time":{"created":2}},"parts":[
          {"type":"reasoning","text":"hmmm"},{"type":"step-start"},
          {"type":"tool","callID":"c1","tool":"read",
           "state":{"status":"completed","input":{"path":"a"},"output":"text of a"}}]},
        {"info":{"id":"msg_3","role":"assistant","time":{"created":3}},
         "parts":[{"type":"text","text":"found"}]}]"#;

    fn check(shown: Shown, expected: &str) {
        assert_eq!(render(MESSAGES, &shown), expected);
    }

    #[test]
    fn thinking_and_tool_results_are_left_out_unless_asked_for() {
        let plain = "[user msg_1]\nlook\n\n[assistant msg_2]\n\
             [Tool: read c1] completed {\"path\":\"a\"}\n\n[assistant msg_3]\nfound";
        check(Shown::default(), plain);
        let all = Shown {
            include_thinking: true,
            include_tool_results: true,
            thinking_max_chars: Some(2),
            since_message_id: Some("msg_1".into()),
            ..Shown::default()
        };
        let everything = "[assistant msg_2]\n[Thinking] hm\n\
             [Tool: read c1] completed {\"path\":\"a\"}\n[Tool result] text of a\n\n\
             [assistant msg_3]\nfound";
        check(all, everything);
    }

    #[test]
    fn only_the_last_messages_when_there_is_a_limit() {
        let last = Shown { message_limit: Some(1), ..Shown::default() };
        check(last, "[assistant msg_3]\nfound");
        let none = Shown { since_message_id: Some("msg_3".into()), ..Shown::default() };
        check(none, "[no messages]");
    }
}
