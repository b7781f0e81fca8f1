//! The keys of the config file: its sections with their defaults, and how their values are written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::Agent;
use super::providers::Provider;
use super::units::{DAY, count_or_off, days_or_off, fractional_seconds, seconds, seconds_or_off};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Empty: choose the default.
    pub host: String,
    /// `provider/model`, or empty: choose the default.
    pub model: String,
    pub sandbox: Sandbox,
    pub supervisor: Supervisor,
    pub limits: Limits,
    pub resume: Resume,
    pub fork: Fork,
    pub permissions: Permissions,
    pub notices: Notices,
    pub history: History,
    pub storage: Storage,
    pub agent: Agent,
    /// By names of their own, or of a provider that is known.
    pub providers: BTreeMap<String, Provider>,
    pub opencode: OpenCode,
    pub tools: Tools,
    pub task_tool: TaskTool,
    pub mcp: Mcp,
    pub api: Api,
    pub log: Log,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Supervisor {
    #[serde(rename = "poll_interval_seconds", with = "fractional_seconds")]
    pub poll_interval: Duration,
    pub max_depth: u32,
    #[serde(rename = "stall_seconds", with = "seconds")]
    pub stall: Duration,
    /// The same tool call this often in a row is a stall too.
    pub stall_repeats: u32,
    pub cancel_stalled: bool,
    /// How long a fetched transcript of a live task may be used again.
    #[serde(rename = "result_cache_seconds", with = "seconds")]
    pub result_cache: Duration,
    /// How long an unfinished answer in an idle session is watched before the host counts as
    /// restarted.
    #[serde(rename = "settle_seconds", with = "seconds")]
    pub settle: Duration,
    /// How long an accepted prompt may stay without any answer in an idle session.
    #[serde(rename = "answer_grace_seconds", with = "seconds")]
    pub answer_grace: Duration,
    #[serde(rename = "gone_seconds", with = "seconds")]
    pub gone: Duration,
    pub last_message_characters: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Of all parents together; 0 is no limit.
    pub active: u32,
    pub active_per_parent: u32,
    pub queued_per_parent: u32,
    /// By `provider/model`; a model that is not named has no limit.
    pub active_per_model: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resume {
    pub any_status: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fork {
    pub method: ForkMethod,
}

/// How a forked child gets its parent's conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkMethod {
    #[default]
    Context,
    Native,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    pub policy: Policy,
    /// After this a parked request is denied; `None` is never.
    #[serde(rename = "park_seconds", with = "seconds_or_off")]
    pub park: Option<Duration>,
}

/// What is around the commands of embedded agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    Auto,
    Bwrap,
    Landlock,
    Off,
}

/// What becomes of a child's request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    Park,
    Allow,
    Deny,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notices {
    /// How much of a result travels with its notice.
    pub inline_characters: usize,
    pub toasts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    #[serde(with = "count_or_off")]
    pub max_tasks: Option<u64>,
    #[serde(rename = "max_age_days", with = "days_or_off")]
    pub max_age: Option<Duration>,
    /// How long an end that nobody has read keeps its task; `None` is until it is read.
    #[serde(rename = "unread_days", with = "days_or_off")]
    pub unread: Option<Duration>,
}

/// The storage directory and the disk it is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    #[serde(with = "count_or_off")]
    pub warn_free_bytes: Option<u64>,
    #[serde(with = "count_or_off")]
    pub max_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenCode {
    /// Of the one server most people have; empty when there is none.
    pub url: String,
    /// How long a server may be gone before its runs count as lost.
    #[serde(rename = "gone_seconds", with = "seconds")]
    pub gone: Duration,
    /// More servers, by names of their own.
    pub servers: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tools {
    pub aliases: BTreeSet<Alias>,
}

/// A second prefix under which the tools are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alias {
    Superagents,
    Background,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level, or directives as `tracing` takes them.
    pub level: String,
    pub keep_days: usize,
    /// All files together.
    pub max_bytes: u64,
}

impl Config {
    /// The whole config as a file that would give it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a config has only text keys and numbers TOML can hold")
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            enabled: true,
            host: String::new(),
            model: String::new(),
            sandbox: Sandbox::Auto,
            supervisor: Supervisor::default(),
            limits: Limits::default(),
            resume: Resume::default(),
            fork: Fork::default(),
            permissions: Permissions::default(),
            notices: Notices::default(),
            history: History::default(),
            storage: Storage::default(),
            agent: Agent::default(),
            providers: BTreeMap::new(),
            opencode: OpenCode::default(),
            tools: Tools::default(),
            task_tool: TaskTool::default(),
            mcp: Mcp::default(),
            api: Api::default(),
            log: Log::default(),
        }
    }
}

/// The blocking tool `Task`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mcp {
    /// 0: as the client is known to allow.
    #[serde(rename = "longest_call_seconds", with = "seconds")]
    pub longest_call: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskTool {
    pub offered: Offered,
    #[serde(rename = "timeout_seconds", with = "seconds")]
    pub timeout: Duration,
    pub on_timeout: OnTimeout,
    pub agent: String,
    pub active_per_parent: u32,
    /// How long the result of an identical call is given again; `None` is never.
    #[serde(rename = "cache_ttl_seconds", with = "seconds_or_off")]
    pub cache_ttl: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offered {
    Mcp,
    Everywhere,
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Background,
    Cancel,
}

impl Default for TaskTool {
    fn default() -> TaskTool {
        TaskTool {
            offered: Offered::Mcp,
            timeout: Duration::from_secs(30),
            on_timeout: OnTimeout::Background,
            agent: "general".to_owned(),
            active_per_parent: 3,
            cache_ttl: None,
        }
    }
}

/// Who may read the status API without its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Readers {
    /// Processes of the daemon's own user.
    User,
    /// Whoever works on this machine.
    Anyone,
}

