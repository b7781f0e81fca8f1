//! The Model Context Protocol server: `asyncagents mcp` on stdio, and the daemon's over HTTP.

mod elicitation;
mod http;
mod library_client;
mod protocol;
mod real_clients;
mod tasks;
mod user;
