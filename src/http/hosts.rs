//! `/v1/hosts`: where agents can run, and the OpenCode servers that were added. Changes answer with the whole
//! list, as it is then.

use axum::Json;
use axum::extract::{Path, State};

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{HostStatus, Server};
use crate::wire::{HostView, HostsView, OpenCodeView, ServerRequest};

pub(super) async fn list(State(api): State<Api>) -> Result<Json<HostsView>, ApiError> {
    let hosts = api.supervisor.hosts().await?.into_iter().map(host_view).collect();
    Ok(Json(HostsView { hosts }))
}

pub(super) async fn add(
    State(api): State<Api>,
    Path(name): Path<String>,
    Body(request): Body<ServerRequest>,
) -> Result<Json<HostsView>, ApiError> {
    api.supervisor.add_server(&name, &request.url).await?;
    list(State(api)).await
}

pub(super) async fn remove(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<HostsView>, ApiError> {
    api.supervisor.remove_server(&name).await?;
    list(State(api)).await
}

fn host_view(host: HostStatus) -> HostView {
    let HostStatus { name, is_default, active, has_servers, servers } = host;
    let servers = servers.into_iter().map(server_view).collect();
    HostView { name, is_default, active_tasks: active, has_servers, servers }
}

fn server_view(server: Server) -> OpenCodeView {
    let Server { name, address, health, active } = server;
    let (version, error) = match health {
        Ok(version) => (Some(version), None),
        Err(why) => (None, Some(why)),
    };
    OpenCodeView { name, url: address, version, error, active_tasks: active }
}
