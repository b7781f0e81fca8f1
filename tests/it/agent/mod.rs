//! The embedded agent: its models and their wire formats, its tools and its definitions.

mod commands;
mod hidden_files;
mod hostile_clone;
mod hostile_model;
mod model_runs;
mod providers;
mod wire_formats;
