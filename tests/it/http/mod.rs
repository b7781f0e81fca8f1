//! The HTTP API on both listeners: its responses, who may use it, and what it refuses.

mod dashboard;
mod events;
mod guard;
mod hostile_requests;
mod status;
