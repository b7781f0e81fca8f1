//! Google's `streamGenerateContent`. Its quirks: calls have no ids, and results are matched by order; from
//! Gemini 3 on a call is refused if it comes back without its signature; only a part of JSON Schema is
//! accepted; the key goes into a header, because in the URL it would be in every log on the way.

use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Answer, AnswerPart, ChatTurn, StreamEvent, conversation, effort};
use crate::agent::model::remote::draft::{CallFragment, Draft, count, text};
use crate::agent::model::{Error, Piece, Request};
use crate::agent::tools::Spec;
use crate::transcript::{Cache, Finish, Tokens};

/// Google's documented placeholder for the signature of a call that another model made.
const UNSIGNED: &str = "skip_thought_signature_validator";
/// Prefixes of models that refuse to be asked for their thoughts.
const WITHOUT_THOUGHTS: [&str; 3] = ["gemini-1", "gemini-2.0", "gemma"];
/// The keywords of JSON Schema that are accepted; any other makes the whole request fail.
const KEYWORDS: [&str; 15] = [
    "type",
    "title",
    "description",
    "nullable",
    "enum",
    "items",
    "properties",
    "required",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
];

/// The endpoint of a model, which has the model's name in its path.
pub(super) fn url(base: &Url, model: &str) -> Option<Url> {
    let mut url = base.clone();
    let last = format!("{model}:streamGenerateContent");
    url.path_segments_mut().ok()?.pop_if_empty().push("models").push(&last);
    url.set_query(Some("alt=sse"));
    Some(url)
}

/// Google also accepts the key in the URL, where proxies would log it.
pub(super) fn headers(key: &str) -> Vec<(HeaderName, String)> {
    vec![(HeaderName::from_static("x-goog-api-key"), key.to_owned())]
}

/// The request body.
pub(super) fn body(request: &Request, by: &str) -> Value {
    let mut contents: Vec<Value> = Vec::new();
    for said in conversation(&request.messages, by) {
        match said {
            ChatTurn::User(text) => push(&mut contents, "user", vec![json!({ "text": text })]),
            ChatTurn::Answer(answer) => push_answer(&mut contents, &answer, &request.model),
        }
    }
    let mut body = json!({ "contents": contents });
    if !request.system.is_empty() {
        body["systemInstruction"] = json!({"parts": [{"text": request.system}]});
    }
    if !WITHOUT_THOUGHTS.iter().any(|family| request.model.starts_with(family)) {
        body["generationConfig"] = json!({"thinkingConfig": {"includeThoughts": true}});
    }
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request.tools.iter().map(tool).collect();
        body["tools"] = json!([{ "functionDeclarations": tools }]);
    }
    body
}

/// Appends parts, merged into the last content if it has the same role: roles must alternate.
fn push(contents: &mut Vec<Value>, role: &str, parts: Vec<Value>) {
    let last = contents.last_mut().filter(|last| last["role"] == role);
    match last.and_then(|last| last["parts"].as_array_mut()) {
        Some(before) => before.extend(parts),
        None => contents.push(json!({"role": role, "parts": parts})),
    }
}

/// Appends an answer and the results of its calls, in the order of the calls.
fn push_answer(contents: &mut Vec<Value>, answer: &Answer<'_>, model: &str) {
    let results: Vec<Value> = answer
        .calls()
        .map(|call| {
            let outcome = if call.has_failed { "error" } else { "output" };
            let response = json!({ outcome: call.result });
            json!({"functionResponse": {"name": call.name, "response": response}})
        })
        .collect();
    if results.is_empty() {
        return push(contents, "model", vec![json!({ "text": answer.text })]);
    }
    let mut parts: Vec<Value> = Vec::new();
    let mut signature = None;
    let mut is_first = true;
    for part in &answer.parts {
        match part {
            AnswerPart::Text(text) => parts.push(json!({ "text": text })),
            AnswerPart::Thought(_, seal) => signature = Some(seal.data.as_str()),
            AnswerPart::Call(call) => {
                let mut part = json!({"functionCall": {"name": call.name, "args": call.input}});
                // Of parallel calls only the first needs a signature.
                let needs_one = std::mem::take(&mut is_first) && is_strict(model);
                if let Some(signature) = signature.take().or(needs_one.then_some(UNSIGNED)) {
                    part["thoughtSignature"] = json!(signature);
                }
                parts.push(part);
            }
        }
    }
    push(contents, "model", parts);
    push(contents, "user", results);
}

/// Whether the model insists on signatures.
fn is_strict(model: &str) -> bool {
    effort::gemini(model).is_some_and(|generation| generation >= 3)
}

fn tool(spec: &Spec) -> Value {
    let mut tool = json!({"name": spec.name, "description": spec.description});
    let parameters = schema(&spec.schema);
    // A schema of an object without properties is refused, so such a tool has no schema.
    if parameters.get("properties").is_some() {
        tool["parameters"] = parameters;
    }
    tool
}

