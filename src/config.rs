//! The settings: defaults ← file ← environment ← flags, resolved once. The only place that reads
//! the process's environment. What each key means is said in `config.default.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::{Table, Value};

/// The commented file that documents every key; as it stands it changes nothing.
pub const DEFAULT_FILE: &str = include_str!("config.default.toml");

/// Keys in this table are names of models, so any key is known.
const FREE_FORM: &str = "limits.active_per_model";

/// Variables that set a key of the config.
const VARIABLES: [(&str, &str); 7] = [
    ("ASYNCAGENTS_HOST", "host"),
    ("ASYNCAGENTS_MODEL", "model"),
    ("ASYNCAGENTS_API_ENABLED", "api.enabled"),
    ("ASYNCAGENTS_API_HOST", "api.host"),
    ("ASYNCAGENTS_API_PORT", "api.port"),
    ("ASYNCAGENTS_OPENCODE_URL", "opencode.url"),
    ("ASYNCAGENTS_LOG", "log.level"),
];

const DAY: u64 = 86_400;
/// The longest time a key takes: far enough for "never", near enough to be added to a clock.
const YEAR: f64 = 365.0 * DAY as f64;

/// What a value may be beyond its type. Every number has its range here.
const RULES: &[(&str, Rule)] = &[
    ("supervisor.poll_interval_seconds", Rule::Between(0.05, 3600.0)),
    ("supervisor.max_depth", Rule::Between(1.0, 10.0)),
    ("supervisor.stall_seconds", Rule::Between(1.0, YEAR)),
    ("supervisor.stall_repeats", Rule::Between(2.0, 1_000_000.0)),
    ("supervisor.result_cache_seconds", Rule::Between(0.0, YEAR)),
    ("supervisor.settle_seconds", Rule::Between(0.0, 3600.0)),
    ("supervisor.answer_grace_seconds", Rule::Between(1.0, 3600.0)),
    ("limits.active_per_parent", Rule::Between(1.0, 1000.0)),
    ("limits.queued_per_parent", Rule::Between(0.0, 1_000_000.0)),
    (FREE_FORM, Rule::Between(1.0, 1000.0)),
    ("permissions.policy", Rule::OneOf(&["park", "allow", "deny"])),
    ("permissions.park_seconds", Rule::Between(0.0, YEAR)),
    ("notices.inline_characters", Rule::Between(0.0, 1_000_000.0)),
    ("history.max_tasks", Rule::Between(0.0, 1e12)),
    ("history.max_age_days", Rule::Between(0.0, 36_500.0)),
    ("tools.aliases", Rule::OneOf(&["superagents", "background"])),
    ("task_tool.timeout_seconds", Rule::Between(1.0, DAY as f64)),
    ("task_tool.on_timeout", Rule::OneOf(&["background", "cancel"])),
    ("task_tool.agent", Rule::Filled),
    ("task_tool.concurrent", Rule::Between(1.0, 1000.0)),
    ("task_tool.cache_ttl_seconds", Rule::Between(0.0, YEAR)),
    ("api.host", Rule::Address),
    ("api.port", Rule::Between(0.0, 65_535.0)),
    ("opencode.url", Rule::UrlOrEmpty),
    ("log.level", Rule::Filled),
    ("log.keep_days", Rule::Between(1.0, 3650.0)),
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{name}` in the environment is not valid UTF-8; set it to plain text or unset it")]
    NotText { name: String },
    #[error("there is no default for the {what} without a home; set `HOME` or `{variable}`")]
    NoHome { what: &'static str, variable: &'static str },
    #[error("cannot tell where `{path}` is; give an absolute path")]
    NoPlace { path: PathBuf, source: io::Error },
    #[error(
        "config file `{file}` does not exist; create it, or name none by `--config` \
         or `ASYNCAGENTS_CONFIG`"
    )]
    Missing { file: PathBuf },
    #[error("cannot read config file `{file}`")]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("config file `{file}` is not valid TOML")]
    Syntax { file: PathBuf, source: Box<toml::de::Error> },
    #[error("unknown key `{key}` in {file}; {hint}")]
    UnknownKey { key: String, file: String, hint: String },
    /// `name` is a key or a variable, `place` a file or the environment.
    #[error("`{name}` in {place} is `{found}`; give {expected}")]
    Unfit { name: String, place: String, found: String, expected: String },
    #[error("config file `{file}` cannot be used")]
    Unusable { file: PathBuf, source: Box<toml::de::Error> },
}

/// What the process goes by, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub config: Config,
    /// The storage directory; absolute, perhaps not there yet.
    pub home: PathBuf,
    /// Absolute; the default one is perhaps not there.
    pub config_file: PathBuf,
    /// `NODE_ENV=development`
    pub development: bool,
    /// `ASYNCAGENTS_PARENT`: the session on whose behalf this process was started.
    pub parent: Option<String>,
}

/// What was said on the command line; it has the last word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub home: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub host: Option<String>,
    pub model: Option<String>,
}

/// A snapshot of the environment. Not `Debug`: it holds keys of providers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, OsString>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Empty: choose the default.
    pub host: String,
    /// `provider/model`, or empty: choose the default.
    pub model: String,
    pub supervisor: Supervisor,
    pub limits: Limits,
    pub resume: Resume,
    pub permissions: Permissions,
    pub notices: Notices,
    pub history: History,
    pub tools: Tools,
    pub task_tool: TaskTool,
    pub api: Api,
    pub opencode: Opencode,
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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permissions {
    pub policy: Policy,
    /// After this a parked request is denied; `None` is never.
    #[serde(rename = "park_seconds", with = "seconds_or_off")]
    pub park: Option<Duration>,
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
    pub os: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    #[serde(with = "count_or_off")]
    pub max_tasks: Option<u64>,
    #[serde(rename = "max_age_days", with = "days_or_off")]
    pub max_age: Option<Duration>,
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

/// The blocking `Task`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskTool {
    #[serde(rename = "timeout_seconds", with = "seconds")]
    pub timeout: Duration,
    pub on_timeout: OnTimeout,
    /// Where the caller's own agent is not known.
    pub agent: String,
    /// At once, per parent.
    pub concurrent: u32,
    #[serde(rename = "cache_ttl_seconds", with = "seconds_or_off")]
    pub cache_ttl: Option<Duration>,
}

/// What becomes of a task whose caller has waited long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Background,
    Cancel,
}

/// The status API over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    pub enabled: bool,
    /// An IP address or `localhost`.
    pub host: String,
    /// The first port to try; 0 lets the system choose.
    pub port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Opencode {
    /// Empty: not told.
    pub url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level, or directives as `tracing` takes them.
    pub level: String,
    pub keep_days: usize,
}

impl Settings {
    pub fn resolve(environment: &Environment, flags: &Flags) -> Result<Settings, Error> {
        let (config_file, mut table) = config_file(environment, flags)?;
        set_from_environment(&mut table, environment)?;
        set_from_flags(&mut table, flags);
        let config = table.try_into().map_err(|source| Error::Unusable {
            file: config_file.clone(),
            source: Box::new(source),
        })?;
        Ok(Settings {
            config,
            home: home(environment, flags)?,
            config_file,
            development: environment.get("NODE_ENV")? == Some("development"),
            parent: environment.get("ASYNCAGENTS_PARENT")?.map(str::to_owned),
        })
    }

    /// Where the config file is or would be; it is not read.
    pub fn config_file(environment: &Environment, flags: &Flags) -> Result<PathBuf, Error> {
        match named_path(&flags.config, environment, "ASYNCAGENTS_CONFIG")? {
            Some(file) => Ok(file),
            None => default_config_file(environment),
        }
    }
}

impl Config {
    /// The whole config as a file that would give it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a config has only text keys and numbers TOML can hold")
    }
}

impl Environment {
    /// The process's own. Call it once, in `main`, and hand it on.
    pub fn read() -> Environment {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Environment(std::env::vars_os().filter_map(named).collect())
    }

    pub fn of<N: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Environment {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        Environment(pairs.collect())
    }

    /// An empty variable counts as unset.
    pub fn get(&self, name: &str) -> Result<Option<&str>, Error> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| Error::NotText { name: name.to_owned() })?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            enabled: true,
            host: String::new(),
            model: String::new(),
            supervisor: Supervisor::default(),
            limits: Limits::default(),
            resume: Resume::default(),
            permissions: Permissions::default(),
            notices: Notices::default(),
            history: History::default(),
            tools: Tools::default(),
            task_tool: TaskTool::default(),
            api: Api::default(),
            opencode: Opencode::default(),
            log: Log::default(),
        }
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
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { active_per_parent: 10, queued_per_parent: 1000, active_per_model: BTreeMap::new() }
    }
}

impl Default for Permissions {
    fn default() -> Permissions {
        Permissions { policy: Policy::Park, park: Some(Duration::from_secs(3600)) }
    }
}

impl Default for Notices {
    fn default() -> Notices {
        Notices { inline_characters: 8000, toasts: true, os: false }
    }
}

impl Default for TaskTool {
    fn default() -> TaskTool {
        TaskTool {
            timeout: Duration::from_secs(30),
            on_timeout: OnTimeout::Background,
            agent: "general".to_owned(),
            concurrent: 3,
            cache_ttl: None,
        }
    }
}

impl Default for Api {
    fn default() -> Api {
        Api { enabled: true, host: "127.0.0.1".to_owned(), port: 5165 }
    }
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), keep_days: 7 }
    }
}

fn home(environment: &Environment, flags: &Flags) -> Result<PathBuf, Error> {
    if let Some(home) = named_path(&flags.home, environment, "ASYNCAGENTS_HOME")? {
        return Ok(home);
    }
    let data = base_directory(environment, "XDG_DATA_HOME", ".local/share")?;
    let data =
        data.ok_or(Error::NoHome { what: "storage directory", variable: "ASYNCAGENTS_HOME" })?;
    absolute(&data.join("asyncagents"))
}

/// The file and what it says. Only a file that somebody named has to be there.
fn config_file(environment: &Environment, flags: &Flags) -> Result<(PathBuf, Table), Error> {
    if let Some(file) = named_path(&flags.config, environment, "ASYNCAGENTS_CONFIG")? {
        let table = read_file(&file)?.ok_or_else(|| Error::Missing { file: file.clone() })?;
        return Ok((file, table));
    }
    let file = default_config_file(environment)?;
    let table = read_file(&file)?.unwrap_or_default();
    Ok((file, table))
}

fn default_config_file(environment: &Environment) -> Result<PathBuf, Error> {
    let config = base_directory(environment, "XDG_CONFIG_HOME", ".config")?;
    let config =
        config.ok_or(Error::NoHome { what: "config file", variable: "ASYNCAGENTS_CONFIG" })?;
    absolute(&config.join("asyncagents/config.toml"))
}

fn named_path(
    flag: &Option<PathBuf>,
    environment: &Environment,
    variable: &str,
) -> Result<Option<PathBuf>, Error> {
    match (flag, environment.get(variable)?) {
        (Some(path), _) => absolute(path).map(Some),
        (None, Some(path)) => absolute(Path::new(path)).map(Some),
        (None, None) => Ok(None),
    }
}

/// The XDG specification has relative paths ignored.
fn base_directory(
    environment: &Environment,
    variable: &str,
    under_home: &str,
) -> Result<Option<PathBuf>, Error> {
    let named = environment.get(variable)?.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = environment.get("HOME")?;
    Ok(named.or_else(|| home.map(|home| Path::new(home).join(under_home))))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::NoPlace { path: path.to_owned(), source })
}

fn read_file(file: &Path) -> Result<Option<Table>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(&text, file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Unreadable { file: file.to_owned(), source }),
    }
}

fn parse(text: &str, file: &Path) -> Result<Table, Error> {
    let syntax = |source| Error::Syntax { file: file.to_owned(), source: Box::new(source) };
    let table = text.parse().map_err(syntax)?;
    check_section("", &table, &known_keys(), &file.display().to_string())?;
    Ok(table)
}

fn set_from_environment(table: &mut Table, environment: &Environment) -> Result<(), Error> {
    for (variable, key) in VARIABLES {
        let Some(text) = environment.get(variable)? else { continue };
        let text_value = Value::String(text.to_owned());
        let value = match key {
            "api.enabled" => Value::Boolean(text != "false"),
            "api.port" => text.parse().map_or(text_value, Value::Integer),
            _ => text_value,
        };
        check_rule(key, &value, variable, "the environment")?;
        set(table, key, value);
    }
    Ok(())
}

fn set_from_flags(table: &mut Table, flags: &Flags) {
    for (key, flag) in [("host", &flags.host), ("model", &flags.model)] {
        if let Some(value) = flag {
            set(table, key, Value::String(value.clone()));
        }
    }
}

fn set(table: &mut Table, key: &str, value: Value) {
    let Some((section, name)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return;
    };
    let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(section) = section {
        section.insert(name.to_owned(), value);
    }
}

fn known_keys() -> Table {
    Table::try_from(Config::default()).expect("the defaults can be written as TOML")
}

/// Compares what a file says with the defaults, which have every key and its type.
fn check_section(path: &str, found: &Table, known: &Table, file: &str) -> Result<(), Error> {
    for (name, value) in found {
        let key = join(path, name);
        let Some(default) = known.get(name) else {
            let hint = hint(path, name, known);
            return Err(Error::UnknownKey { key, file: file.to_owned(), hint });
        };
        check_type(&key, value, default, file)?;
        match (value, default) {
            (Value::Table(models), _) if key == FREE_FORM => check_models(models, file)?,
            (Value::Table(found), Value::Table(known)) => check_section(&key, found, known, file)?,
            _ => check_rule(&key, value, &key, file)?,
        }
    }
    Ok(())
}

fn check_models(models: &Table, file: &str) -> Result<(), Error> {
    for (model, limit) in models {
        let key = join(FREE_FORM, model);
        check_type(&key, limit, &Value::Integer(1), file)?;
        check_rule(FREE_FORM, limit, &key, file)?;
    }
    Ok(())
}

fn check_type(key: &str, value: &Value, default: &Value, file: &str) -> Result<(), Error> {
    let expected = match default {
        _ if value.same_type(default) => return Ok(()),
        Value::Float(_) if value.is_integer() => return Ok(()),
        Value::String(_) => "a text in quotes",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "`true` or `false`",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list in brackets",
        Value::Table(_) => "a section of its own",
    };
    Err(unfit(key, file, value, expected))
}

/// `name` and `place` say where the value came from, should it not fit.
fn check_rule(key: &str, value: &Value, name: &str, place: &str) -> Result<(), Error> {
    match RULES.iter().find(|(ruled, _)| *ruled == key) {
        Some((_, rule)) if !rule.admits(value) => {
            Err(unfit(name, place, value, &rule.expectation()))
        }
        Some(_) | None => Ok(()),
    }
}

fn unfit(name: &str, place: &str, value: &Value, expected: &str) -> Error {
    Error::Unfit {
        name: name.to_owned(),
        place: place.to_owned(),
        found: value.to_string(),
        expected: expected.to_owned(),
    }
}

/// The way out of an unknown key: a near one, the section it belongs in, or all there are.
fn hint(path: &str, name: &str, known: &Table) -> String {
    let distance = |candidate: &&String| strsim::damerau_levenshtein(candidate, name);
    let close = (name.chars().count() / 3).max(1);
    let near = known.keys().min_by_key(distance).filter(|near| distance(near) <= close);
    match near.map(|near| join(path, near)).or_else(|| find_elsewhere(name)) {
        Some(key) => format!("did you mean `{key}`?"),
        None => format!("the keys there are {}", quoted(known.keys(), ", ")),
    }
}

/// The one section that has this key, if only one has.
fn find_elsewhere(name: &str) -> Option<String> {
    let known = known_keys();
    let has = |section: &Value| section.as_table().is_some_and(|keys| keys.contains_key(name));
    let mut sections = known.iter().filter(|(_, section)| has(section));
    match (sections.next(), sections.next()) {
        (Some((section, _)), None) => Some(join(section, name)),
        (None | Some(_), _) => None,
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn quoted(words: impl IntoIterator<Item = impl AsRef<str>>, separator: &str) -> String {
    let words = words.into_iter().map(|word| format!("`{}`", word.as_ref()));
    words.collect::<Vec<_>>().join(separator)
}

enum Rule {
    Between(f64, f64),
    /// Of a list: each of its members.
    OneOf(&'static [&'static str]),
    Filled,
    Address,
    UrlOrEmpty,
}

impl Rule {
    fn admits(&self, value: &Value) -> bool {
        match self {
            Rule::Between(least, most) => {
                let whole = value.as_integer().map(|number| number as f64);
                whole.or(value.as_float()).is_some_and(|number| (*least..=*most).contains(&number))
            }
            Rule::OneOf(words) => match value {
                Value::Array(members) => members.iter().all(|member| is_among(words, member)),
                other => is_among(words, other),
            },
            Rule::Filled => value.as_str().is_some_and(|text| !text.trim().is_empty()),
            Rule::Address => value.as_str().is_some_and(is_address),
            Rule::UrlOrEmpty => value.as_str().is_some_and(|text| text.is_empty() || is_url(text)),
        }
    }

    fn expectation(&self) -> String {
        match self {
            Rule::Between(least, most) => format!("a number from {least} to {most}"),
            Rule::OneOf(words) => quoted(*words, " or "),
            Rule::Filled => "a text that is not empty".to_owned(),
            Rule::Address => "an IP address such as `127.0.0.1`, or `localhost`".to_owned(),
            Rule::UrlOrEmpty => "a URL such as `http://127.0.0.1:4096`".to_owned(),
        }
    }
}

