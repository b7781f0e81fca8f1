//! The tools of embedded agents. Each is a file: its description, its arguments, what it does.
//! Paths cannot leave the workspace without a permission, whatever they are made of.

use serde_json::Value;

/// A tool as models are told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub name: &'static str,
    pub description: &'static str,
    /// A JSON schema of an object.
    pub schema: Value,
}
