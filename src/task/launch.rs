//! Validation of launch calls: turns the arguments of a tool, a request or a command line into a [`Plan`]
//! (fresh, forked or resume), or says which argument is wrong. Pure. Every caller goes through here, so
//! limits are checked and worded once.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::view::optional_budget;
use super::{Budget, LaunchMode, Order, Schema};

/// Limits in characters, not bytes: what a user counts.
pub const MAX_DESCRIPTION: usize = 500;
pub const MAX_PROMPT: usize = 1_000_000;
pub const MAX_NAME: usize = 200;

/// The limits of the blocking `Task`, from the specification (O6).
pub const MAX_BLOCKING_DESCRIPTION: usize = 200;
pub const MAX_BLOCKING_PROMPT: usize = 10_000;

/// The arguments of the launching tool, as they came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arguments {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub fork: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(with = "optional_budget", skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// A JSON Schema that the result has to fit (O7).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

/// What a launch call asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    Fresh(TaskSpec),
    Forked(TaskSpec),
    /// `ignored` names the arguments that were given and do not count in a resume: the caller is told, not
    /// refused, because models tend to fill in every argument.
    Resume {
        task: String,
        prompt: String,
        ignored: Vec<&'static str>,
    },
}

/// A new task as it is to be launched; validated and trimmed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskSpec {
    pub order: Order,
    /// The batch it is to join, if any.
    pub batch: Option<String>,
    /// Where it is to work, if not where its caller does.
    pub host: Option<String>,
}

impl From<Order> for TaskSpec {
    fn from(order: Order) -> TaskSpec {
        TaskSpec { order, ..TaskSpec::default() }
    }
}

