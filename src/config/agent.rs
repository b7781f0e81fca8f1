//! `[agent]`: agents of our own, and what their models cost.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units::DAY;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agent {
    pub max_steps: u32,
    pub model_retries: u32,
    pub compact_at_tokens: u64,
    pub thinking: Thinking,
    #[serde(rename = "silence_seconds", with = "super::units::seconds")]
    pub silence: Duration,
    pub answer_bytes: usize,
    pub parallel_calls: usize,
    pub transcript_bytes: usize,
    pub output_bytes: u64,
    pub definition_files: usize,
    pub definition_bytes: usize,
    pub definition_folder_bytes: usize,
    #[serde(rename = "command_lease_seconds", with = "super::units::seconds")]
    pub command_lease: Duration,
    /// Variables that commands get besides the usual ones; `NAME`, or the beginning of names and `*`.
    pub environment: Vec<String>,
    pub command_network: Network,
    pub command_caches: Caches,
    pub command_readable: Vec<String>,
    pub command_writable: Vec<String>,
    pub command_processes: u64,
    pub command_memory_bytes: u64,
    pub command_file_bytes: u64,
    pub scratch_bytes: u64,
    #[serde(rename = "scratch_days", with = "super::units::days_or_off")]
    pub scratch_age: Option<Duration>,
    /// By `provider/model`.
    pub prices: BTreeMap<String, Price>,
    /// Short names of models.
    pub aliases: BTreeMap<String, String>,
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            max_steps: 200,
            model_retries: 5,
            compact_at_tokens: 100_000,
            thinking: Thinking::Default,
            silence: Duration::from_secs(120),
            answer_bytes: 8 << 20,
            parallel_calls: 8,
            transcript_bytes: 256 << 20,
            output_bytes: 256 << 20,
            definition_files: 200,
            definition_bytes: 256 << 10,
            definition_folder_bytes: 8 << 20,
            command_lease: Duration::from_secs(30),
            environment: Vec::new(),
            command_network: Network::On,
            command_caches: Caches::Readable,
            command_readable: Vec::new(),
            command_writable: Vec::new(),
            command_processes: 4096,
            command_memory_bytes: 16 << 30,
            command_file_bytes: 16 << 30,
            scratch_bytes: 2 << 30,
            scratch_age: Some(Duration::from_secs(7 * DAY)),
            prices: BTreeMap::new(),
            aliases: BTreeMap::new(),
        }
    }
}

/// Whether commands reach the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    On,
    Off,
}

/// What commands may do with the download caches of package managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    Readable,
    Writable,
}

/// How much a model is to think before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// As it does by itself.
    Default,
    Low,
    Medium,
    High,
}

/// What a million tokens of a model cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Price {
    /// Of input, and of output.
    Pair([f64; 2]),
    Table {
        input: f64,
        output: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cached_input: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cache_write: Option<f64>,
    },
}
