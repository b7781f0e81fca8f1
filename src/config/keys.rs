//! The schema of the config file, by section: of each key its meaning, its unit, its range and its default. A
//! new key is declared here and read by what needs it; template, validation and environment follow from the
//! declaration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::agent::Agent;
use super::providers::Provider;
use super::section::Rule::{self, Between, Filled};
use super::section::{YEAR, section};
use super::units::{DAY, count_or_off, days_or_off, fractional_seconds, seconds, seconds_or_off};
use crate::sandbox::Choice;
use crate::supervisor::ForkMethod;
use crate::tools::{Alias, OfferScope, OnTimeout};

// The doc comments of keys are texts for users: they are printed into the commented config file, and a snapshot test
// holds them. Notes for developers are plain comments.
section! {
    pub struct Config {
        /// When false, no tasks are launched.
        enabled: bool = true,

        /// Where agents run: "embedded", "opencode", or "scripted:/path/to.sock" for tests. A conversation's
        /// agents run where the conversation is. Empty: "opencode" if a server is configured below, else
        /// "embedded". Environment: ASYNCAGENTS_HOST.
        #[variable("ASYNCAGENTS_HOST")]
        host: String = String::new(),

        /// The model of tasks that name none, as "provider/model". Empty: the host's own choice.
        /// Environment: ASYNCAGENTS_MODEL.
        #[variable("ASYNCAGENTS_MODEL")]
        model: String = String::new(),

        /// The sandbox for commands of embedded agents (the tool `bash`): "bwrap" (bubblewrap), "landlock" (for
        /// Linux without user namespaces; it holds less), or "off". "auto" takes the first of them that works.
        /// `asyncagents doctor` says what is in force and what that does not hold; [agent] says what commands may.
        sandbox: Choice = Choice::Auto,

        supervisor: Supervisor,
        limits: Limits,
        resume: Resume,
        fork: Fork,
        permissions: Permissions,
        notices: Notices,
        notify: Notify,

        /// Old tasks are pruned when the daemon starts and then every hour, as `asyncagents prune` does it at
        /// once, with their files. A task stays while something is owed: its end to be told or read, its session
        /// to be stopped, its transcript to be fetched.
        history: History,

        storage: Storage,
        agent: Agent,

        /// Servers for models, as "NAME/model". Known without a section, by their own variables: "anthropic",
        /// "openai" (chat completions), "openai-responses", "gemini", "openrouter" and "ollama" (OLLAMA_HOST); a
        /// section of that name can give them an address and a key. Both come from one place: the environment of
        /// the client that launches, this file, or the environment that `asyncagents serve` was started in, in this
        /// order; a key there and an address here are refused. A key command gets the environment of the daemon
        /// without the keys of providers. An example:
        ///     [providers.work]
        ///     kind = "openai"                        # or "openai-responses", "anthropic", "gemini"
        ///     base_url = "https://models.example/v1" # with or without its version
        ///     key_file = "work.key"                  # beside this file, or absolute
        ///     key_command = "pass show work"         # or this, run by sh; or `asyncagents auth set work`
        #[rule(Rule::each(Table::new(), Rule::Keys(Provider::keys())))]
        providers: BTreeMap<String, Provider> = BTreeMap::new(),

        opencode: OpenCode,
        tools: Tools,
        mcp: Mcp,
        task_tool: TaskTool,
        api: Api,
        log: Log,
    }
}

section! {
    pub struct Supervisor {
        /// How often hosts are polled while tasks are active, in case an event was lost.
        #[written("poll_interval_seconds", "fractional_seconds")]
        #[rule(Between(0.05, 3600.0))]
        poll_interval: Duration = Duration::from_secs(2),

        /// How deep tasks may launch tasks. With 1 only a conversation may, not a task of its own.
        #[rule(Between(1.0, 10.0))]
        max_depth: u32 = 1,

        /// A task without any activity for this long is reported as stalled.
        #[written("stall_seconds", "seconds")]
        #[rule(Between(1.0, YEAR))]
        stall: Duration = Duration::from_secs(600),

        /// A task that repeats the same tool call this many times in a row counts as stalled, too.
        #[rule(Between(2.0, 1_000_000.0))]
        stall_repeats: u32 = 20,

        /// Whether a stalled task is cancelled, too.
        cancel_stalled: bool = false,

        /// How long a transcript of a live task that was fetched from an OpenCode server may be shown again, while
        /// the server reports nothing new in it. 0 always fetches it again.
        #[written("result_cache_seconds", "seconds")]
        #[rule(Between(0.0, YEAR))]
        result_cache: Duration = Duration::from_secs(300),

        /// How long an unfinished answer in an idle session is watched before the host counts as restarted.
        #[written("settle_seconds", "seconds")]
        #[rule(Between(0.0, 3600.0))]
        settle: Duration = Duration::from_secs(2),

        /// How long an accepted prompt may stay without any answer in an idle session.
        #[written("answer_grace_seconds", "seconds")]
        #[rule(Between(1.0, 3600.0))]
        answer_grace: Duration = Duration::from_secs(60),

        /// A run whose host cannot be reached, or that cannot go on for another reason that may pass (a disk
        /// that is full, a file system that does not answer), is retried for this long, then ended as failed.
        #[written("gone_seconds", "seconds")]
        #[rule(Between(1.0, YEAR))]
        gone: Duration = Duration::from_secs(600),

        /// How many characters of the end of an agent's last message are shown with its progress (`lastMessage`).
        #[rule(Between(1.0, 10_000.0))]
        last_message_characters: usize = 2000,
    }
}