fn is_among(words: &[&str], value: &Value) -> bool {
    value.as_str().is_some_and(|text| words.contains(&text))
}

fn is_address(text: &str) -> bool {
    text == "localhost" || text.parse::<IpAddr>().is_ok()
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty())
}

mod seconds {
    use super::*;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_secs())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

mod fractional_seconds {
    use super::*;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

mod count_or_off {
    use super::*;

    pub(super) fn serialize<S: Serializer>(count: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(count.unwrap_or(0))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Option<u64>, D::Error> {
        Ok(Some(u64::deserialize(from)?).filter(|count| *count > 0))
    }
}

mod seconds_or_off {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        count_or_off::serialize(&time.map(|time| time.as_secs()), to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(count_or_off::deserialize(from)?.map(Duration::from_secs))
    }
}

mod days_or_off {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        count_or_off::serialize(&time.map(|time| time.as_secs() / DAY), to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(count_or_off::deserialize(from)?
            .map(|days| Duration::from_secs(days.saturating_mul(DAY))))
    }
}

#[cfg(test)]
mod tests {
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

    fn load(text: &str) -> Result<Config, Error> {
        Ok(parse(text, Path::new("config.toml"))?.try_into().unwrap())
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
    fn every_number_has_a_range_and_every_rule_a_key() {
        let mut numbers = BTreeSet::new();
        let mut keys = BTreeSet::new();
        for (section, value) in known_keys() {
            for (name, value) in value.as_table().into_iter().flatten() {
                let key = join(&section, name);
                if value.is_integer() || value.is_float() {
                    numbers.insert(key.clone());
                }
                keys.insert(key);
            }
        }
        let ruled: BTreeSet<String> = RULES.iter().map(|(key, _)| (*key).to_owned()).collect();
        assert_eq!(numbers.difference(&ruled).collect::<Vec<_>>(), [] as [&String; 0]);
        assert_eq!(ruled.difference(&keys).collect::<Vec<_>>(), [] as [&String; 0]);
    }

    #[test]
    fn every_word_a_rule_admits_can_be_read() {
        for (key, rule) in RULES {
            let Rule::OneOf(words) = rule else { continue };
            for word in *words {
                let word = Value::from(*word);
                let value = if *key == "tools.aliases" { Value::Array(vec![word]) } else { word };
                let mut table = Table::new();
                set(&mut table, key, value);
                table.try_into::<Config>().unwrap();
            }
        }
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
            history: History {
                max_tasks: Some(5000),
                max_age: Some(Duration::from_secs(30 * DAY)),
            },
            tools: Tools { aliases: BTreeSet::from([Alias::Background]) },
            task_tool: TaskTool {
                on_timeout: OnTimeout::Cancel,
                cache_ttl: Some(Duration::from_secs(9)),
                ..TaskTool::default()
            },
            ..Config::default()
        };
        assert_eq!(load(&config.to_toml()).unwrap(), config);
        assert_eq!(load(&Config::default().to_toml()).unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_way_out() {
        let check = |text: &str, expected: &str| {
            assert_eq!(load(text).unwrap_err().to_string(), expected, "{text}");
        };
        check(
            "[limits]\nactive_per_parnt = 3",
            "unknown key `limits.active_per_parnt` in config.toml; \
             did you mean `limits.active_per_parent`?",
        );
        check("[limit]", "unknown key `limit` in config.toml; did you mean `limits`?");
        check("enabeld = true", "unknown key `enabeld` in config.toml; did you mean `enabled`?");
        check(
            "[log]\nmax_depth = 2",
            "unknown key `log.max_depth` in config.toml; did you mean `supervisor.max_depth`?",
        );
        check(
            "[notices]\nsound = true",
            "unknown key `notices.sound` in config.toml; \
             the keys there are `inline_characters`, `os`, `toasts`",
        );
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_with_the_way_out() {
        let check = |text: &str, expected: &str| {
            assert_eq!(load(text).unwrap_err().to_string(), expected, "{text}");
        };
        for (section, line, found, expected) in [
            ("limits", "active_per_parent", "0", "a number from 1 to 1000"),
            ("limits", "active_per_parent", "-1", "a number from 1 to 1000"),
            ("limits", "active_per_parent", r#""ten""#, "a whole number"),
            ("limits", "active_per_parent", "2.5", "a whole number"),
            ("limits", "active_per_model", "3", "a section of its own"),
            ("limits.active_per_model", "gpt", "0", "a number from 1 to 1000"),
            ("limits.active_per_model", "gpt", "true", "a whole number"),
            ("supervisor", "poll_interval_seconds", "0", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "-2.0", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "nan", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", "inf", "a number from 0.05 to 3600"),
            ("supervisor", "poll_interval_seconds", r#""2""#, "a number"),
            ("notices", "inline_characters", "1000001", "a number from 0 to 1000000"),
            ("notices", "toasts", r#""no""#, "`true` or `false`"),
            ("permissions", "policy", r#""ask""#, "`park` or `allow` or `deny`"),
            ("tools", "aliases", r#""background""#, "a list in brackets"),
            ("tools", "aliases", r#"["bg"]"#, "`superagents` or `background`"),
            ("tools", "aliases", "[1]", "`superagents` or `background`"),
            ("task_tool", "agent", r#""""#, "a text that is not empty"),
            ("api", "port", "65536", "a number from 0 to 65535"),
            ("api", "host", r#""*""#, "an IP address such as `127.0.0.1`, or `localhost`"),
            ("opencode", "url", r#"":4096""#, "a URL such as `http://127.0.0.1:4096`"),
        ] {
            check(
                &format!("[{section}]\n{line} = {found}"),
                &format!("`{section}.{line}` in config.toml is `{found}`; give {expected}"),
            );
        }
    }

    #[test]
    fn zero_switches_off_what_can_be_off() {
        let text = "[permissions]\npark_seconds = 0\n[history]\nmax_tasks = 9\nmax_age_days = 0";
        let expected = Config {
            permissions: Permissions { park: None, ..Permissions::default() },
            history: History { max_tasks: Some(9), max_age: None },
            ..Config::default()
        };
        assert_eq!(load(text).unwrap(), expected);
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_the_defaults() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, "host = 'file'\nmodel = 'file'\n[api]\nport = 1\nenabled = false")
            .unwrap();
        let environment = Environment::of([
            ("HOME", "/home/ada"),
            ("ASYNCAGENTS_CONFIG", "/from/environment.toml"),
            ("ASYNCAGENTS_HOST", "environment"),
            ("ASYNCAGENTS_MODEL", "environment"),
            ("ASYNCAGENTS_API_PORT", "2"),
            ("ASYNCAGENTS_API_HOST", ""),
            ("ASYNCAGENTS_LOG", "debug"),
            ("ASYNCAGENTS_OPENCODE_URL", "http://localhost:4096"),
            ("ASYNCAGENTS_PARENT", "ses_parent"),
            ("ASYNCAGENTS_UNHEARD_OF", "1"),
            ("NODE_ENV", "development"),
        ]);
        let flags = Flags {
            home: Some("/from/flag".into()),
            config: Some(file.clone()),
            model: Some("flag".to_owned()),
            ..Flags::default()
        };
        let expected = Settings {
            config: Config {
                host: "environment".to_owned(),
                model: "flag".to_owned(),
                api: Api { enabled: false, port: 2, ..Api::default() },
                opencode: Opencode { url: "http://localhost:4096".to_owned() },
                log: Log { level: "debug".to_owned(), ..Log::default() },
                ..Config::default()
            },
            home: "/from/flag".into(),
            config_file: file,
            development: true,
            parent: Some("ses_parent".to_owned()),
        };
        assert_eq!(Settings::resolve(&environment, &flags).unwrap(), expected);
    }

    #[test]
    fn paths_come_from_the_nearest_variable_and_are_absolute() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let check = |pairs: &[(&str, &str)], home: &str, config_file: &str| {
            let environment = Environment::of(pairs.iter().copied());
            let settings = Settings::resolve(&environment, &Flags::default()).unwrap();
            let expected = Settings {
                config: Config::default(),
                home: home.into(),
                config_file: config_file.into(),
                development: false,
                parent: None,
            };
            assert_eq!(settings, expected, "{pairs:?}");
        };
        let default_home = "/none/.local/share/asyncagents";
        let default_file = "/none/.config/asyncagents/config.toml";
        check(&[("HOME", "/none")], default_home, default_file);
        check(
            &[("HOME", "/none"), ("XDG_DATA_HOME", "relative"), ("XDG_CONFIG_HOME", "")],
            default_home,
            default_file,
        );
        check(
            &[("XDG_DATA_HOME", "/none/data"), ("XDG_CONFIG_HOME", "/none/config")],
            "/none/data/asyncagents",
            "/none/config/asyncagents/config.toml",
        );
        check(
            &[("HOME", "/none"), ("ASYNCAGENTS_HOME", "store")],
            &format!("{here}/store"),
            default_file,
        );
    }

    #[test]
    fn only_the_word_false_disables_the_api() {
        for (value, enabled) in [("false", false), ("true", true), ("0", true), ("False", true)] {
            let pairs = [("HOME", "/none"), ("ASYNCAGENTS_API_ENABLED", value)];
            let settings = Settings::resolve(&Environment::of(pairs), &Flags::default()).unwrap();
            assert_eq!(settings.config.api, Api { enabled, ..Api::default() }, "{value}");
        }
    }

    #[test]
    fn an_environment_that_does_not_fit_is_refused_by_name() {
        let check = |pairs: &[(&str, &str)], expected: &str| {
            let environment = Environment::of(pairs.iter().copied());
            let error = Settings::resolve(&environment, &Flags::default()).unwrap_err();
            assert_eq!(error.to_string(), expected, "{pairs:?}");
        };
        check(
            &[("HOME", "/none"), ("ASYNCAGENTS_API_PORT", "http")],
            "`ASYNCAGENTS_API_PORT` in the environment is `\"http\"`; give a number from 0 to 65535",
        );
        check(
            &[("HOME", "/none"), ("ASYNCAGENTS_API_PORT", "70000")],
            "`ASYNCAGENTS_API_PORT` in the environment is `70000`; give a number from 0 to 65535",
        );
        check(
            &[],
            "there is no default for the config file without a home; \
             set `HOME` or `ASYNCAGENTS_CONFIG`",
        );
        check(
            &[("XDG_CONFIG_HOME", "/none")],
            "there is no default for the storage directory without a home; \
             set `HOME` or `ASYNCAGENTS_HOME`",
        );
        check(
            &[("HOME", "/none"), ("ASYNCAGENTS_CONFIG", "/none/config.toml")],
            "config file `/none/config.toml` does not exist; \
             create it, or name none by `--config` or `ASYNCAGENTS_CONFIG`",
        );
    }

    #[cfg(unix)]
    #[test]
    fn only_a_variable_that_is_used_must_be_text() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(vec![b'/', 0xff]);
        let unused = Environment::of([("HOME", "/none".into()), ("UNUSED", odd())]);
        assert!(Settings::resolve(&unused, &Flags::default()).is_ok());
        let used = Environment::of([("HOME", odd())]);
        assert_eq!(
            Settings::resolve(&used, &Flags::default()).unwrap_err().to_string(),
            "`HOME` in the environment is not valid UTF-8; set it to plain text or unset it"
        );
    }

    #[test]
    fn broken_toml_names_the_file_and_keeps_the_reason_as_source() {
        let error = load("[limits").unwrap_err();
        assert_eq!(error.to_string(), "config file `config.toml` is not valid TOML");
        assert!(std::error::Error::source(&error).is_some());
    }
}
