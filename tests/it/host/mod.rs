//! The hosts: agents of our own, and OpenCode servers, real ones in `real_opencode`.

mod embedded;
mod named_servers;
mod opencode;
mod opencode_faults;
mod opencode_stub;
mod real_opencode;
mod servers;
