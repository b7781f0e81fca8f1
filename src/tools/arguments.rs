//! Arguments as models send them over MCP, made to fit what a tool takes: other names for the same thing
//! count, numbers are brought into their range, and what a tool does not have is left out. Notes say so.
//! In a conversation the plugin has checked them against the schema, and a refusal is the better answer.

use serde_json::{Map, Number, Value};

use super::{Refusal, Tool};

/// What models that know other tools call ours.
const SYNONYMS: [(Tool, &str, &str); 5] = [
    (Tool::Task, "subagent_type", "agent"),
    (Tool::Task, "agent_type", "agent"),
    (Tool::Output, "taskId", "task_id"),
    (Tool::Cancel, "taskId", "task_id"),
    (Tool::Wait, "task_id", "task_ids"),
];

/// Added to every tool by a client (Gemini CLI) for its own use, and forwarded.
const NOT_MEANT_FOR_US: [&str; 1] = ["wait_for_previous"];

/// Arguments that change what an agent does or what comes of it. To go on without one would be something
/// else than what was asked for.
const NOT_TO_BE_IGNORED: [(Tool, &str); 4] = [
    (Tool::Task, "worktree"),
    (Tool::Task, "schema"),
    (Tool::Task, "node"),
    (Tool::Blocking, "schema"),
];

/// Arguments that fit, and what was done to them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fitted {
    pub(super) arguments: Map<String, Value>,
    pub(super) notes: Vec<String>,
}

/// `properties` are those that are offered under this name.
pub(super) fn fit(
    tool: Tool,
    properties: &Map<String, Value>,
    given: Map<String, Value>,
) -> Result<Fitted, Refusal> {
    let mut fitted = Fitted::default();
    let mut unknown = Vec::new();
    for (name, value) in renamed(tool, given) {
        if let Some(property) = properties.get(&name) {
            let value = fitted.within(&name, value, property)?;
            fitted.arguments.insert(name, value);
        } else if tool == Tool::Task && name == "fork" {
            // Refused below, with the reason, unless it is false.
            fitted.arguments.insert(name, value);
        } else if NOT_TO_BE_IGNORED.contains(&(tool, name.as_str())) {
            return Err(Refusal::Arguments(format!(
                "`{name}` is not available here, and the result would be another one without it; \
                 leave it out if that is what you want"
            )));
        } else if !NOT_MEANT_FOR_US.contains(&name.as_str()) {
            unknown.push(format!("`{name}`"));
        }
    }
    if !unknown.is_empty() {
        fitted.notes.push(format!("there is no argument {}; ignored", unknown.join(", ")));
    }
    Ok(fitted)
}

/// Synonyms by our names, where those are not given as well.
fn renamed(tool: Tool, mut given: Map<String, Value>) -> Map<String, Value> {
    for (of, synonym, name) in SYNONYMS {
        if of == tool
            && !given.contains_key(name)
            && let Some(value) = given.shift_remove(synonym)
        {
            let is_list = name == "task_ids" && !value.is_array();
            given.insert(name.to_owned(), if is_list { Value::Array(vec![value]) } else { value });
        }
    }
    given
}

impl Fitted {
    /// A value as its property wants it. What is not a number or an object is left to the tool itself.
    fn within(&mut self, name: &str, value: Value, property: &Value) -> Result<Value, Refusal> {
        match value {
            Value::Number(number) => Ok(self.clamped(name, number, property)),
            Value::Object(fields) => {
                // A limit that is not understood must not be a launch without one.
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

    fn clamped(&mut self, name: &str, number: Number, property: &Value) -> Value {
        let Some(given) = number.as_f64() else { return Value::Number(number) };
        let (least, most) = (property["minimum"].as_f64(), property["maximum"].as_f64());
        let taken = match (least, most) {
            (Some(least), _) if given < least => least,
            (_, Some(most)) if given > most => most,
            (_, _) if property["type"] == "integer" && given.fract() == 0.0 => given,
            (_, _) => return Value::Number(number),
        };
        if taken != given {
            let bound = if taken > given { "at least" } else { "at most" };
            self.notes.push(format!("`{name}` is {bound} {taken}; {number} was taken as that"));
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
        let fitted = fitted(tool, &given).unwrap();
        assert_eq!(Value::Object(fitted.arguments), arguments, "{given}");
        assert_eq!(fitted.notes, notes, "{given}");
    }

    fn fitted(tool: Tool, given: &Value) -> Result<Fitted, Refusal> {
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
        fit(tool, &properties, given.as_object().unwrap().clone())
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
            &["there is no argument `subagent_type`; ignored"],
        );
    }

    #[test]
    fn arguments_a_tool_does_not_have_are_ignored_with_a_note() {
        check(
            Tool::Wait,
            json!({"count": 2, "colour": "red", "wait_for_previous": true, "until": 1}),
            json!({"count": 2}),
            &["there is no argument `colour`, `until`; ignored"],
        );
        check(Tool::List, json!({"wait_for_previous": true}), json!({}), &[]);
    }

    #[test]
    fn a_limit_that_is_not_understood_is_refused() {
        let known = json!({"budget": {"tokens": 5}, "fork": false});
        check(Tool::Task, known.clone(), known, &[]);
        let unknown = json!({"budget": {"tokens": 5, "usd": 3}});
        let Err(Refusal::Arguments(why)) = fitted(Tool::Task, &unknown) else {
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
            &["`timeout` is at most 600; 3600 was taken as that"],
        );
        check(
            Tool::Wait,
            json!({"timeout": 0.5, "count": -3}),
            json!({"timeout": 1.0, "count": 1}),
            &[
                "`timeout` is at least 1; 0.5 was taken as that",
                "`count` is at least 1; -3 was taken as that",
            ],
        );
        check(Tool::Wait, json!({"count": 2.0}), json!({"count": 2}), &[]);
        check(Tool::Wait, json!({"count": 2.5}), json!({"count": 2.5}), &[]);
    }

    #[test]
    fn what_would_change_the_result_is_refused_instead_of_ignored() {
        for (tool, name) in NOT_TO_BE_IGNORED {
            let given = Map::from_iter([(name.to_owned(), json!(true))]);
            let Err(Refusal::Arguments(text)) = fit(tool, &Map::new(), given) else {
                panic!("{name} was taken");
            };
            assert!(text.starts_with(&format!("`{name}` is not available here, ")), "{text}");
        }
    }
}