// Applied while the daemon runs (`daemon/reload.rs`), as are `task_tool.active_per_parent` and `log.level`. A key that
// becomes reloadable has to be copied there, or commands go on asking for a restart.
section! {
    pub struct Limits {
        /// How many tasks of all parents together may run at the same time; 0 is no limit. Waiting parents are
        /// served round robin.
        #[rule(Between(0.0, 1_000_000.0))]
        active: u32 = 0,

        /// How many tasks of one parent may run at the same time; further ones are queued.
        #[rule(Between(1.0, 1000.0))]
        active_per_parent: u32 = 10,

        /// How many tasks of one parent may be queued; beyond that, a launch or a resume that would have to wait
        /// is refused. 0 allows no queue.
        #[rule(Between(0.0, 1_000_000.0))]
        queued_per_parent: u32 = 1000,

        /// How many tasks may run at the same time with one model, including those that name none and get it.
        /// A model that is not listed has no limit.
        /// An example, with the name in quotes:
        ///     "anthropic/claude-sonnet-4-5" = 2
        #[rule(Rule::each(1, Between(1.0, 1000.0)))]
        active_per_model: BTreeMap<String, u32> = BTreeMap::new(),
    }
}

section! {
    pub struct Resume {
        /// By default only completed tasks can be resumed; with true also failed and cancelled ones.
        any_status: bool = false,
    }
}

section! {
    pub struct Fork {
        /// How a forked task gets the conversation of its parent: "context" hands it over as a text, from the
        /// latest compaction on, with old tool results cut; "native" has the host copy the session, with all
        /// of it, where the host can (the embedded one can), and is "context" elsewhere.
        method: ForkMethod = ForkMethod::Context,
    }
}

section! {
    pub struct Permissions {
        /// What becomes of a request for permission, or a question, from a task: "park" waits for an answer
        /// from you, "allow" and "deny" answer at once.
        policy: Policy = Policy::Park,

        /// A parked request is denied after this time, counted from the request, also across restarts. 0 lets it
        /// wait for ever.
        #[written("park_seconds", "seconds_or_off")]
        #[rule(Between(0.0, YEAR))]
        park: Option<Duration> = Some(Duration::from_secs(3600)),
    }
}

/// What becomes of a child's request for permission. How long one is parked is a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    Park,
    Allow,
    Deny,
}

section! {
    pub struct Notices {
        /// How many characters of a result are included when the parent is told that a task has ended.
        #[rule(Between(0.0, 1_000_000.0))]
        inline_characters: usize = 8000,

        /// Short messages on the screen of the host, only on hosts that support toasts.
        toasts: bool = true,
    }
}

section! {
    /// Telling people outside of a conversation.
    pub struct Notify {
        /// Notify when a task ends or asks for a permission: by desktop notification, with the program
        /// `notify-send`.
        desktop: bool = false,

        /// By a POST of JSON to this address, tried again until it is answered with a status of success. The header
        /// `X-Asyncagents-Signature` is "sha256=" and the HMAC-SHA256, in hexadecimal, of the header
        /// `X-Asyncagents-Timestamp`, a dot and the body; `Idempotency-Key` is the same in every attempt. Needs a
        /// secret. Empty: none.
        webhook_url: String = String::new(),

        /// A file with the secret of the signature, beside this file or absolute.
        webhook_secret_file: String = String::new(),

        /// Or a command that prints it, run by sh.
        webhook_secret_command: String = String::new(),

        /// By a command, run by sh, that gets the same JSON on its standard input. It may take 30 seconds, and one
        /// that fails is run again. Empty: none.
        command: String = String::new(),

        /// Undelivered notifications are dropped, and logged, after this time.
        #[written("give_up_seconds", "seconds")]
        #[rule(Between(1.0, YEAR))]
        give_up: Duration = Duration::from_secs(86_400),
    }
}

