//! The HTTP API: the table of routes, and what handlers share. A handler extracts, calls the supervisor once,
//! and converts; rules and error texts are below it, so that all clients get the same ones.
//!
//! One set of routes is served twice: by [`control`] on the Unix socket, for everything, and by [`status`]
//! over TCP, for reading, with the guard of `guard.rs` in front.

mod agents;
mod assets;
mod body;
mod bridge;
mod calls;
mod cancel;
mod clear;
mod dash;
mod error;
mod events;
mod fork;
mod groups;
mod guard;
mod health;
mod hosts;
mod mailbox;
mod permissions;
mod providers;
mod prune;
mod queue;
mod send;
mod stats;
mod tasks;
mod tools;
mod wait;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post, put};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use agents::Peer;
pub use dash::PageTokens;
pub use events::{SnapshotCache, Streams};
pub use guard::{AccessPolicy, MCP, Reader};
pub use health::SET_ASIDE;

use crate::supervisor::{self, Supervisor};
use crate::threads;
use crate::tools::{Calls, Toolbox};
use error::ApiError;

/// Limit of request bodies: a prompt of a million characters fits, even if each is a six-byte escape in JSON.
pub const LARGEST_BODY: usize = 8 << 20;

/// What the handlers share. One pointer, because the router clones it several times for every request.
#[derive(Clone)]
pub struct Api(Arc<ApiState>);

pub struct ApiState {
    pub supervisor: Supervisor,
    pub toolbox: Arc<Toolbox>,
    pub calls: Calls,
    pub warnings: Warnings,
    /// Cancelled when a client asks the daemon to stop.
    pub stop: CancellationToken,
    /// Set when it stops for a restart: then waiting commands go on with the next daemon.
    pub restarts: Arc<AtomicBool>,
    pub restart_needed: Arc<dyn RestartNeeded>,
    pub streams: Streams,
    pub snapshots: SnapshotCache,
    /// Limits how many `Api::read` run at the same time.
    pub long_reads: Arc<Semaphore>,
    pub document: Arc<utoipa::openapi::OpenApi>,
    pub pages: PageTokens,
}

impl From<ApiState> for Api {
    fn from(state: ApiState) -> Api {
        Api(Arc::new(state))
    }
}

impl Deref for Api {
    type Target = ApiState;

    fn deref(&self) -> &ApiState {
        &self.0
    }
}

impl Api {
    /// Runs a query that can take long on a thread that may block: pages (a filter may have to count, a
    /// search scans all tasks) and groups. The two threads of the runtime serve all clients and must not
    /// wait for one. A semaphore bounds how many run at the same time, because each has a connection with a
    /// page cache of its own.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Supervisor) -> Result<T, supervisor::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (supervisor, long_reads) = (self.supervisor.clone(), self.long_reads.clone());
        let permit = long_reads.acquire_owned().await;
        let work = move || {
            let answer = query(&supervisor);
            // The permit is released here, on the thread, and not when the request's future is dropped: a
            // caller that hangs up does not stop the query, which still needs its connection.
            drop(permit);
            answer
        };
        Ok(threads::run_blocking(work).await.map_err(ApiError::thread_failed)??)
    }
}

/// Why a restart would change something, if it would. A trait because only `daemon`, a layer above, knows
/// the configuration.
pub trait RestartNeeded: Send + Sync {
    /// The answer of the last look.
    fn known(&self) -> Option<String>;
    /// Compares the configuration file now, on a thread that may block.
    fn look(&self) -> BoxFuture<'_, Option<String>>;
}

/// Warnings for the user, shown with the health. Each group has a key, so that it can be replaced or taken
/// back when the cause is gone.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl Warnings {
    /// Replaces all warnings under this key.
    pub fn put(&self, about: &'static str, warnings: Vec<String>) {
        let mut all = self.0.lock();
        let before = all.insert(about, warnings.clone()).unwrap_or_default();
        // Logged only when there are more of them than before: the text of one warning changes with its
        // numbers (bytes left on the disk), and would fill the log otherwise.
        if warnings.len() > before.len() {
            for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
                tracing::warn!(
                    about,
                    %warning,
                    "warning raised; commands and `/v1/health` show it"
                );
            }
        }
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().values().flatten().cloned().collect()
    }

    pub fn about(&self, about: &str) -> Vec<String> {
        let all = self.0.lock();
        all.get(about).cloned().unwrap_or_default()
    }
}

