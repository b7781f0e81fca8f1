//! The embedded agent: model providers and wire formats, tools and agent definitions.

mod commands;
mod hidden_files;
mod hostile_clone;
mod hostile_model;
mod model_runs;
mod providers;
mod wire_formats;
