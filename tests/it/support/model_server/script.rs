//! The script language: an answer before it is encoded in a wire format.

use std::time::Duration;

use super::{Refusal, Send, event, pairs};

/// An answer, independent of the wire format.
#[derive(Default)]
pub(super) struct Script {
    pub(super) refusal: Option<Refusal>,
    /// The text of all `say` steps.
    pub(super) said: String,
    pub(super) steps: Vec<Step>,
    pub(super) ending: Ending,
    pub(super) usage: Option<Usage>,
    /// The number of requests to wait for before this answer is sent.
    pub(super) meets: Option<usize>,
    /// Headers of the response.
    pub(super) headers: Vec<(String, String)>,
}

pub(super) enum Step {
    Say(String),
    Think(String),
    /// A signature of the reasoning before it or of the call after it.
    Sign(String),
    /// Reasoning that is not shown.
    Hide(String),
    Call {
        name: String,
        arguments: String,
    },
    Wait(Duration),
}

#[derive(Default)]
pub(super) enum Ending {
    #[default]
    Usual,
    /// A finish reason in the format's own spelling.
    Finish(String),
    /// The connection is closed cleanly without a finish reason.
    Closed,
    /// The same after OpenAI's last line.
    Done,
    Cut,
    Hang,
    Garbage,
    Error(String),
}

#[derive(Clone, Copy)]
pub(super) struct Usage {
    pub(super) prompt: u64,
    pub(super) output: u64,
    pub(super) reasoning: u64,
    pub(super) cache_read: u64,
    pub(super) cache_write: u64,
}

impl Script {
    pub(super) fn parse(line: &str) -> Script {
        let mut script = Script::default();
        for step in line.split(" | ") {
            let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
            let own = || rest.to_owned();
            match verb {
                "say" => {
                    script.said.push_str(rest);
                    script.steps.push(Step::Say(own()));
                }
                "think" => script.steps.push(Step::Think(own())),
                "sign" => script.steps.push(Step::Sign(own())),
                "hide" => script.steps.push(Step::Hide(own())),
                "call" => {
                    let (name, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
                    let (name, arguments) = (name.to_owned(), arguments.to_owned());
                    script.steps.push(Step::Call { name, arguments });
                }
                "wait" => {
                    script.steps.push(Step::Wait(Duration::from_millis(rest.parse().unwrap())));
                }
                "meet" => script.meets = Some(rest.parse().unwrap()),
                "head" => script.headers = pairs(rest.split_whitespace()),
                "usage" => script.usage = Some(Usage::parse(rest)),
                "finish" => script.ending = Ending::Finish(own()),
                "status" => script.refusal = Some(Refusal::parse(rest, false)),
                "once" => script.refusal = Some(Refusal::parse(rest, true)),
                "overflow" => {
                    let code = Some("context_length_exceeded");
                    script.refusal = Some(Refusal { code, ..Refusal::parse("400", false) });
                    script.said = "This model's maximum context length is 1000 tokens.".to_owned();
                }
                "end" => script.ending = Ending::Closed,
                "done" => script.ending = Ending::Done,
                "cut" => script.ending = Ending::Cut,
                "hang" => script.ending = Ending::Hang,
                "garbage" => script.ending = Ending::Garbage,
                "error" => script.ending = Ending::Error(own()),
                unknown => panic!("no step is called `{unknown}`"),
            }
        }
        script
    }

    pub(super) fn calls(&self) -> Vec<(&str, &str)> {
        let calls = self.steps.iter().filter_map(|step| match step {
            Step::Call { name, arguments } => Some((name.as_str(), arguments.as_str())),
            Step::Say(_) | Step::Think(_) | Step::Sign(_) | Step::Hide(_) | Step::Wait(_) => None,
        });
        calls.collect()
    }

    /// The finish reason of an answer that ends normally.
    pub(super) fn finish<'a>(&'a self, text: &'a str, calls: &'a str) -> Option<&'a str> {
        match &self.ending {
            Ending::Usual if self.calls().is_empty() => Some(text),
            Ending::Usual => Some(calls),
            Ending::Finish(word) => Some(word),
            Ending::Closed
            | Ending::Done
            | Ending::Cut
            | Ending::Hang
            | Ending::Garbage
            | Ending::Error(_) => None,
        }
    }

    /// The last send of an answer that ends abnormally; only errors differ between formats.
    pub(super) fn odd_end(&self, error: impl FnOnce(&str) -> Send) -> Option<Send> {
        match &self.ending {
            Ending::Usual | Ending::Finish(_) | Ending::Closed => None,
            Ending::Done => Some(event("[DONE]")),
            Ending::Cut => Some(Send::Break),
            Ending::Hang => Some(Send::Hang),
            Ending::Garbage => Some(event("{not json}")),
            Ending::Error(json) => Some(error(json)),
        }
    }

    /// An answer that hangs before any content has not begun.
    pub(super) fn begins(&self) -> bool {
        !(matches!(self.ending, Ending::Hang) && self.steps.is_empty())
    }
}

impl Usage {
    pub(super) fn parse(numbers: &str) -> Usage {
        let numbers = numbers.split_whitespace().map(|number| number.parse().unwrap());
        let numbers = numbers.collect::<Vec<u64>>();
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let (prompt, output, reasoning) = (number(0), number(1), number(2));
        Usage { prompt, output, reasoning, cache_read: number(3), cache_write: number(4) }
    }
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

/// Splits a text into pieces of a few characters.
pub(super) fn bits_of(text: &str) -> Vec<String> {
    text.chars().collect::<Vec<_>>().chunks(5).map(|bit| bit.iter().collect()).collect()
}