section! {
    pub struct History {
        /// Ended tasks beyond this number are pruned, the oldest first. 0 keeps all.
        #[written("max_tasks", "count_or_off")]
        #[rule(Between(0.0, 1e12))]
        max_tasks: Option<u64> = None,

        /// Tasks that ended more than this many days ago are pruned. 0 keeps all.
        #[written("max_age_days", "days_or_off")]
        #[rule(Between(0.0, 36_500.0))]
        max_age: Option<Duration> = None,

        /// A task whose end its MCP client has not read is kept for this many days. 0 keeps it until the end is
        /// read. Does not apply to tasks launched from the shell.
        #[written("unread_days", "days_or_off")]
        #[rule(Between(0.0, 36_500.0))]
        unread: Option<Duration> = Some(Duration::from_secs(30 * DAY)),
    }
}

section! {
    /// The storage directory and the disk it is on.
    pub struct Storage {
        /// When the disk of the storage directory has less room than this, `doctor` and `daemon status` say so.
        /// 0 switches that off.
        #[written("warn_free_bytes", "count_or_off")]
        #[rule(Between(0.0, 1e15))]
        warn_free_bytes: Option<u64> = Some(256 << 20),

        /// When the storage directory holds more than this, nothing is launched until some is pruned; what runs
        /// goes on. 0 sets no limit.
        #[written("max_bytes", "count_or_off")]
        #[rule(Between(0.0, 1e15))]
        max_bytes: Option<u64> = None,
    }
}

section! {
    pub struct OpenCode {
        /// The address of an OpenCode server, such as "http://127.0.0.1:4096". Environment:
        /// ASYNCAGENTS_OPENCODE_URL. Its password is taken from OPENCODE_SERVER_PASSWORD (and the name from
        /// OPENCODE_SERVER_USERNAME), or from the address: "http://opencode:PASSWORD@127.0.0.1:4096".
        #[variable("ASYNCAGENTS_OPENCODE_URL")]
        url: String = String::new(),

        /// A task whose server, or whose OpenCode process, has been gone for this long ends as interrupted.
        #[written("gone_seconds", "seconds")]
        #[rule(Between(1.0, YEAR))]
        gone: Duration = Duration::from_secs(600),

        /// More servers, by names you choose. Tasks remember the name, so the address may change. An example:
        ///     work = "http://127.0.0.1:4097"
        #[rule(Rule::each("", Filled))]
        servers: BTreeMap<String, String> = BTreeMap::new(),
    }
}

section! {
    pub struct Tools {
        /// The tools are called asyncagents_…; here they get second names: "superagents", "background".
        aliases: BTreeSet<Alias> = BTreeSet::new(),
    }
}

section! {
    pub struct Mcp {
        /// The longest a tool call of an MCP client may take; it then returns and says how to continue. 0 uses the
        /// client's known timeout: Claude Code 1790, Gemini 590, Codex 290, any other 45. No tool waits for more
        /// than 600.
        #[written("longest_call_seconds", "seconds")]
        #[rule(Between(0.0, 600.0))]
        longest_call: Duration = Duration::ZERO,

        /// The most MCP sessions over HTTP (`/mcp` of the status API) at the same time.
        #[rule(Between(1.0, 10_000.0))]
        max_sessions: usize = 200,

        /// A session over HTTP without a request or an open stream for this long is over; its client begins
        /// another one.
        #[written("session_idle_seconds", "seconds")]
        #[rule(Between(1.0, YEAR))]
        session_idle: Duration = Duration::from_secs(1800),
    }
}

section! {
    /// The blocking tool `Task`.
    pub struct TaskTool {
        /// The tool `Task` waits for its agent's answer. Where it is offered: "mcp" to clients of
        /// `asyncagents mcp`, "everywhere" also in OpenCode, or "nowhere".
        offered: OfferScope = OfferScope::Mcp,

        /// How long a call waits for its agent; for MCP clients at most mcp.longest_call_seconds.
        #[written("timeout_seconds", "seconds")]
        #[rule(Between(1.0, 600.0))]
        timeout: Duration = Duration::from_secs(30),

        /// What becomes of an agent that takes longer: "background" lets it go on, "cancel" stops it.
        on_timeout: OnTimeout = OnTimeout::Background,

        /// The agent to use when the caller is not an agent. With one that only reads, such as "explore", MCP
        /// clients may run several calls at the same time.
        #[rule(Filled)]
        agent: String = "general".to_owned(),

        /// How many of them may run at the same time for one parent; further ones are queued, and that time counts
        /// as waiting.
        #[rule(Between(1.0, 1000.0))]
        active_per_parent: u32 = 3,

        /// How long the result of an identical call of the same parent is reused. 0 never reuses one.
        #[written("cache_ttl_seconds", "seconds_or_off")]
        #[rule(Between(0.0, YEAR))]
        cache_ttl: Option<Duration> = None,
    }
}

