//! Notifications of the desktop, by the program `notify-send`. Text of agents is one line, cut, and without
//! the markup that some desktops would carry out.

use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::{Error, hook};
use crate::process::Variables;
use crate::quote;
use crate::text::head;

const PROGRAM: &str = "notify-send";
const LIMIT: Duration = Duration::from_secs(10);
const MOST_OF_TEXT: usize = 200;

pub struct Desktop {
    /// The whole environment of the program: `PATH` and where the session bus is.
    pub environment: Variables,
}

/// The fields of the JSON that are shown.
#[derive(Deserialize)]
struct AlertPayload {
    event: String,
    task: PayloadTask,
    permission: Option<PayloadPermission>,
}

#[derive(Deserialize)]
struct PayloadTask {
    description: String,
    error: Option<String>,
}

#[derive(Deserialize)]
struct PayloadPermission {
    what: String,
}

impl Desktop {
    pub(super) async fn show(&self, body: &str) -> Result<(), Error> {
        let (title, text) = words(serde_json::from_str(body).map_err(Error::Unreadable)?);
        let mut command = Command::new(PROGRAM);
        command.args(["--app-name=asyncagents", "--", title, &text]);
        hook::run(PROGRAM, command, &self.environment, "", LIMIT).await
    }
}

fn words(shown: AlertPayload) -> (&'static str, String) {
    let AlertPayload { event, task, permission } = shown;
    let (title, more) = match (event.as_str(), permission) {
        (_, Some(permission)) => ("Permission requested", Some(permission.what)),
        ("task.completed", None) => ("Background task completed", None),
        ("task.cancelled", None) => ("Background task cancelled", task.error),
        (_, None) => ("Background task failed", task.error),
    };
    let line = |text: &str| head(&quote::line(text), MOST_OF_TEXT).to_owned();
    let mut text = line(&task.description);
    if let Some(more) = more {
        text.push_str(&format!("\n{}", line(&more)));
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // The last one: `notify-send` decodes escapes such as `\074` in its body, after our escaping.
    (title, text.replace('\\', "\\\\"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_of_agents_is_shown_without_markup_and_control_characters() {
        let check = |json: serde_json::Value, title: &str, text: &str| {
            assert_eq!(words(serde_json::from_value(json).unwrap()), (title, text.to_owned()));
        };
        let task = json!({ "description": "a <b>b</b> &", "error": "no\u{1b}[2J" });
        let of = |event: &str| json!({ "event": event, "task": task });
        let name = "a &lt;b&gt;b&lt;/b&gt; &amp;";
        check(of("task.completed"), "Background task completed", name);
        check(of("task.error"), "Background task failed", &format!("{name}\nno\\\\x1b[2J"));
        check(of("task.cancelled"), "Background task cancelled", &format!("{name}\nno\\\\x1b[2J"));
        let asked = json!({
            "event": "permission.requested", "task": { "description": "look" },
            "permission": { "id": "per_1", "what": "x".repeat(300) },
        });
        check(asked, "Permission requested", &format!("look\n{}", "x".repeat(200)));
    }
}