/// Which argument is wrong, by its name in the tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "`fork` and `resume` are mutually exclusive: fork starts a new task with this conversation's \
         context, resume goes on with an existing task; pass one of them"
    )]
    ForkWithResume,
    #[error("`{0}` is required and must not be empty")]
    Missing(&'static str),
    #[error("`{name}` is too long: {length} characters, at most {most}")]
    TooLong { name: &'static str, length: usize, most: usize },
    #[error("`{0}` must not contain control characters")]
    ControlCharacters(&'static str),
    #[error("`budget.{0}` must be a positive number")]
    BadBudget(&'static str),
    #[error("`schema` is not a JSON Schema that can be used: {0}")]
    BadSchema(String),
}

/// Validates the arguments of a launch.
pub fn plan(arguments: Arguments) -> Result<Plan, Refused> {
    // Without `..`: a new argument does not compile before it is decided what it means in a resume.
    let Arguments { description, prompt, agent, fork, resume, batch, model, budget, host, schema } =
        arguments;
    if let Some(task) = resume {
        // Refused and not ignored: with either reading, the task would lack the context that the caller means.
        if fork {
            return Err(Refused::ForkWithResume);
        }
        let given = [
            ("description", description.is_some()),
            ("agent", agent.is_some()),
            ("batch", batch.is_some()),
            ("model", model.is_some()),
            ("budget", budget.is_some()),
            ("host", host.is_some()),
            ("schema", schema.is_some()),
        ];
        let ignored = given.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
        return Ok(Plan::Resume {
            task: name("resume", Some(task))?,
            prompt: prompt_text(prompt)?,
            ignored,
        });
    }
    // The prompt first: `asyncagents run ''` makes its description from the prompt, and the error has to
    // name what the user left empty.
    let prompt = prompt_text(prompt)?;
    let description = one_line(&description.unwrap_or_default(), MAX_DESCRIPTION)?;
    let agent = name("agent", agent)?;
    let batch = batch.map(|batch| name("batch", Some(batch))).transpose()?;
    let model = model.map(|model| name("model", Some(model))).transpose()?;
    let budget = positive(budget.unwrap_or_default())?;
    let host = host.map(|host| name("host", Some(host))).transpose()?;
    let schema = schema_of(schema)?;
    // A plan is always for the background; the blocking `Task` has fewer arguments and `plan_blocking`.
    let mode = LaunchMode::Background;
    let order = Order { description, prompt, agent, model, budget, mode, schema };
    let spec = TaskSpec { order, batch, host };
    Ok(if fork { Plan::Forked(spec) } else { Plan::Fresh(spec) })
}

/// Description and prompt of the blocking `Task` (O6): both trimmed, not empty and not too long.
pub fn plan_blocking(description: &str, prompt: &str) -> Result<(String, String), Refused> {
    let description = one_line(description, MAX_BLOCKING_DESCRIPTION)?;
    let prompt = prompt_text(Some(prompt.trim().to_owned()))?;
    Ok((description, sized("prompt", prompt, MAX_BLOCKING_PROMPT)?))
}

/// The schema of a launch, if it has one.
pub fn schema_of(schema: Option<Value>) -> Result<Option<Schema>, Refused> {
    schema.map(Schema::new).transpose().map_err(Refused::BadSchema)
}

/// A description is one line in every list and notice, so line breaks and control characters in it become
/// spaces instead of an error.
fn one_line(text: &str, most: usize) -> Result<String, Refused> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    sized("description", line, most)
}

/// A prompt, unchanged: its white space may matter.
pub fn prompt_text(text: Option<String>) -> Result<String, Refused> {
    let text = text.unwrap_or_default();
    if text.trim().is_empty() {
        return Err(Refused::Missing("prompt"));
    }
    if text.contains('\0') {
        return Err(Refused::ControlCharacters("prompt"));
    }
    sized("prompt", text, MAX_PROMPT)
}

/// A message to a task, unchanged like a prompt and with the same limit: it may become one.
pub fn message_text(text: String) -> Result<String, Refused> {
    if text.trim().is_empty() {
        return Err(Refused::Missing("message"));
    }
    if text.contains('\0') {
        return Err(Refused::ControlCharacters("message"));
    }
    sized("message", text, MAX_PROMPT)
}

/// The name of an agent, a model, a batch, a host or a task. Control characters are refused: names are
/// looked up and shown as they are, and one with an escape sequence in it could pass for another.
fn name(field: &'static str, text: Option<String>) -> Result<String, Refused> {
    let text = text.unwrap_or_default().trim().to_owned();
    if text.chars().any(char::is_control) {
        return Err(Refused::ControlCharacters(field));
    }
    sized(field, text, MAX_NAME)
}

fn sized(name: &'static str, text: String, most: usize) -> Result<String, Refused> {
    match text.chars().count() {
        0 => Err(Refused::Missing(name)),
        length if length > most => Err(Refused::TooLong { name, length, most }),
        _ => Ok(text),
    }
}

/// A limit of zero is reached before the first step, so it would stop every task at once.
fn positive(budget: Budget) -> Result<Budget, Refused> {
    let zero = |limit: Option<u64>| limit == Some(0);
    if zero(budget.wall_seconds) {
        return Err(Refused::BadBudget("wall_seconds"));
    }
    if zero(budget.tokens) {
        return Err(Refused::BadBudget("tokens"));
    }
    if zero(budget.tool_calls) {
        return Err(Refused::BadBudget("tool_calls"));
    }
    if budget.cost.is_some_and(|cost| cost.is_nan() || cost <= 0.0) {
        return Err(Refused::BadBudget("cost"));
    }
    Ok(budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            description: Some("  find\n the\tauth code ".into()),
            prompt: Some("Look for it.\n".into()),
            agent: Some("explore".into()),
            ..Arguments::default()
        }
    }

    fn wanted() -> TaskSpec {
        TaskSpec::from(Order {
            description: "find the auth code".into(),
            prompt: "Look for it.\n".into(),
            agent: "explore".into(),
            model: None,
            budget: Budget::default(),
            mode: LaunchMode::Background,
            schema: None,
        })
    }

    #[test]
    fn a_launch_is_fresh_forked_or_a_resume() {
        assert_eq!(plan(arguments()), Ok(Plan::Fresh(wanted())));
        assert_eq!(plan(Arguments { fork: true, ..arguments() }), Ok(Plan::Forked(wanted())));
        let resume = Arguments { resume: Some("ab12c3".into()), ..arguments() };
        assert_eq!(
            plan(resume),
            Ok(Plan::Resume {
                task: "ab12c3".into(),
                prompt: "Look for it.\n".into(),
                ignored: vec!["description", "agent"],
            })
        );
    }

    #[test]
    fn fork_with_resume_is_refused() {
        let both = Arguments { fork: true, resume: Some("ab12c3".into()), ..arguments() };
        assert_eq!(plan(both), Err(Refused::ForkWithResume));
    }

    #[test]
    fn empty_oversized_and_hostile_arguments_are_refused() {
        let check = |arguments: Arguments, refused: Refused| {
            assert_eq!(plan(arguments), Err(refused));
        };
        let long = |n: usize| Some("é".repeat(n));
        check(Arguments { prompt: None, ..arguments() }, Refused::Missing("prompt"));
        check(Arguments { prompt: Some(" \n ".into()), ..arguments() }, Refused::Missing("prompt"));
        check(
            Arguments { description: Some("\n".into()), ..arguments() },
            Refused::Missing("description"),
        );
        check(
            Arguments { description: Some("".into()), prompt: Some("".into()), ..arguments() },
            Refused::Missing("prompt"),
        );
        check(Arguments { agent: Some(" ".into()), ..arguments() }, Refused::Missing("agent"));
        check(Arguments { resume: Some("".into()), ..arguments() }, Refused::Missing("resume"));
        check(
            Arguments { description: long(501), ..arguments() },
            Refused::TooLong { name: "description", length: 501, most: 500 },
        );
        check(
            Arguments { prompt: long(1_000_001), ..arguments() },
            Refused::TooLong { name: "prompt", length: 1_000_001, most: 1_000_000 },
        );
        check(
            Arguments { agent: Some("a\u{1b}[2J".into()), ..arguments() },
            Refused::ControlCharacters("agent"),
        );
        check(
            Arguments { prompt: Some("a\0b".into()), ..arguments() },
            Refused::ControlCharacters("prompt"),
        );
        let budget = Some(Budget { cost: Some(f64::NAN), ..Budget::default() });
        check(Arguments { budget, ..arguments() }, Refused::BadBudget("cost"));
        let budget = Some(Budget { tokens: Some(0), ..Budget::default() });
        check(Arguments { budget, ..arguments() }, Refused::BadBudget("tokens"));
        assert!(
            plan(Arguments { description: long(500), prompt: long(1_000_000), ..arguments() })
                .is_ok()
        );
    }
}
