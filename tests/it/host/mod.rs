//! The hosts: embedded agents, and OpenCode servers, with real ones in `real_opencode`.

mod embedded;
mod named_servers;
mod opencode;
mod opencode_faults;
mod opencode_generations;
mod opencode_stub;
mod real_opencode;
mod servers;
