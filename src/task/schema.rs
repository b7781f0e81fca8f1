//! Results that fit a JSON Schema (O7): what a schema has to be, how the agent is told of it, and what becomes of
//! an answer. Pure, and without a network: a `$ref` that leads out of the schema is refused with it.
//!
//! Patterns are matched by an engine without backtracking, so no answer makes the check slow.

use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::text::clip;

/// In bytes, as JSON without white space.
pub const MAX_SCHEMA: usize = 65_536;

/// How many answers an agent may give before the run fails.
pub const MOST_ANSWERS: u32 = 3;

/// How much is said of what is wrong, with a schema or an answer.
const MOST_PROBLEMS: usize = 10;
const MOST_OF_PROBLEM: usize = 300;

/// A valid schema, as JSON. Kept as text, which is what rows have: it is parsed when an answer is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(Arc<str>);

/// What becomes of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The JSON of the answer.
    Fits(String),
    /// It does not fit: this is said to the agent.
    AskAgain(String),
    /// It does not fit, and neither did those before it: the error of the run.
    GivesUp(String),
}

impl Schema {
    /// A schema that a caller passed, or what is wrong with it. One that came as a string is parsed: models
    /// often write objects that way.
    pub fn new(schema: Value) -> Result<Schema, String> {
        let schema = match schema {
            Value::String(text) => {
                serde_json::from_str(&text).map_err(|error| format!("it is not JSON: {error}"))?
            }
            other => other,
        };
        if !schema.is_object() {
            return Err("it must be an object".to_owned());
        }
        let text = schema.to_string();
        if text.len() > MAX_SCHEMA {
            return Err(format!("it has {} bytes, at most {MAX_SCHEMA}", text.len()));
        }
        // Built once to see that it can be: a schema that is wrong is refused at the launch, not after the
        // agent has worked for an hour.
        validator(&schema)?;
        Ok(Schema(text.into()))
    }

