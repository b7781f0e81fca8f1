//! The section `agent`: limits of the embedded agents and of their commands (steps, retries, sizes, sandbox), and what
//! their models cost. The limits are there for models and commands that misbehave: each bounds time, memory or disk.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::section::Rule::{self, Between, Filled, Paths};
use super::section::section;
use super::units::{DAY, days_or_off, seconds};
use crate::agent::model::Effort;
use crate::sandbox::{Caches, Network};

section! {
    pub struct Agent {
        /// Agents of our own (the embedded host). A run ends with an error after this many answers of its model.
        #[rule(Between(1.0, 100_000.0))]
        max_steps: u32 = 200,

        /// How often a model request that failed for a reason that may pass is retried.
        #[rule(Between(0.0, 100.0))]
        model_retries: u32 = 5,

        /// A conversation is compacted (summarised) before the next step when a request used this many tokens.
        #[rule(Between(1_000.0, 1e12))]
        compact_at_tokens: u64 = 100_000,

        /// How much models are to think before they answer: "low", "medium" or "high"; models that cannot think
        /// refuse that. "default" sends no setting; the model's own default applies.
        thinking: Effort = Effort::Default,

        /// A request to a model that sends nothing for this long is retried.
        #[written("silence_seconds", "seconds")]
        #[rule(Between(1.0, 3600.0))]
        silence: Duration = Duration::from_secs(120),

        /// An answer of a model (text, thoughts and arguments of calls) that is longer ends its run.
        #[rule(Between(1_000.0, 1e9))]
        answer_bytes: usize = 8 << 20,

        /// How many tool calls of one answer run at the same time.
        #[rule(Between(1.0, 1_000.0))]
        parallel_calls: usize = 8,

        /// Longest conversation, in bytes; a run that exceeds it ends with an error.
        #[rule(Between(100_000.0, 1e10))]
        transcript_bytes: usize = 256 << 20,

        /// How much of what the commands of one session print is kept on disk. What is beyond is lost; the model
        /// is told.
        #[rule(Between(0.0, 1e12))]
        output_bytes: u64 = 256 << 20,

        /// How many files with agents are read in one folder, how large each may be, and all of them together.
        /// `asyncagents agents` names what is left out.
        #[rule(Between(0.0, 10_000.0))]
        definition_files: usize = 200,
        #[rule(Between(0.0, 1e8))]
        definition_bytes: usize = 256 << 10,
        #[rule(Between(0.0, 1e9))]
        definition_folder_bytes: usize = 8 << 20,

        /// A command that an agent runs is killed, with everything it started, when the daemon has been stopped
        /// (SIGSTOP) or stuck for this long. When the daemon dies, that happens at once.
        #[written("command_lease_seconds", "seconds")]
        #[rule(Between(1.0, 3600.0))]
        command_lease: Duration = Duration::from_secs(30),

        /// Commands of agents get a few variables of the daemon's environment: PATH, HOME, USER, the language,
        /// XDG_*, where toolchains are (CARGO_HOME, JAVA_HOME, VIRTUAL_ENV …), proxies and certificates. No keys,
        /// and nothing of the session that started the daemon. These names are added; one that
        /// ends with * is a beginning, such as "CORP_*".
        environment: Vec<String> = Vec::new(),

        /// Commands in the sandbox reach the network, but never the daemon's own port or socket. "off" cuts them
        /// off. An agent's file may say so for itself: `network: off`.
        command_network: Network = Network::On,

        /// What they may do with the download caches of package managers (cargo, npm, pip, Go, Maven). What a
        /// command writes there is used outside the sandbox later on. Those that need no cache get an empty one.
        command_caches: Caches = Caches::Readable,

        /// More files and directories that they may read, or write. Of the home directory they see programs and
        /// toolchains, and nothing else. Absolute, or beginning with "~/".
        #[rule(Paths)]
        command_readable: Vec<String> = Vec::new(),
        #[rule(Paths)]
        command_writable: Vec<String> = Vec::new(),

        /// How many processes a command may have, how many bytes of memory each of them, and how large each file
        /// that it writes may get. 0 sets no limit. `asyncagents doctor` says where the system cannot hold one.
        #[rule(Between(0.0, 1e7))]
        command_processes: u64 = 4096,
        #[rule(Between(0.0, 1e15))]
        command_memory_bytes: u64 = 16 << 30,
        #[rule(Between(0.0, 1e15))]
        command_file_bytes: u64 = 16 << 30,

        /// In the sandbox every session has a `/tmp` and a home directory of its own, in `scratch` of the storage
        /// directory. When they hold more than this together, the model is told after every command to remove what
        /// is no longer needed. 0 sets no limit.
        #[rule(Between(0.0, 1e15))]
        scratch_bytes: u64 = 2 << 30,

        /// They are removed when the session's last command is this many days ago and its task has ended, and with the
        /// task at the latest. A session that is resumed after that begins with empty ones. 0 keeps them as long as
        /// the task.
        #[written("scratch_days", "days_or_off")]
        #[rule(Between(0.0, 36_500.0))]
        scratch_age: Option<Duration> = Some(Duration::from_secs(7 * DAY)),

        /// What a model costs: for a million tokens of input, and of output. Where it is known, tasks show
        /// their cost and can be given a budget of money. The prices of some models of Anthropic, Google and
        /// OpenAI are built in, as long as they are asked at their providers' own addresses; these come first.
        /// Without prices of its own, what is read from or written to a provider's cache costs what input costs.
        /// Examples, with the name in quotes:
        ///     "openai/gpt-5-mini" = [0.25, 2.0]
        ///     "work/large" = { input = 3.0, output = 15.0, cached_input = 0.3, cache_write = 3.75 }
        #[rule(Rule::Prices)]
        prices: BTreeMap<String, Price> = BTreeMap::new(),

        /// Short names of models, for agent files and calls. Known are "sonnet", "opus" and "haiku", which mean
        /// Anthropic's, and names that begin with "claude-", "gpt-" or "gemini-"; these come first. An example:
        ///     sonnet = "openrouter/anthropic/claude-sonnet-4.5"
        #[rule(Rule::each("", Filled))]
        aliases: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// What a million tokens of a model cost, as the file writes it: what is left out there stays out when the
/// configuration is shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
// Untagged: an array or a table. `check_price` has refused everything else with the full name of the key, which serde's
// error for an untagged enum would not have.
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
