//! Prometheus metrics of the daemon: counters, gauges and histograms, under Prometheus' naming conventions.
//! They start at zero with every daemon. What the store knows (queue length, notices owed) is not counted
//! here but read at each scrape, so it cannot drift from the tables.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::feed::{EventKind, TaskEvent};
use crate::task::MAILBOX;

/// Histogram buckets of task durations, from a tenth of a second to a day.
const TASK_SECONDS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0];

/// Histogram buckets of calls to hosts, from a millisecond to a minute.
const CALL_SECONDS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0];

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    launches: Counter,
    ends: Family<EndLabels, Counter>,
    durations: Histogram,
    queued: Gauge,
    notices_owed: Gauge,
    notices_delivered: Counter,
    notices_retried: Counter,
    clients: Gauge,
    clients_dropped: Counter,
    mcp_sessions: Gauge,
    mcp_requests: Family<McpLabels, Counter>,
    host_calls: Family<OutcomeLabels, Counter>,
    host_seconds: Family<CallLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    kind: &'static str,
}

/// Labels of the durations of calls to hosts; the outcome is only counted ([`OutcomeLabels`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    host: String,
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    host: String,
    call: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct McpLabels {
    outcome: &'static str,
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed,
}

/// RAII guard of one open event stream: the gauge of clients goes down when it is dropped, however the
/// connection ends.
pub struct StreamGuard(Gauge);

/// RAII guard of one MCP session over HTTP.
pub struct SessionGuard(Gauge);

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("asyncagents");
        let mut register = |name: &str, help: &str, metric: Metric| match metric {
            Metric::Counter(counter) => registry.register(name, help, counter),
            Metric::Gauge(gauge) => registry.register(name, help, gauge),
        };
        let counter = Counter::default;
        let (launches, notices_delivered, notices_retried) = (counter(), counter(), counter());
        let clients_dropped = counter();
        let (queued, notices_owed, clients) = <(Gauge, Gauge, Gauge)>::default();
        for (name, help, metric) in [
            ("launches", "Tasks launched", Metric::Counter(launches.clone())),
            ("queued_tasks", "Tasks that wait for a slot", Metric::Gauge(queued.clone())),
            ("notices_owed", "Notices not delivered yet", Metric::Gauge(notices_owed.clone())),
            (
                "notices_delivered",
                "Notices delivered to parents",
                Metric::Counter(notices_delivered.clone()),
            ),
            (
                "notices_retried",
                "Deliveries of notices that failed and are tried again",
                Metric::Counter(notices_retried.clone()),
            ),
            ("sse_clients", "Clients that read the event stream", Metric::Gauge(clients.clone())),
            (
                "sse_clients_dropped",
                "Clients dropped because they read too slowly",
                Metric::Counter(clients_dropped.clone()),
            ),
        ] {
            register(name, help, metric);
        }
        let ends = Family::<EndLabels, Counter>::default();
        registry.register("ends", "Runs ended, by how they ended", ends.clone());
        let durations = Histogram::new(TASK_SECONDS);
        let mcp_sessions = Gauge::default();
        let help = "MCP sessions over HTTP";
        registry.register("mcp_sessions", help, mcp_sessions.clone());
        let mcp_requests = Family::<McpLabels, Counter>::default();
        let help = "MCP requests over HTTP, by whether they were answered or refused";
        registry.register("mcp_requests", help, mcp_requests.clone());
        let help = "Seconds from the launch of a task to its first end";
        registry.register("task_duration_seconds", help, durations.clone());
        let host_calls = Family::<OutcomeLabels, Counter>::default();
        registry.register("host_calls", "Calls of hosts, by outcome", host_calls.clone());
        let histogram: fn() -> Histogram = || Histogram::new(CALL_SECONDS);
        let host_seconds = Family::new_with_constructor(histogram);
        let help = "Seconds that calls of hosts took";
        registry.register("host_call_duration_seconds", help, host_seconds.clone());
        Metrics(Arc::new(Inner {
            registry,
            launches,
            ends,
            durations,
            queued,
            notices_owed,
            notices_delivered,
            notices_retried,
            clients,
            clients_dropped,
            mcp_sessions,
            mcp_requests,
            host_calls,
            host_seconds,
        }))
    }

    /// Counts launches and ends. Runs on the store's writer thread, for every event of the feed.
    pub fn note(&self, event: &TaskEvent) {
        let kind = match event.kind {
            EventKind::Created => {
                self.0.launches.inc();
                return;
            }
            EventKind::Updated => return,
            EventKind::Completed => "completed",
            EventKind::Error => "error",
            EventKind::Cancelled => "cancelled",
        };
        self.0.ends.get_or_create(&EndLabels { kind }).inc();
        let task = &event.task;
        // Nothing is sent to a mailbox: its notice counts as delivered in the transaction that ends the
        // run, so the deliverer, which counts the others, never sees it.
        if task.origin.parent.host == MAILBOX {
            self.0.notices_delivered.inc();
        }
        // Only the launch: from `started_at` to the end of a resume would be mostly the time in between.
        if let Some(ended) = task.completed_at.filter(|_| task.run == 0) {
            self.0.durations.observe(ended.since(task.started_at).as_secs_f64());
        }
    }

    pub fn notice_delivered(&self) {
        self.0.notices_delivered.inc();
    }

    pub fn notice_retried(&self) {
        self.0.notices_retried.inc();
    }

    pub fn host_called(&self, host: &str, call: &'static str, took: Duration, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
        };
        let labels = OutcomeLabels { host: host.to_owned(), call, outcome };
        self.0.host_calls.get_or_create(&labels).inc();
        let labels = CallLabels { host: host.to_owned(), call };
        self.0.host_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Admits a client to the event stream. `None` when `most` of them are reading it already.
    pub fn client(&self, most: usize) -> Option<StreamGuard> {
        // Counted first and compared afterwards, so that two clients that come at the same moment cannot
        // both take the last place. A guard that is not handed out is dropped here and counts down again.
        let before = self.0.clients.inc();
        let guard = StreamGuard(self.0.clients.clone());
        (before < most as i64).then_some(guard)
    }

    pub fn client_dropped(&self) {
        self.0.clients_dropped.inc();
    }

    pub fn mcp_session(&self) -> SessionGuard {
        self.0.mcp_sessions.inc();
        SessionGuard(self.0.mcp_sessions.clone())
    }

    pub fn mcp_request(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Ok => "answered",
            Outcome::Failed => "refused",
        };
        self.0.mcp_requests.get_or_create(&McpLabels { outcome }).inc();
    }

    /// All metrics in Prometheus' text format, with the figures that the store has just read.
    pub fn text(&self, queued: u64, notices_owed: u64) -> String {
        self.0.queued.set(queued as i64);
        self.0.notices_owed.set(notices_owed as i64);
        let mut text = String::new();
        encode(&mut text, &self.0.registry).expect("a text can be written to");
        text
    }
}

/// The kinds of metrics that share one registration loop.
enum Metric {
    Counter(Counter),
    Gauge(Gauge),
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
