//! The tools with which the suite tests the tasks extension. Each one is a call of our own `Task`
//! or `asyncagents_wait`, through our own handler and a real daemon whose agents follow the scripts
//! in their prompts: handles, states and answers are the ones that our clients get.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, InputRequiredResult, InputResponses,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::{text, typed};

pub(super) const NAMES: [&str; 7] = [
    "greet",
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
];

/// Calls one of these tools; `None` for any other name.
pub(super) async fn call(
    ours: &impl ServerHandler,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
    let word = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
    let script = match request.name.as_ref() {
        "greet" => return Some(complete(&format!("Hello, {}!", word("name")))),
        "slow_compute" => {
            let seconds = arguments["seconds"].as_f64().unwrap_or_default();
            format!("@think {:.0}\n@say computed", seconds * 1000.0)
        }
        "failing_job" | "protocol_error_job" => {
            if let Err(error) = takes_tasks(context) {
                return Some(Err(error));
            }
            "@think 500\n@fail it is meant to fail".to_owned()
        }
        "confirm_delete" => format!("@ask bash rm {}\n@say deleted", word("filename")),
        "multi_input" => return Some(two_questions(ours, context).await),
        "test_tool_with_task" => match name_in(request.input_responses.as_ref()) {
            None => return Some(ask_for_the_name()),
            Some(name) => format!("@say Hello, {name}!"),
        },
        _ => return None,
    };
    let errand = json!({"description": "fixture", "prompt": script});
    Some(forward(ours, "Task", errand, context).await)
}

/// Translates answers into the values of our own forms; the suite sends `confirm` for all of its
/// own.
pub(super) fn translate(responses: InputResponses) -> InputResponses {
    let translated = |mut response: Value| {
        if response["content"]["confirm"] == true {
            response["content"] = json!({"answer": "allow"});
        }
        response
    };
    responses.into_iter().map(|(ask, response)| (ask, translated(response))).collect()
}

async fn forward(
    ours: &impl ServerHandler,
    tool: &'static str,
    arguments: Value,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let request = CallToolRequestParams::new(tool).with_arguments(typed(arguments)?);
    ours.call_tool(request, context.clone()).await
}

/// Two agents that ask for a permission each, and one call that waits for both.
async fn two_questions(
    ours: &impl ServerHandler,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let mut ids = Vec::new();
    for n in 1..=2 {
        let prompt = format!("@ask bash rm {n}\n@say deleted {n}");
        let order = json!({"description": "fixture", "prompt": prompt, "agent": "general"});
        let launched = forward(ours, "asyncagents_task", order, context).await?;
        let CallToolResponse::Complete(launched) = launched else {
            return Err(ErrorData::internal_error("a launch is answered at once", None));
        };
        let answer = serde_json::to_value(&launched).unwrap_or_default();
        let lines = answer["content"][0]["text"].as_str().unwrap_or_default().lines();
        // The last id: notices of earlier tasks precede the answer.
        let id = lines.filter_map(|line| line.strip_prefix("Task ID: ")).next_back();
        ids.push(id.unwrap_or_default().to_owned());
    }
    forward(ours, "asyncagents_wait", json!({"task_ids": ids}), context).await
}

/// Refuses clients that do not declare the extension.
fn takes_tasks(context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
    if context.client_capabilities().is_some_and(|client| client.supports_tasks()) {
        return Ok(());
    }
    let required = typed(json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}))?;
    Err(ErrorData::missing_required_client_capability(required))
}

fn name_in(responses: Option<&InputResponses>) -> Option<String> {
    let response = responses?.get("user_name")?;
    response["content"]["name"].as_str().map(str::to_owned)
}

fn ask_for_the_name() -> Result<CallToolResponse, ErrorData> {
    let schema = json!({
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    });
    let question = json!({"mode": "form", "message": "Your name?", "requestedSchema": schema});
    let result: InputRequiredResult = typed(json!({
        "resultType": "input_required",
        "inputRequests": {"user_name": {"method": "elicitation/create", "params": question}},
    }))?;
    Ok(result.into())
}

fn complete(words: &str) -> Result<CallToolResponse, ErrorData> {
    let mut result = text(words);
    result["resultType"] = json!("complete");
    let result: CallToolResult = typed(result)?;
    Ok(result.into())
}