/// A schema reduced to what Gemini accepts: known keywords, one type (and `nullable`), enums of strings.
fn schema(from: &Value) -> Value {
    let Value::Object(fields) = from else { return from.clone() };
    let mut kept = Map::new();
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("type", Value::Array(types)) => {
                let is_null = |kind: &&Value| *kind == "null";
                if types.iter().any(|kind| is_null(&kind)) {
                    kept.insert("nullable".to_owned(), json!(true));
                }
                types.iter().find(|kind| !is_null(kind)).cloned().unwrap_or(json!("string"))
            }
            // An empty object of properties is refused; `tool` then leaves out the whole schema.
            ("properties", Value::Object(properties)) if properties.is_empty() => continue,
            ("properties", Value::Object(properties)) => {
                properties.iter().map(|(name, value)| (name.clone(), schema(value))).collect()
            }
            ("items", value) => schema(value),
            // Only enums of strings are accepted; without the enum the type still holds.
            ("enum", Value::Array(values)) if !values.iter().all(Value::is_string) => continue,
            (name, value) if KEYWORDS.contains(&name) => value.clone(),
            (_, _) => continue,
        };
        kept.insert(name.clone(), value);
    }
    Value::Object(kept)
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    candidates: Option<Vec<Candidate<'a>>>,
    #[serde(borrow, default, rename = "promptFeedback")]
    feedback: Option<Feedback<'a>>,
    #[serde(default, rename = "usageMetadata")]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Candidate<'a> {
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(borrow, default, rename = "finishReason")]
    finish: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    parts: Option<Vec<ContentPart<'a>>>,
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(default)]
    thought: Option<bool>,
    #[serde(borrow, default, rename = "functionCall")]
    call: Option<FunctionCall<'a>>,
    #[serde(borrow, default, rename = "thoughtSignature")]
    signature: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct FunctionCall<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Feedback<'a> {
    #[serde(borrow, default, rename = "blockReason")]
    blocked: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    #[serde(default)]
    prompt_token_count: Option<f64>,
    #[serde(default)]
    cached_content_token_count: Option<f64>,
    #[serde(default)]
    candidates_token_count: Option<f64>,
    #[serde(default)]
    thoughts_token_count: Option<f64>,
}

/// Decodes one event.
pub(super) fn event(draft: &mut Draft, data: &str) -> Result<StreamEvent, Error> {
    let event: Event<'_> = super::parse(data)?;
    if let Some(error) = event.error.filter(|error| error.get() != "null") {
        return Err(draft.reported(error));
    }
    if let Some(usage) = event.usage {
        draft.usage = Some(usage.tokens());
    }
    // The prompt itself was blocked: there will be no candidate.
    if event.feedback.is_some_and(|feedback| feedback.blocked.is_some()) {
        draft.finish = Some(Finish::ContentFilter);
    }
    let candidate = event.candidates.and_then(|candidates| candidates.into_iter().next());
    let Some(candidate) = candidate else { return Ok(StreamEvent::Pieces(Vec::new())) };
    let mut pieces = Vec::new();
    for part in candidate.content.and_then(|content| content.parts).unwrap_or_default() {
        let said = part.text.and_then(text);
        pieces.extend(match part.thought {
            Some(true) => said.map(Piece::Thought),
            Some(false) | None => said.map(Piece::Text),
        });
        if let Some(call) = part.call {
            // Always a whole call, never a fragment: no index, and the name starts another one.
            draft.add_call(CallFragment {
                index: None,
                id: call.id.and_then(text).unwrap_or_default(),
                name: call.name.and_then(text).unwrap_or_default(),
                arguments: call.args.map(RawValue::get).unwrap_or_default().to_owned(),
                signature: part.signature.and_then(text).unwrap_or_default(),
            })?;
        }
    }
    if let Some(reason) = candidate.finish.and_then(text) {
        draft.finish = Some(finish(&reason)?);
    }
    Ok(StreamEvent::Pieces(pieces))
}

fn finish(word: &str) -> Result<Finish, Error> {
    Ok(match word {
        "STOP" => Finish::Stop,
        "MAX_TOKENS" => Finish::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
            Finish::ContentFilter
        }
        // The model wrote a call that the server could not parse; a retry mostly helps.
        "MALFORMED_FUNCTION_CALL" => {
            let message = "the model made a call that cannot be read".to_owned();
            return Err(Error::Busy { message, retry_after: None });
        }
        other => Finish::Other(other.to_owned()),
    })
}

impl Usage {
    /// Google counts cached tokens as part of the prompt (we do not), and thoughts separately (as we do).
    fn tokens(&self) -> Tokens {
        let prompt = count(self.prompt_token_count);
        let read = count(self.cached_content_token_count).min(prompt);
        Tokens {
            input: prompt - read,
            output: count(self.candidates_token_count),
            reasoning: count(self.thoughts_token_count),
            cache: Cache { read, write: 0 },
        }
    }
}
