//! The HTTP API over both listeners: what it answers, to whom, and what it refuses.

mod events;
mod guard;
mod hostile_requests;
mod status;
