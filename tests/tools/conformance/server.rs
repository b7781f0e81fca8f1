//! The server that the MCP conformance suite tests: our HTTP layer (guard, token, sessions, limits)
//! around a handler with the tools, prompts and resources that the suite asks for. It is not part
//! of the program. Requests about MCP tasks are forwarded to our own handler, and from there to a
//! daemon (`tasks.rs`).
//!
//! Prints its address and its token, and serves until its standard input is closed. The environment
//! selects the daemon.

#![expect(deprecated, reason = "the suite also tests what older clients still use")]

mod tasks;

use std::sync::Arc;
use std::time::Duration;

use asyncagents::clock::Clock;
use asyncagents::config::{Environment, Flags, Settings};
use asyncagents::http::{AccessPolicy, MCP, PageTokens, guarded};
use asyncagents::mcp::http::{Endpoint, Limits};
use asyncagents::mcp::{Handler, http_handler};
use asyncagents::metrics::Metrics;
use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams,
    CompleteRequestParams, CompleteResult, GetPromptRequestParams, GetPromptResponse,
    GetPromptResult, GetTaskParams, GetTaskResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const TOKEN: &str = "only-for-the-conformance-suite";

/// A red pixel, and a moment of silent audio.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

struct Fixture {
    ours: Handler,
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the script reads it there")]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::resolve(&Environment::read(), &Flags::default())?;
    let limits = Limits { sessions: 1000, idle: Duration::from_secs(600), body: 8 << 20 };
    let stopping = CancellationToken::new();
    let ours = http_handler(&settings, stopping.clone());
    let handler = move || Fixture { ours: ours() };
    let endpoint = Endpoint::new(handler, limits, stopping.clone(), Metrics::new());
    let policy = AccessPolicy {
        token: TOKEN.into(),
        host: "127.0.0.1".into(),
        open: false,
        anyone: false,
        origins: Arc::new([]),
        pages: PageTokens::new(Clock::system()),
    };
    let routes = guarded(Router::new().route(MCP, endpoint.route()), policy);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}{MCP} {TOKEN}", listener.local_addr()?);
    let ended = async move {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
        stopping.cancel();
    };
    tokio::select! {
        served = async { axum::serve(listener, routes).await } => Ok(served?),
        () = ended => Ok(()),
    }
}

/// Converts JSON into the types of the library.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn tools() -> Value {
    let plain = |name: &str| json!({"name": name, "description": format!("Fixture {name}"), "inputSchema": {"type": "object", "properties": {}}});
    let with = |name: &str, argument: Value| {
        let mut tool = plain(name);
        tool["inputSchema"]["properties"] = argument;
        tool
    };
    let names = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_tool_with_logging",
        "test_error_handling",
        "test_tool_with_progress",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_missing_capability",
        "test_streaming_elicitation",
        "test_logging_tool",
    ];
    let names = names.iter().chain(&tasks::NAMES);
    let mut tools: Vec<Value> = names.map(|name| plain(name)).collect();
    tools.push(with("test_sampling", json!({"prompt": {"type": "string"}})));
    tools.push(with("test_elicitation", json!({"message": {"type": "string"}})));
    tools.push(with(
        "test_custom_header",
        json!({"region": {"type": "string", "x-mcp-header": "Region"}}),
    ));
    tools.push(json!({
        "name": "json_schema_2020_12_tool",
        "description": "Fixture with a schema of JSON Schema 2020-12",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {
                "street": {"type": "string"}, "city": {"type": "string"},
            }}},
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "anyOf": [{"required": ["phone"]}, {"required": ["email"]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        },
    }));
    Value::Array(tools)
}

