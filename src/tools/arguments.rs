//! Normalisation of the arguments that models send over MCP: synonyms are renamed, numbers are clamped to
//! their range, and unknown arguments are dropped, each with a note in the answer. A refusal would cost the
//! model another turn for what it meant anyway.
//!
//! What would change the result is refused all the same. In a conversation nothing is normalised: OpenCode has
//! checked the arguments against the schema, and a refusal is the better answer to what is left.

use serde_json::{Map, Number, Value};

use super::{Refusal, Tool};

/// Names that models know from similar tools of other programs, and ours for the same thing.
const SYNONYMS: [(Tool, &str, &str); 7] = [
    (Tool::Task, "subagent_type", "agent"),
    (Tool::Task, "agent_type", "agent"),
    (Tool::Output, "taskId", "task_id"),
    (Tool::Cancel, "taskId", "task_id"),
    (Tool::Send, "taskId", "task_id"),
    (Tool::Send, "prompt", "message"),
    (Tool::Wait, "task_id", "task_ids"),
];

/// Gemini CLI adds this to the schema of every tool for its own scheduling, and forwards it. Dropped without a
/// note, since the model did nothing wrong.
const NOT_MEANT_FOR_US: [&str; 1] = ["wait_for_previous"];

/// Arguments of other programs' tools that change what an agent does or returns. Dropping one would do
/// something else than what was asked for (work in the wrong directory, or on another machine).
const NOT_TO_BE_IGNORED: [(Tool, &str); 2] = [(Tool::Task, "worktree"), (Tool::Task, "node")];

/// Normalised arguments, and notes on what was changed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NormalizedArguments {
    pub(super) arguments: Map<String, Value>,
    pub(super) notes: Vec<String>,
}

/// `properties` are those of the schema that this tool is offered with, under the name it was called by.
pub(super) fn normalize(
    tool: Tool,
    properties: &Map<String, Value>,
    given: Map<String, Value>,
) -> Result<NormalizedArguments, Refusal> {
    let mut normalized = NormalizedArguments::default();
    let mut unknown = Vec::new();
    for (name, value) in renamed(tool, given) {
        if let Some(property) = properties.get(&name) {
            let value = normalized.within(&name, value, property)?;
            normalized.arguments.insert(name, value);
        } else if tool == Tool::Task && name == "fork" {
            // Passed on, so that the launch refuses `fork: true` with its reason: dropped, the agent would
            // start without the conversation that it was to know.
            normalized.arguments.insert(name, value);
        } else if NOT_TO_BE_IGNORED.contains(&(tool, name.as_str())) {
            return Err(Refusal::Arguments(format!(
                "`{name}` is not available here, and the result would differ without it; leave it out \
                 if that is what you want"
            )));
        } else if !NOT_MEANT_FOR_US.contains(&name.as_str()) {
            unknown.push(format!("`{name}`"));
        }
    }
    if !unknown.is_empty() {
        let ignored = unknown.join(", ");
        normalized.notes.push(format!("ignored, not an argument of this tool: {ignored}"));
    }
    Ok(normalized)
}

/// Renames synonyms, unless our own name is given as well: then ours counts, and the other one is unknown.
fn renamed(tool: Tool, mut given: Map<String, Value>) -> Map<String, Value> {
    for (of, synonym, name) in SYNONYMS {
        if of == tool
            && !given.contains_key(name)
            && let Some(value) = given.shift_remove(synonym)
        {
            // A single id becomes a list of one.
            let is_list = name == "task_ids" && !value.is_array();
            given.insert(name.to_owned(), if is_list { Value::Array(vec![value]) } else { value });
        }
    }
    given
}

