//! The answers of the model. The language is that of `ModelServer`, so that the same prompt works
//! on this server and on a real one. Supported are `think`, `say`, `call`, `usage`, `finish`,
//! `status`, `once`, `wait`, `hang` and `overflow`.

use std::time::Duration;

use serde_json::{Value, json};

const NOTHING_LEFT: &str = "say nothing is left to say";

/// The answers in a prompt, in order.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix('@')).map(str::to_owned).collect()
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Think(String),
    Say(String),
    Wait(Duration),
    /// Waits until a test continues it.
    Hang,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) input: Value,
}

/// The model server refuses the request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) once: bool,
    pub(super) retry_after: Option<Duration>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) refusal: Option<Refusal>,
    pub(super) overflow: bool,
    pub(super) steps: Vec<Step>,
    pub(super) calls: Vec<Call>,
    /// Input, output and reasoning tokens.
    pub(super) usage: Option<[u64; 3]>,
    pub(super) finish: Option<String>,
}

impl Answer {
    pub(super) fn nth(lines: &[String], turn: usize) -> Answer {
        Answer::parse(lines.get(turn).map_or(NOTHING_LEFT, String::as_str))
    }

    fn parse(line: &str) -> Answer {
        let mut answer = Answer::default();
        for step in line.split(" | ") {
            let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
            match verb {
                "think" => answer.steps.push(Step::Think(rest.to_owned())),
                "say" => answer.steps.push(Step::Say(rest.to_owned())),
                "wait" => answer.steps.push(Step::Wait(millis(rest))),
                "hang" => answer.steps.push(Step::Hang),
                "call" => answer.calls.push(call(rest)),
                "usage" => answer.usage = Some(usage(rest)),
                "finish" => answer.finish = Some(rest.to_owned()),
                "status" => answer.refusal = Some(refusal(rest, false)),
                "once" => answer.refusal = Some(refusal(rest, true)),
                "overflow" => answer.overflow = true,
                unknown => panic!("no step is called `{unknown}`"),
            }
        }
        answer
    }

    /// The concatenated text.
    pub(super) fn said(&self) -> String {
        let said = self.steps.iter().filter_map(|step| match step {
            Step::Say(text) => Some(text.as_str()),
            Step::Think(_) | Step::Wait(_) | Step::Hang => None,
        });
        said.collect()
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn call(text: &str) -> Call {
    let (tool, input) = text.split_once(' ').unwrap_or((text, "{}"));
    let input = serde_json::from_str(input).unwrap_or_else(|_| json!({}));
    Call { tool: tool.to_owned(), input }
}

fn usage(text: &str) -> [u64; 3] {
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
    [0; 3].map(|_| numbers.next().unwrap_or(0))
}

fn refusal(text: &str, once: bool) -> Refusal {
    let mut words = text.split_whitespace();
    let status = words.next().unwrap().parse().unwrap();
    let retry_after = words.find_map(|word| word.strip_prefix("retry-after-ms=")).map(millis);
    Refusal { status, once, retry_after }
}
