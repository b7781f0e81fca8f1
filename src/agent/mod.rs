//! The embedded agent runtime: an agent loop around a model and its tools. It knows nothing of tasks,
//! parents or hosts: `turn` decides (pure), `drive` does the IO, `model` talks to providers, `tools` are
//! what the model can call, and `definition` says which of them an agent may use.

pub mod definition;
pub mod drive;
pub mod model;
pub mod tools;
pub mod turn;

/// The result of a call that was running when the daemon died.
pub(crate) const INTERRUPTED: &str =
    "interrupted: the tool was cut off and may have done a part of it";
