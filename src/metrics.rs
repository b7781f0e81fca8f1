//! What is counted while the daemon runs, under Prometheus' naming conventions. What the store
//! knows (queue, notices owed) is not counted here but read when somebody asks.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::feed::{Change, Kind};
use crate::task::MAILBOX;

/// From a blink to a day.
const TASK_SECONDS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0];
const CALL_SECONDS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0];

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    launches: Counter,
    ends: Family<End, Counter>,
    durations: Histogram,
    queued: Gauge,
    notices_owed: Gauge,
    notices_delivered: Counter,
    notices_retried: Counter,
    clients: Gauge,
    clients_dropped: Counter,
    host_calls: Family<Call, Counter>,
    host_seconds: Family<Asked, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct End {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    host: String,
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    host: String,
    call: &'static str,
    outcome: &'static str,
}

/// How a call of a host went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed,
}

/// One stream that is being read, until it is dropped.
pub struct Client(Gauge);

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
        let ends = Family::<End, Counter>::default();
        registry.register("ends", "Runs ended, by how they ended", ends.clone());
        let durations = Histogram::new(TASK_SECONDS);
        let help = "Seconds from the launch of a task to its first end";
        registry.register("task_duration_seconds", help, durations.clone());
        let host_calls = Family::<Call, Counter>::default();
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
            host_calls,
            host_seconds,
        }))
    }

    /// Counts launches and ends.
    pub fn note(&self, change: &Change) {
        let kind = match change.kind {
            Kind::Created => {
                self.0.launches.inc();
                return;
            }
            Kind::Updated => return,
            Kind::Completed => "completed",
            Kind::Error => "error",
            Kind::Cancelled => "cancelled",
        };
        self.0.ends.get_or_create(&End { kind }).inc();
        let task = &change.task;
        // Who is no conversation has its notice with the end itself.
        if task.origin.parent.host == MAILBOX {
            self.0.notices_delivered.inc();
        }
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
        let labels = Call { host: host.to_owned(), call, outcome };
        self.0.host_calls.get_or_create(&labels).inc();
        let labels = Asked { host: host.to_owned(), call };
        self.0.host_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Somebody reads the event stream. `None` when as many as allowed do so already.
    pub fn client(&self, most: usize) -> Option<Client> {
        let before = self.0.clients.inc();
        let client = Client(self.0.clients.clone());
        (before < most as i64).then_some(client)
    }

    pub fn client_dropped(&self) {
        self.0.clients_dropped.inc();
    }

    /// All of it as text, with what the store knows at the moment.
    pub fn text(&self, queued: u64, notices_owed: u64) -> String {
        self.0.queued.set(queued as i64);
        self.0.notices_owed.set(notices_owed as i64);
        let mut text = String::new();
        encode(&mut text, &self.0.registry).expect("a text can be written to");
        text
    }
}

enum Metric {
    Counter(Counter),
    Gauge(Gauge),
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.dec();
    }
}
