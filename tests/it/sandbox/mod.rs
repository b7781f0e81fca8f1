//! The sandbox around commands: what it must hold, and that work goes on inside.

mod escapes;
mod protected_paths;
mod work;