impl NormalizedArguments {
    /// A value within what its property allows. What is neither a number nor an object is left to the tool.
    fn within(&mut self, name: &str, value: Value, property: &Value) -> Result<Value, Refusal> {
        match value {
            Value::Number(number) => Ok(self.clamped(name, number, property)),
            Value::Object(fields) => {
                // Objects are budgets. An unknown field is refused, not dropped: a limit with a wrong name
                // would become a launch without a limit.
                if let Some(known) = property["properties"].as_object()
                    && let Some(field) = fields.keys().find(|field| !known.contains_key(*field))
                {
                    let known: Vec<&str> = known.keys().map(String::as_str).collect();
                    return Err(Refusal::Arguments(format!(
                        "there is no `{name}.{field}`; `{name}` has: {}",
                        known.join(", ")
                    )));
                }
                Ok(Value::Object(fields))
            }
            other @ (Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_)) => {
                Ok(other)
            }
        }
    }

    /// A number within the bounds of its property, with a note when it was changed.
    fn clamped(&mut self, name: &str, number: Number, property: &Value) -> Value {
        let Some(given) = number.as_f64() else { return Value::Number(number) };
        let (least, most) = (property["minimum"].as_f64(), property["maximum"].as_f64());
        let taken = match (least, most) {
            (Some(least), _) if given < least => least,
            (_, Some(most)) if given > most => most,
            // Models write `2.0` for an integer, which serde refuses.
            (_, _) if property["type"] == "integer" && given.fract() == 0.0 => given,
            (_, _) => return Value::Number(number),
        };
        if taken != given {
            let (changed, bound) =
                if taken > given { ("raised", "minimum") } else { ("lowered", "maximum") };
            self.notes
                .push(format!("`{name}` was {changed} from {number} to its {bound}, {taken}"));
        }
        match property["type"] == "integer" {
            true => Value::from(taken as i64),
            false => Value::from(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(tool: Tool, given: Value, arguments: Value, notes: &[&str]) {
        let normalized = normalized(tool, &given).unwrap();
        assert_eq!(Value::Object(normalized.arguments), arguments, "{given}");
        assert_eq!(normalized.notes, notes, "{given}");
    }

    fn normalized(tool: Tool, given: &Value) -> Result<NormalizedArguments, Refusal> {
        let properties = json!({
            "agent": { "type": "string" },
            "task_id": { "type": "string" },
            "task_ids": { "type": "array" },
            "timeout": { "type": "number", "minimum": 1.0, "maximum": 600.0 },
            "count": { "type": "integer", "minimum": 1 },
            "budget": { "type": "object", "properties": { "tokens": { "type": "integer" } } },
        });
        let mut properties = properties.as_object().unwrap().clone();
        if tool == Tool::Wait {
            properties.remove("task_id");
        }
        normalize(tool, &properties, given.as_object().unwrap().clone())
    }

    #[test]
    fn known_synonyms_work() {
        check(Tool::Task, json!({"subagent_type": "explore"}), json!({"agent": "explore"}), &[]);
        check(Tool::Output, json!({"taskId": "a"}), json!({"task_id": "a"}), &[]);
        check(Tool::Wait, json!({"task_id": "a"}), json!({"task_ids": ["a"]}), &[]);
        check(Tool::Wait, json!({"task_id": ["a"]}), json!({"task_ids": ["a"]}), &[]);
        check(
            Tool::Task,
            json!({"agent": "explore", "subagent_type": "oracle"}),
            json!({"agent": "explore"}),
            &["ignored, not an argument of this tool: `subagent_type`"],
        );
    }

    #[test]
    fn arguments_a_tool_does_not_have_are_ignored_with_a_note() {
        check(
            Tool::Wait,
            json!({"count": 2, "colour": "red", "wait_for_previous": true, "until": 1}),
            json!({"count": 2}),
            &["ignored, not an argument of this tool: `colour`, `until`"],
        );
        check(Tool::List, json!({"wait_for_previous": true}), json!({}), &[]);
    }

    #[test]
    fn a_limit_that_is_not_understood_is_refused() {
        let known = json!({"budget": {"tokens": 5}, "fork": false});
        check(Tool::Task, known.clone(), known, &[]);
        let unknown = json!({"budget": {"tokens": 5, "usd": 3}});
        let Err(Refusal::Arguments(why)) = normalized(Tool::Task, &unknown) else {
            panic!("it was not refused");
        };
        assert_eq!(why, "there is no `budget.usd`; `budget` has: tokens");
    }

    #[test]
    fn numbers_out_of_range_are_clamped_with_a_note() {
        check(Tool::Wait, json!({"timeout": 600}), json!({"timeout": 600}), &[]);
        check(
            Tool::Wait,
            json!({"timeout": 3600}),
            json!({"timeout": 600.0}),
            &["`timeout` was lowered from 3600 to its maximum, 600"],
        );
        check(
            Tool::Wait,
            json!({"timeout": 0.5, "count": -3}),
            json!({"timeout": 1.0, "count": 1}),
            &[
                "`timeout` was raised from 0.5 to its minimum, 1",
                "`count` was raised from -3 to its minimum, 1",
            ],
        );
        check(Tool::Wait, json!({"count": 2.0}), json!({"count": 2}), &[]);
        check(Tool::Wait, json!({"count": 2.5}), json!({"count": 2.5}), &[]);
    }

    #[test]
    fn an_argument_that_would_change_the_result_is_refused_instead_of_ignored() {
        for (tool, name) in NOT_TO_BE_IGNORED {
            let given = Map::from_iter([(name.to_owned(), json!(true))]);
            let Err(Refusal::Arguments(text)) = normalize(tool, &Map::new(), given) else {
                panic!("{name} was taken");
            };
            assert!(text.starts_with(&format!("`{name}` is not available here, ")), "{text}");
        }
    }
}
