//! The HTTP API, as a table of routes. A handler extracts, calls the supervisor once, converts.

mod agents;
mod body;
mod bridge;
mod cancel;
mod clear;
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
mod stats;
mod tasks;
mod tools;
mod wait;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use agents::Peer;
pub use events::{Snapshots, Streams};
pub use guard::{Door, Reader};
pub use health::SET_ASIDE;

use crate::supervisor::{self, Supervisor};
use crate::threads;
use crate::tools::Toolbox;
use error::ApiError;

/// A prompt of a million characters fits, whatever they are.
const LARGEST_BODY: usize = 8 << 20;

/// What the handlers share. Cloning it is cheap.
#[derive(Clone)]
pub struct Api {
    pub supervisor: Supervisor,
    pub toolbox: Arc<Toolbox>,
    pub warnings: Warnings,
    /// Set when somebody asked the daemon to stop.
    pub stop: CancellationToken,
    /// Set when it was asked to stop so that the next one can start.
    pub restarts: Arc<AtomicBool>,
    pub restart_needed: Arc<dyn RestartNeeded>,
    pub streams: Streams,
    pub snapshots: Snapshots,
    /// Permits of `Api::read`.
    pub long_reads: Arc<Semaphore>,
    pub document: Arc<utoipa::openapi::OpenApi>,
}

impl Api {
    /// For what can take long: pages (a filter may have to count, a search goes through all tasks) and
    /// groups. It leaves the threads that serve everybody, and no more run at the same time than there
    /// are permits: each has a connection with a page cache of its own.
    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Supervisor) -> Result<T, supervisor::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (supervisor, long_reads) = (self.supervisor.clone(), self.long_reads.clone());
        let permit = long_reads.acquire_owned().await;
        let work = move || {
            let answer = query(&supervisor);
            // Not before: the caller may have hung up, which stops nothing here.
            drop(permit);
            answer
        };
        Ok(threads::apart(work).await.map_err(ApiError::stuck)??)
    }
}

/// Why a restart would change something, if it would.
pub trait RestartNeeded: Send + Sync {
    /// As it was when somebody last looked.
    fn known(&self) -> Option<String>;
    /// Looks, which takes a thread of its own.
    fn look(&self) -> BoxFuture<'_, Option<String>>;
}

/// What the user should know, shown with the health: by what it is about, so that it can be taken back.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl Warnings {
    /// These are all there are about this now.
    pub fn put(&self, about: &'static str, warnings: Vec<String>) {
        let mut all = self.0.lock();
        let before = all.insert(about, warnings.clone()).unwrap_or_default();
        // One whose numbers change is no news.
        if warnings.len() > before.len() {
            for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
                tracing::warn!("{warning}");
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

/// What the document describes: everything that can be read without changing anything.
fn status_routes() -> OpenApiRouter<Api> {
    #[derive(OpenApi)]
    #[openapi(
        info(description = "The status of background agents. Errors are `{\"error\", \"status\"}`."),
        tags((name = "status", description = "What is going on, for reading"))
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
        .routes(routes!(stats::metrics))
        .routes(routes!(stats::openapi))
}

/// The OpenAPI document of the status API.
pub fn document() -> utoipa::openapi::OpenApi {
    status_routes().into_openapi()
}

/// All verbs: what the socket serves.
pub fn control(api: Api) -> Router {
    Router::from(status_routes())
        .route("/v1/tools", get(tools::list).post(tools::list_for))
        .route("/v1/tools/{name}", post(tools::call))
        .route("/v1/tools/{name}/abort", post(tools::abort))
        .route("/v1/tasks", post(tasks::launch))
        .route("/v1/tasks/{id}/output", post(tasks::output))
        .route("/v1/tasks/{id}/resume", post(tasks::resume))
        .route("/v1/sessions/{id}/spent", get(tasks::spent))
        .route("/v1/fork", post(fork::preview))
        .route("/v1/resolve", post(tasks::resolve))
        .route("/v1/cancel", post(cancel::cancel))
        .route("/v1/clear", post(clear::clear))
        .route("/v1/prune", post(prune::prune))
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
        .route("/v1/check", post(health::check))
        .route("/v1/daemon/stop", post(health::stop))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::wrong_method)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(api.clone(), agents::only_their_own_task))
        .with_state(api)
}

/// Whole conversations travel through a bridge.
fn any_size() -> DefaultBodyLimit {
    DefaultBodyLimit::max(1 << 30)
}

/// The same for reading, and for whoever has the token: what is served over TCP.
pub fn status(api: Api, door: Door) -> Router {
    // Around all routes at once: around each of them, the router would add what it knows of methods.
    let guarded = from_fn_with_state(door, guard::guard);
    Router::new().fallback_service(control(api)).layer(guarded)
}