/// The status API on a port of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    pub enabled: bool,
    pub host: String,
    /// The first that is tried; 0 is any.
    pub port: u16,
    /// Empty: a file of the storage directory.
    pub token_file: String,
    pub readers: Readers,
    /// Pages of these may read besides those of this machine; `*` is any.
    pub origins: BTreeSet<String>,
    #[serde(rename = "heartbeat_seconds", with = "seconds")]
    pub heartbeat: Duration,
    /// Of a result in lists and events.
    pub result_characters: usize,
    pub snapshot_tasks: u64,
    pub max_streams: usize,
}

impl Default for Api {
    fn default() -> Api {
        Api {
            enabled: true,
            host: "127.0.0.1".to_owned(),
            port: 5165,
            token_file: String::new(),
            readers: Readers::User,
            origins: BTreeSet::new(),
            heartbeat: Duration::from_secs(30),
            result_characters: 8000,
            snapshot_tasks: 1000,
            max_streams: 1000,
        }
    }
}

impl Default for OpenCode {
    fn default() -> OpenCode {
        OpenCode { url: String::new(), gone: Duration::from_secs(600), servers: BTreeMap::new() }
    }
}

impl Default for Supervisor {
    fn default() -> Supervisor {
        Supervisor {
            poll_interval: Duration::from_secs(2),
            max_depth: 1,
            stall: Duration::from_secs(600),
            stall_repeats: 20,
            cancel_stalled: false,
            result_cache: Duration::from_secs(300),
            settle: Duration::from_secs(2),
            answer_grace: Duration::from_secs(60),
            gone: Duration::from_secs(600),
            last_message_characters: 2000,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            active: 0,
            active_per_parent: 10,
            queued_per_parent: 1000,
            active_per_model: BTreeMap::new(),
        }
    }
}

impl Default for Permissions {
    fn default() -> Permissions {
        Permissions { policy: Policy::Park, park: Some(Duration::from_secs(3600)) }
    }
}

impl Default for Notices {
    fn default() -> Notices {
        Notices { inline_characters: 8000, toasts: true }
    }
}

impl Default for History {
    fn default() -> History {
        History { max_tasks: None, max_age: None, unread: Some(Duration::from_secs(30 * DAY)) }
    }
}

impl Default for Storage {
    fn default() -> Storage {
        Storage { warn_free_bytes: Some(256 << 20), max_bytes: None }
    }
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), keep_days: 7, max_bytes: 64 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::agent::Price;
    use super::super::check::known_keys;
    use super::super::tests::load;
    use super::super::{DEFAULT_FILE, parse};
    use super::*;

    /// Key lines are `# key = value`; prose and examples do not look like that.
    fn uncomment(line: &str) -> &str {
        let is_key =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest,
            Some(_) | None => line,
        }
    }

    #[test]
    fn the_default_file_without_its_comment_signs_is_the_default_config() {
        let text = DEFAULT_FILE.lines().map(uncomment).collect::<Vec<_>>().join("\n");
        assert_eq!(parse(&text, Path::new("config.toml")).unwrap(), known_keys());
        assert_eq!(load(&text).unwrap(), Config::default());
    }

    #[test]
    fn the_default_file_as_it_stands_changes_nothing() {
        assert_eq!(load(DEFAULT_FILE).unwrap(), Config::default());
    }

    #[test]
    fn a_shown_config_reads_back_as_itself() {
        let config = Config {
            host: "embedded".to_owned(),
            supervisor: Supervisor {
                poll_interval: Duration::from_millis(250),
                ..Supervisor::default()
            },
            limits: Limits {
                active_per_model: BTreeMap::from([("anthropic/claude".to_owned(), 2)]),
                ..Limits::default()
            },
            permissions: Permissions { policy: Policy::Deny, park: None },
            agent: Agent {
                prices: BTreeMap::from([("openai/large".to_owned(), Price::Pair([1.5, 6.0]))]),
                ..Agent::default()
            },
            opencode: OpenCode {
                url: "http://127.0.0.1:4096".to_owned(),
                gone: Duration::from_secs(60),
                servers: BTreeMap::from([("work".to_owned(), "http://127.0.0.1:5000".to_owned())]),
            },
            history: History {
                max_tasks: Some(5000),
                max_age: Some(Duration::from_secs(30 * DAY)),
                unread: Some(Duration::from_secs(9 * DAY)),
            },
            tools: Tools { aliases: BTreeSet::from([Alias::Background]) },
            ..Config::default()
        };
        assert_eq!(load(&config.to_toml()).unwrap(), config);
        assert_eq!(load(&Config::default().to_toml()).unwrap(), Config::default());
    }

    #[test]
    fn zero_switches_off_what_can_be_off() {
        let text = "[permissions]\npark_seconds = 0\n[history]\nmax_tasks = 9\nmax_age_days = 0\nunread_days = 0";
        let expected = Config {
            permissions: Permissions { park: None, ..Permissions::default() },
            history: History { max_tasks: Some(9), max_age: None, unread: None },
            ..Config::default()
        };
        assert_eq!(load(text).unwrap(), expected);
    }
}