    /// As it was stored.
    pub fn from_text(text: &str) -> Schema {
        Schema(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the agent is told at the end of its prompt.
    pub fn instructions(&self) -> String {
        format!(
            "Your final answer is read by a program: it must be JSON that fits this JSON Schema, and \
             nothing else.\n{}",
            self.0
        )
    }

    /// Judges an answer; `before` are those of the same run that did not fit.
    pub fn judge(&self, answer: &str, before: u32) -> Fit {
        let why = match self.check(answer) {
            Ok(json) => return Fit::Fits(json),
            Err(why) => why,
        };
        match before + 1 {
            tries if tries >= MOST_ANSWERS => Fit::GivesUp(format!(
                "none of {tries} answers fits the schema; the last one: {why}"
            )),
            _ => Fit::AskAgain(format!(
                "Your answer does not fit the JSON Schema that was asked for:\n{why}\n\nGive your \
                 whole final answer again, as JSON that fits the schema and nothing else.\n{}",
                self.0
            )),
        }
    }

    fn check(&self, answer: &str) -> Result<String, String> {
        let unreadable = |_| "the schema cannot be read".to_owned();
        let schema: Value = serde_json::from_str(&self.0).map_err(unreadable)?;
        let json = json_of(answer);
        let value: Value =
            serde_json::from_str(json).map_err(|error| format!("- it is not JSON: {error}"))?;
        let validator = validator(&schema)?;
        let mut problems: Vec<String> = validator
            .iter_errors(&value)
            // One more than is shown, to know whether there are more.
            .take(MOST_PROBLEMS + 1)
            .map(|error| {
                let place = match error.instance_path().as_str() {
                    "" => String::new(),
                    path => format!("at {}: ", clip(path, MOST_OF_PROBLEM)),
                };
                format!("- {place}{}", clip(&error.to_string(), MOST_OF_PROBLEM))
            })
            .collect();
        if problems.is_empty() {
            // The agent's own text and not the parsed value: numbers beyond 64 bits would change.
            return Ok(json.to_owned());
        }
        if problems.len() > MOST_PROBLEMS {
            problems.truncate(MOST_PROBLEMS);
            problems.push("- and more".to_owned());
        }
        Err(problems.join("\n"))
    }
}

fn validator(schema: &Value) -> Result<Validator, String> {
    // Schemas come from models: a `$ref` must not make the daemon read files or URLs, and a pattern must
    // not keep a thread busy for ever, as it could with an engine that backtracks.
    let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
    options.build(schema).map_err(|error| clip(&error.to_string(), MOST_OF_PROBLEM))
}

/// The JSON in an answer: all of it, or its only fenced block that is marked as JSON.
fn json_of(answer: &str) -> &str {
    const OPENS: &str = "```json";
    const CLOSES: &str = "\n```";
    let answer = answer.trim();
    let mut blocks = answer.match_indices(OPENS).map(|(at, _)| at);
    // With two blocks it is not known which one is the answer, so neither is taken and the agent is asked.
    let (Some(at), None) = (blocks.next(), blocks.next()) else { return answer };
    let is_at_start_of_line = at == 0 || answer[..at].ends_with('\n');
    let inside = &answer[at + OPENS.len()..];
    match inside.find(CLOSES) {
        // JSON has no line that begins with a fence: strings in it have no line breaks.
        Some(end) if is_at_start_of_line => inside[..end].trim(),
        Some(_) | None => answer,
    }
}

/// As the object that it is.
impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let schema: Value = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        schema.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Schema, D::Error> {
        Ok(Schema(Value::deserialize(deserializer)?.to_string().into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::new(json!({
            "type": "object",
            "properties": { "n": { "type": "integer" }, "name": { "type": "string" } },
            "required": ["n"],
        }))
        .unwrap()
    }

    #[test]
    fn an_answer_fits_as_it_is_or_as_its_only_fenced_block() {
        let fits = |answer: &str, json: &str| {
            assert_eq!(schema().judge(answer, 2), Fit::Fits(json.into()), "{answer}");
        };
        fits("{\"n\": 1}", "{\"n\": 1}");
        fits(" {\"n\":1}\n", "{\"n\":1}");
        fits("```json\n{\"n\": 1}\n```", "{\"n\": 1}");
        fits("Here it is:\n```json\n{\"n\": 1}\n```\nDone.", "{\"n\": 1}");
        fits("{\"n\": 1, \"name\": \"```json\"}", "{\"n\": 1, \"name\": \"```json\"}");
        for answer in ["n is 1", "", "```json\n{\"n\": 1}\n```\n```json\n{\"n\": 2}\n```", "[1]"] {
            assert!(matches!(schema().judge(answer, 0), Fit::AskAgain(_)), "{answer}");
        }
    }

    #[test]
    fn an_answer_that_does_not_fit_is_asked_for_again_with_the_errors_up_to_three_times() {
        let Fit::AskAgain(text) = schema().judge("{\"n\": \"one\", \"name\": 2}", 1) else {
            panic!("not asked again");
        };
        assert!(text.contains("- at /n: \"one\" is not of type \"integer\"\n"), "{text}");
        assert!(text.contains("- at /name: 2 is not of type \"string\"\n"), "{text}");
        assert!(text.ends_with(schema().as_str()), "{text}");
        let given_up = Fit::GivesUp(
            "none of 3 answers fits the schema; the last one: - \"n\" is a required property"
                .into(),
        );
        assert_eq!(schema().judge("{}", 2), given_up);
    }

    #[test]
    fn the_feedback_on_an_answer_is_bounded_in_length() {
        let numbers = Schema::new(json!({ "items": { "type": "number", "maximum": 1 } })).unwrap();
        let long = json!(vec!["x".repeat(10_000); 1_000]).to_string();
        let Fit::AskAgain(text) = numbers.judge(&long, 0) else { panic!("not asked again") };
        assert!(text.contains("\n- and more\n") && text.chars().count() < 5_000, "{}", text.len());
    }

    #[test]
    fn a_schema_that_cannot_be_used_is_refused() {
        let refused = |schema: Value, text: &str| {
            let why = Schema::new(schema).unwrap_err();
            assert!(why.contains(text), "{why}");
        };
        refused(json!(true), "it must be an object");
        refused(json!([]), "it must be an object");
        refused(json!("{"), "it is not JSON: ");
        refused(json!({ "type": "nothing" }), "nothing");
        refused(json!({ "properties": 3 }), "3 is not of type");
        refused(json!({ "pattern": "(" }), "\"(\"");
        refused(json!({ "$ref": "https://example.org/schema.json" }), "example.org");
        refused(json!({ "$ref": "file:///etc/passwd" }), "passwd");
        refused(json!({ "$ref": "#/$defs/nowhere" }), "nowhere");
        refused(json!({ "description": "x".repeat(MAX_SCHEMA) }), "bytes, at most 65536");
        let schema = json!({ "type": "object" });
        assert_eq!(Schema::new(json!(schema.to_string())), Schema::new(schema));
    }

    #[test]
    fn recursive_schemas_and_backtracking_patterns_do_not_hang_the_check() {
        let circles = [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" },
                "b": { "$ref": "#/$defs/a" } } }),
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/b" }] },
                "b": { "not": { "$ref": "#/$defs/a" } } } }),
        ];
        for circle in circles {
            // Whatever it means: it has an answer.
            if let Ok(schema) = Schema::new(circle) {
                schema.judge("{\"a\": [1]}", 0);
            }
        }
        let backtracks = Schema::new(json!({ "pattern": "^(a+)+$" })).unwrap();
        let long = json!(format!("{}b", "a".repeat(100_000))).to_string();
        assert!(matches!(backtracks.judge(&long, 0), Fit::AskAgain(_)));
        let deep = Schema::new(json!({ "items": { "$ref": "#" } })).unwrap();
        let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(deep.judge(&nested, 0), Fit::AskAgain(_)));
    }

    #[test]
    fn a_schema_is_serialized_as_a_json_object() {
        let value = serde_json::to_value(schema()).unwrap();
        assert!(value["properties"]["n"].is_object());
        assert_eq!(serde_json::from_value::<Schema>(value).unwrap(), schema());
    }
}