section! {
    /// The status API on a port of this machine.
    pub struct Api {
        /// The status API: tasks, totals and events for other programs, on a port of this machine, with what agents
        /// were asked and what they answered. Where it listens is in `server.json` in the storage directory.
        /// Environment: ASYNCAGENTS_API_ENABLED=false.
        #[variable("ASYNCAGENTS_API_ENABLED")]
        enabled: bool = true,

        /// Listening address; one that other machines can reach requires `token_file`. Environment:
        /// ASYNCAGENTS_API_HOST.
        #[variable("ASYNCAGENTS_API_HOST")]
        #[rule(Filled)]
        host: String = "127.0.0.1".to_owned(),

        /// Port. If it is in use, the next nine are tried, then any free one. 0 picks a free one. Environment:
        /// ASYNCAGENTS_API_PORT.
        #[variable("ASYNCAGENTS_API_PORT")]
        #[rule(Between(0.0, 65_535.0))]
        port: u16 = 5165,

        /// A file with the token that lets requests change something, readable by you alone. Empty: the file
        /// `token` in the storage directory, which is made by itself.
        token_file: String = String::new(),

        /// Who may read without the token: "user" for your own processes, "anyone" for every user of this machine.
        readers: Readers = Readers::User,

        /// Pages may read that come from this machine (http://localhost:…). More origins, such as
        /// "https://status.example"; "*" is any.
        #[rule(Filled)]
        origins: BTreeSet<String> = BTreeSet::new(),

        /// How often an event stream sends a heartbeat while there are no events.
        #[written("heartbeat_seconds", "seconds")]
        #[rule(Between(1.0, 3600.0))]
        heartbeat: Duration = Duration::from_secs(30),

        /// How many characters of a result are in lists and events, including those of commands; a longer one has
        /// `resultTruncated`. A single task is always shown with its whole result.
        #[rule(Between(1.0, 1_000_000.0))]
        result_characters: usize = 8000,

        /// An event stream begins with all live tasks and up to this many ended ones.
        #[rule(Between(0.0, 100_000.0))]
        snapshot_tasks: u64 = 1000,

        /// How many clients may read the event stream at the same time; fewer where the system's limit of open
        /// files is too low for that.
        #[rule(Between(0.0, 100_000.0))]
        max_streams: usize = 1000,
    }
}

/// Who may read the status API without its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Readers {
    /// Processes of the daemon's own user.
    User,
    /// Every user of this machine.
    Anyone,
}

section! {
    pub struct Log {
        /// "error", "warn", "info", "debug", or directives such as "info,asyncagents=debug".
        /// Environment: ASYNCAGENTS_LOG.
        #[variable("ASYNCAGENTS_LOG")]
        #[rule(Filled)]
        level: String = "info".to_owned(),

        /// Log files older than this many days are deleted.
        #[rule(Between(1.0, 3650.0))]
        keep_days: usize = 7,

        /// Log files take no more than this, all together; the oldest go first.
        #[rule(Between(100_000.0, 1e12))]
        max_bytes: u64 = 64 << 20,
    }
}

impl Config {
    /// The whole config as a file that would give it.
    pub fn to_toml(&self) -> String {
        // Cannot fail: `a_shown_config_reads_back_as_itself` covers the keys that are not plain values.
        toml::to_string(self).expect("a config has only text keys and numbers TOML can hold")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::agent::Price;
    use super::super::tests::load;
    use super::super::{default_file, parse};
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
        let text = default_file().lines().map(uncomment).collect::<Vec<_>>().join("\n");
        let every_key = Table::try_from(Config::default()).unwrap();
        assert_eq!(parse(&text, Path::new("config.toml")).unwrap(), every_key);
        assert_eq!(load(&text).unwrap(), Config::default());
    }

    #[test]
    fn the_default_file_as_it_stands_changes_nothing() {
        assert_eq!(load(&default_file()).unwrap(), Config::default());
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
    fn zero_disables_the_limits_that_can_be_disabled() {
        let text = "[permissions]\npark_seconds = 0\n[history]\nmax_tasks = 9\nmax_age_days = 0\nunread_days = 0";
        let expected = Config {
            permissions: Permissions { park: None, ..Permissions::default() },
            history: History { max_tasks: Some(9), max_age: None, unread: None },
            ..Config::default()
        };
        assert_eq!(load(text).unwrap(), expected);
    }
}
