//! The sandbox around commands: its guarantees, and that ordinary work succeeds inside.

mod escapes;
mod protected_paths;
mod work;
