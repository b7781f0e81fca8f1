//! The limit: the same messages, parsed by `serde_json` into types with only the fields that a fork
//! needs. Strings are borrowed where JSON allows it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
#[expect(dead_code, reason = "what is parsed is the point, not what is read")]
pub(crate) struct Message<'a> {
    #[serde(borrow)]
    info: Info<'a>,
    #[serde(borrow)]
    parts: Vec<Part<'a>>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "as above")]
struct Info<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "as above")]
struct Part<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(rename = "callID", borrow, default)]
    call: Cow<'a, str>,
    #[serde(borrow, default)]
    tool: Cow<'a, str>,
    #[serde(borrow)]
    state: Option<State<'a>>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "as above")]
struct State<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Cow<'a, str>,
    #[serde(borrow, default)]
    error: Cow<'a, str>,
}

pub(crate) fn messages(json: &str) -> Result<Vec<Message<'_>>, serde_json::Error> {
    serde_json::from_str(json)
}