/// The routes of the OpenAPI document: everything that can be read without changing anything.
fn status_routes() -> OpenApiRouter<Api> {
    #[derive(OpenApi)]
    #[openapi(
        info(description = "The status of background agents. Errors are `{\"error\", \"status\"}`."),
        tags((name = "status", description = "Read-only status of tasks, groups and totals"))
    )]
    struct Document;
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(tasks::page))
        .routes(routes!(tasks::detail))
        .routes(routes!(tasks::logs))
        .routes(routes!(tasks::messages))
        .routes(routes!(groups::list))
        .routes(routes!(groups::detail))
        .routes(routes!(events::events))
        .routes(routes!(health::health))
        .routes(routes!(stats::stats))
        .routes(routes!(stats::history))
        .routes(routes!(stats::metrics))
        .routes(routes!(stats::openapi))
}

/// The OpenAPI document of the status API.
pub fn document() -> utoipa::openapi::OpenApi {
    status_routes().into_openapi()
}

/// The router of the Unix socket: all routes.
pub fn control(api: Api) -> Router {
    routes(api, Router::new())
}

/// All routes, and those of one listener alone.
fn routes(api: Api, own: Router<Api>) -> Router {
    Router::from(status_routes())
        .merge(own)
        .route("/v1/tools", get(tools::list).post(tools::list_for))
        .route("/v1/tools/{name}", post(tools::call))
        .route("/v1/tools/{name}/abort", post(tools::abort))
        .route("/v1/calls/{id}", post(calls::get))
        .route("/v1/calls/{id}/cancel", post(calls::cancel))
        .route("/v1/calls/{id}/decline", post(calls::decline))
        .route("/v1/tasks", post(tasks::launch))
        .route("/v1/tasks/{id}/output", post(tasks::output))
        .route("/v1/tasks/{id}/resume", post(tasks::resume))
        .route("/v1/tasks/{id}/retry", post(tasks::retry))
        .route("/v1/tasks/{id}/send", post(send::send))
        .route("/v1/sessions/{id}/spent", get(tasks::spent))
        .route("/v1/fork", post(fork::preview))
        .route("/v1/resolve", post(tasks::resolve))
        .route("/v1/cancel", post(cancel::cancel))
        .route("/v1/clear", post(clear::clear))
        .route("/v1/prune", post(prune::prune))
        .route("/v1/queue/pause", post(queue::pause))
        .route("/v1/queue/continue", post(queue::go_on))
        .route("/v1/wait", post(wait::wait))
        .route("/v1/mailbox", post(mailbox::read))
        .route("/v1/mailbox/read", post(mailbox::was_read))
        .route("/v1/permissions", get(permissions::list))
        .route("/v1/permissions/{id}", post(permissions::answer))
        .route("/v1/hosts", get(hosts::list))
        .route("/v1/providers", post(providers::list))
        .route("/v1/hosts/opencode/{name}", put(hosts::add).delete(hosts::remove))
        .route("/v1/bridge", post(bridge::open))
        .route("/v1/bridge/{id}/{call}/answer", post(bridge::answer).layer(any_size()))
        .route("/v1/bridge/{id}/{call}/piece", post(bridge::piece).layer(any_size()))
        .route("/v1/dash/code", post(dash::code))
        .route(dash::EXCHANGE, post(dash::token))
        .route("/v1/check", post(health::check))
        .route("/v1/daemon/stop", post(health::stop))
        .route("/v1/daemon/drain", post(health::drain))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(api.clone(), agents::only_their_own_task))
        .with_state(api)
}

/// The body limit of a bridge: whole conversations travel through it.
fn any_size() -> DefaultBodyLimit {
    DefaultBodyLimit::max(1 << 30)
}

/// The router of the TCP port: the same routes, for reading; for changes only with the token. Besides, MCP and
/// the dashboard.
pub fn status(api: Api, policy: AccessPolicy, mcp: MethodRouter) -> Router {
    let own = Router::new()
        .route(MCP, mcp.with_state(()))
        .route("/", get(assets::page))
        .route("/assets/{name}", get(assets::asset));
    guarded(routes(api, own), policy)
}

/// Routes behind the access control of the TCP port.
pub fn guarded(routes: Router, policy: AccessPolicy) -> Router {
    // The guard is a layer around the whole router. Around each route, the router would add an `Allow` header
    // of its own to what the guard refuses.
    let guarded = from_fn_with_state(Arc::new(policy), guard::guard);
    Router::new().fallback_service(routes).layer(guarded)
}
