//! Parser of the scripts that drive fake agents: lines that begin with `@`, anywhere in a prompt. A prompt
//! without any is answered with `done: ` and its first line.
//!
//! ```text
//! @think 20                 wait 20 ms before anything is said
//! @tool read {"path":"a"}   call a tool
//! @slow-tool bash 50        call a tool that takes 50 ms
//! @print read 5000          call a tool whose result has 5000 characters
//! @stream 3 10              say three words, 10 ms apart
//! @say the answer           end with this text
//! @then another answer      end with this text when a later prompt has no lines of its own
//! @fail overloaded          end with an error
//! @retry 50 overloaded      try again for 50 ms
//! @hang                     never end by itself
//! @ask bash rm -rf x        ask for a permission, go on when allowed, stop when refused
//! @todo write tests         leave a todo open
//! @todo-once write tests    leave a todo open that the next prompt closes
//! @compact                  compact the conversation during a run
//! @idle-twice               be idle once before the answer is finished
//! @lose-event               end without an event
//! @abort                    be aborted by a user of the host
//! @delete                   be deleted by a user of the host
//! @spend 100 0.5            use tokens and money
//! @repeat 20 read           call the same tool with the same arguments 20 times
//! @panic                    make the adapter panic whenever it looks here
//! ```

use std::time::Duration;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Think(Duration),
    Tool { name: String, input: Value, takes: Duration, output: String },
    Stream { words: u32, pause: Duration },
    Say(String),
    Then(String),
    Fail(String),
    Retry { takes: Duration, why: String },
    Hang,
    Ask { tool: String, what: String },
    Todo { text: String, once: bool },
    Compact,
    IdleTwice,
    LoseEvent,
    Abort,
    Delete,
    Spend { tokens: u64, cost: f64 },
    Panic,
}

pub(super) fn parse(prompt: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in prompt.lines() {
        let Some(order) = line.trim().strip_prefix('@') else { continue };
        let (word, rest) = order.split_once(' ').unwrap_or((order, ""));
        steps.extend(step(word, rest.trim()));
    }
    let ends = |step: &Step| {
        matches!(step, Step::Say(_) | Step::Fail(_) | Step::Hang | Step::Abort | Step::Delete)
    };
    if !steps.iter().any(ends) {
        let line = prompt.lines().find(|line| !line.trim().starts_with('@')).unwrap_or_default();
        steps.push(Step::Say(format!("done: {}", line.trim())));
    }
    steps
}

/// One directive may be several steps. Unknown directives are ignored: prompts are free text.
fn step(word: &str, rest: &str) -> Vec<Step> {
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let millis = |text: &str| Duration::from_millis(number(text));
    let one = |step| vec![step];
    let tool = |name: &str, input, takes| Step::Tool {
        name: name.to_owned(),
        input,
        takes,
        output: "ok".to_owned(),
    };
    match word {
        "think" => one(Step::Think(millis(first))),
        "tool" => {
            let input = serde_json::from_str(second).unwrap_or(Value::Null);
            one(tool(first, input, Duration::ZERO))
        }
        "slow-tool" => one(tool(first, Value::Null, millis(second))),
        "print" => one(Step::Tool {
            name: first.to_owned(),
            input: Value::Null,
            takes: Duration::ZERO,
            output: "x".repeat(number(second).min(1_000_000) as usize),
        }),
        "repeat" => {
            let call = tool(second, Value::Null, Duration::ZERO);
            vec![call; number(first).min(1_000) as usize]
        }
        "stream" => {
            one(Step::Stream { words: number(first).min(10_000) as u32, pause: millis(second) })
        }
        "say" => one(Step::Say(rest.to_owned())),
        "then" => one(Step::Then(rest.to_owned())),
        "fail" => one(Step::Fail(rest.to_owned())),
        "retry" => one(Step::Retry { takes: millis(first), why: second.to_owned() }),
        "hang" => one(Step::Hang),
        "ask" => one(Step::Ask { tool: first.to_owned(), what: second.to_owned() }),
        "todo" => one(Step::Todo { text: rest.to_owned(), once: false }),
        "todo-once" => one(Step::Todo { text: rest.to_owned(), once: true }),
        "compact" => one(Step::Compact),
        "idle-twice" => one(Step::IdleTwice),
        "lose-event" => one(Step::LoseEvent),
        "abort" => one(Step::Abort),
        "delete" => one(Step::Delete),
        "spend" => {
            let cost = second.parse().unwrap_or(0.0);
            one(Step::Spend { tokens: number(first), cost })
        }
        "panic" => one(Step::Panic),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_without_directives_is_answered_with_its_first_line() {
        assert_eq!(parse("look\nthere"), [Step::Say("done: look".into())]);
        let steps = parse("look\n @think 5\n@nonsense 7\n");
        assert_eq!(steps, [Step::Think(Duration::from_millis(5)), Step::Say("done: look".into())]);
    }

    #[test]
    fn directives_run_in_the_order_they_are_written() {
        let steps = parse("@tool read {\"path\":\"a\"}\n@spend 100 0.5\n@fail not today");
        assert_eq!(
            steps,
            [
                Step::Tool {
                    name: "read".into(),
                    input: serde_json::json!({"path": "a"}),
                    takes: Duration::ZERO,
                    output: "ok".into(),
                },
                Step::Spend { tokens: 100, cost: 0.5 },
                Step::Fail("not today".into()),
            ]
        );
    }
}
