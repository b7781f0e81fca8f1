//! The agent tools, for those who register and forward them.

use axum::Json;
use axum::extract::{Path, State};

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::tools;
use crate::wire::{ToolAnswer, ToolRequest, ToolsView};

pub(super) async fn list(State(api): State<Api>) -> Json<ToolsView> {
    Json(ToolsView { tools: tools::list(api.aliases()) })
}

pub(super) async fn call(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(request): Body<ToolRequest>,
) -> Result<Json<ToolAnswer>, ApiError> {
    let ToolRequest { caller, arguments, key } = request;
    api.supervisor.note_place(
        &caller.host,
        &caller.instance,
        &caller.session_id,
        &caller.directory,
    );
    let caller = tools::caller(caller)?;
    let aliases = api.aliases();
    Ok(Json(tools::call(&api.supervisor, aliases, &name, caller, arguments, key).await?))
}
