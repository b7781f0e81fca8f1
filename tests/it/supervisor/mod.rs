//! The task manager, verb by verb: launch, cancel, resume, wait; and ends, the queue and notices.

mod alerts;
mod batches;
mod bounds;
mod calls;
mod cancel;
mod cannot_go_on;
mod clear;
mod deliver;
mod faults;
mod fork;
mod invariants;
mod kill;
mod launch;
mod list;
mod output;
mod permissions;
mod prune;
mod queue;
mod reconcile;
mod resume;
mod retry;
mod schema;
mod send;
mod stalls;
mod wait;
