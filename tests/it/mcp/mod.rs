//! `asyncagents mcp`, the server of the Model Context Protocol on standard input and output.

mod library_client;
mod protocol;
mod real_clients;