/// The elicitation form of a tool that asks the user something.
fn question(tool: &str, message: &str) -> Option<Value> {
    let titled = |word: &str| -> Value {
        let option = |n: u32, name: &str| json!({"const": format!("value{n}"), "title": format!("{name} {word}")});
        json!([option(1, "First"), option(2, "Second"), option(3, "Third")])
    };
    let options = json!(["option1", "option2", "option3"]);
    let properties = match tool {
        "test_elicitation" => json!({
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        }),
        "test_elicitation_sep1034_defaults" => json!({
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {
                "type": "string", "enum": ["active", "inactive", "pending"], "default": "active",
            },
            "verified": {"type": "boolean", "default": true},
        }),
        "test_elicitation_sep1330_enums" => json!({
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string", "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        }),
        _ => return None,
    };
    let required = match tool {
        "test_elicitation" => json!(["username", "email"]),
        _ => json!([]),
    };
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Some(json!({"mode": "form", "message": message, "requestedSchema": schema}))
}

impl Fixture {
    async fn call(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<Value, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let failed = |error: rmcp::ServiceError| ErrorData::internal_error(error.to_string(), None);
        let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
        let pause = || tokio::time::sleep(Duration::from_millis(50));
        let name = request.name.as_ref();
        if let Some(question) = question(name, arguments["message"].as_str().unwrap_or("Please")) {
            let answer = context.peer.create_elicitation(typed(question)?).await.map_err(failed)?;
            let answer = serde_json::to_string(&answer).unwrap_or_default();
            return Ok(text(&format!("Elicitation completed: {answer}")));
        }
        Ok(match name {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => json!({"content": [image]}),
            "test_audio_content" => {
                json!({"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]})
            }
            "test_embedded_resource" => json!({"content": [{"type": "resource", "resource": {
                "uri": "test://embedded-resource", "mimeType": "text/plain",
                "text": "This is an embedded resource content.",
            }}]}),
            "test_multiple_content_types" => json!({"content": [
                {"type": "text", "text": "Multiple content types test:"},
                image,
                {"type": "resource", "resource": {
                    "uri": "test://mixed-content-resource", "mimeType": "application/json",
                    "text": "{\"test\":\"data\",\"value\":123}",
                }},
            ]}),
            "test_error_handling" => {
                let mut failed = text("This tool intentionally returns an error for testing");
                failed["isError"] = json!(true);
                failed
            }
            "test_tool_with_logging" => {
                let lines = ["execution started", "processing data", "execution completed"];
                for line in lines {
                    let said = json!({"level": "info", "data": format!("Tool {line}")});
                    let _ = context.peer.notify_logging_message(typed(said)?).await;
                    pause().await;
                }
                text("Logged.")
            }
            "test_tool_with_progress" => {
                for progress in [0, 50, 100] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let token = serde_json::to_value(token).unwrap_or_default();
                        let note =
                            json!({"progressToken": token, "progress": progress, "total": 100});
                        let _ = context.peer.notify_progress(typed(note)?).await;
                    }
                    pause().await;
                }
                text("Done.")
            }
            "test_sampling" => {
                let content = json!({"type": "text", "text": arguments["prompt"]});
                let messages = json!([{"role": "user", "content": content}]);
                let asked = typed(json!({"messages": messages, "maxTokens": 100}))?;
                let said = context.peer.create_message(asked).await.map_err(failed)?;
                let said = serde_json::to_value(&said).unwrap_or_default();
                text(&format!("LLM response: {}", said["content"]["text"]))
            }
            "test_missing_capability" => {
                let capabilities = context.client_capabilities().unwrap_or_default();
                if capabilities.sampling.is_none() {
                    let required = typed(json!({"sampling": {}}))?;
                    return Err(ErrorData::missing_required_client_capability(required));
                }
                text("It is there.")
            }
            // Without sessions, a server cannot send requests on the stream of a call.
            "test_streaming_elicitation" => text("Nothing was asked."),
            "test_logging_tool" => {
                if context.meta.get("io.modelcontextprotocol/logLevel").is_some() {
                    let said = json!({"level": "info", "data": "Logged"});
                    let _ = context.peer.notify_logging_message(typed(said)?).await;
                }
                text("Logged, if that was wanted.")
            }
            "test_custom_header" | "json_schema_2020_12_tool" => text(&arguments.to_string()),
            unknown => {
                return Err(ErrorData::invalid_params(format!("no tool `{unknown}`"), None));
            }
        })
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let info = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "tools": {}, "prompts": {}, "resources": {}, "completions": {},
                "logging": {}, "extensions": {"io.modelcontextprotocol/tasks": {}},
            },
            "serverInfo": {"name": "conformance", "version": "1"},
        });
        serde_json::from_value(info).unwrap_or_default()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(typed(tools())?))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let tools: Vec<Tool> = typed(tools()).ok()?;
        tools.into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(answer) = tasks::call(&self.ours, &request, &context).await {
            return answer;
        }
        let result: CallToolResult = typed(self.call(request, context).await?)?;
        Ok(result.into())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.ours.get_task(request, context).await
    }

    async fn update_task(
        &self,
        mut request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        request.input_responses = tasks::translate(request.input_responses);
        self.ours.update_task(request, context).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.ours.cancel_task(request, context).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |uri: &str, kind: &str| json!({"uri": uri, "name": uri, "description": "Fixture", "mimeType": kind});
        Ok(ListResourcesResult::with_all_items(typed(json!([
            resource("test://static-text", "text/plain"),
            resource("test://static-binary", "image/png"),
            resource("test://watched-resource", "text/plain"),
        ]))?))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(typed(json!([{
            "uriTemplate": "test://template/{id}/data", "name": "template",
            "description": "Fixture", "mimeType": "application/json",
        }]))?))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let content = match (uri, id) {
            ("test://static-text", _) => json!({
                "mimeType": "text/plain", "text": "This is the content of the static text resource.",
            }),
            ("test://static-binary", _) => json!({"mimeType": "image/png", "blob": PNG}),
            ("test://watched-resource", _) => json!({"mimeType": "text/plain", "text": "Watched."}),
            (_, Some(id)) => {
                let data =
                    json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                json!({"mimeType": "application/json", "text": data.to_string()})
            }
            (_, None) => {
                let data = Some(json!({"uri": uri}));
                return Err(ErrorData::invalid_params("Resource not found", data));
            }
        };
        let mut content = content;
        content["uri"] = json!(uri);
        let result: ReadResourceResult =
            typed(json!({"resultType": "complete", "contents": [content]}))?;
        Ok(result.into())
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompt = |name: &str, arguments: &[&str]| {
            let argument =
                |name: &&str| json!({"name": name, "description": "Fixture", "required": true});
            let arguments: Vec<Value> = arguments.iter().map(argument).collect();
            json!({"name": name, "description": "Fixture", "arguments": arguments})
        };
        Ok(ListPromptsResult::with_all_items(typed(json!([
            prompt("test_simple_prompt", &[]),
            prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
            prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
            prompt("test_prompt_with_image", &[]),
        ]))?))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let words = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
        let said = |content: Value| json!({"role": "user", "content": content});
        let text = |text: String| said(json!({"type": "text", "text": text}));
        let messages = match request.name.as_str() {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.".to_owned())],
            "test_prompt_with_arguments" => vec![text(format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                words("arg1"),
                words("arg2")
            ))],
            "test_prompt_with_embedded_resource" => vec![
                said(json!({"type": "resource", "resource": {
                    "uri": words("resourceUri"), "mimeType": "text/plain",
                    "text": "Embedded resource content for testing.",
                }})),
                text("Please process the embedded resource above.".to_owned()),
            ],
            "test_prompt_with_image" => vec![
                said(json!({"type": "image", "data": PNG, "mimeType": "image/png"})),
                text("Please analyze the image above.".to_owned()),
            ],
            unknown => {
                return Err(ErrorData::invalid_params(format!("no prompt `{unknown}`"), None));
            }
        };
        let result: GetPromptResult = typed(json!({"messages": messages}))?;
        Ok(result.into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        typed(json!({"completion": {"values": [], "total": 0, "hasMore": false}}))
    }
}
