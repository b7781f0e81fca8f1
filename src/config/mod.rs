//! Layered configuration: defaults ← file ← environment ← flags, resolved once into [`Settings`]. The only place that
//! reads the process's environment. The keys are in `keys.rs`.
//!
//! All layers are merged as one TOML table and deserialised at the end, so that a variable is checked by the same rule
//! as the key it sets. Anything that does not fit is an error that names key, place and way out; nothing is ignored,
//! because a limit with a typo in it would silently not hold.

mod agent;
mod check;
mod file;
mod keys;
mod providers;
mod section;
mod units;
mod user;
mod variables;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

pub use agent::{Agent, Price};
pub use file::default_file;
pub use keys::{
    Api, Config, Fork, History, Limits, Log, Notices, Notify, OpenCode, Permissions, Policy,
    Readers, Resume, Storage, Supervisor, TaskTool, Tools,
};
pub use providers::{Provider, ProviderVariables, Providers, Secret};
pub use user::User;
pub use variables::Variables;

use check::{check_table, read_variable};
use section::{Key, Rule};

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{name}` in the environment is not valid UTF-8; set it to plain text or unset it")]
    NotText { name: String },
    #[error(
        "there is no default for the storage directory without a home; \
         set `HOME` or `ASYNCAGENTS_HOME`"
    )]
    NoHome,
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

/// The resolved settings of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub config: Config,
    /// The storage directory; absolute, perhaps not there yet.
    pub home: PathBuf,
    /// Absolute; the default one is perhaps not there.
    pub config_file: PathBuf,
    /// `NODE_ENV=development`
    pub development: bool,
    pub providers: Providers,
    pub user: User,
    /// Where OpenCode looks for its user's configuration; perhaps not there.
    pub opencode_config: Option<PathBuf>,
    /// The same of Codex.
    pub codex_config: Option<PathBuf>,
    /// `HOME`: other clients have theirs in fixed places there.
    pub user_home: Option<PathBuf>,
    /// `PATH`
    pub search_path: Option<OsString>,
    /// As the command line said it; the daemon that is started for it has to hear it, too.
    pub host_flag: Option<String>,
    pub model_flag: Option<String>,
    /// A host that was named on the command line: meant for what is launched, too.
    pub named_host: Option<String>,
    /// `ASYNCAGENTS_PARENT`: the session on whose behalf this process was started.
    pub parent: Option<String>,
    /// `ASYNCAGENTS_GUARD`: this process belongs to a command of an agent.
    pub of_command: bool,
    /// The demo's own temporary directory. A daemon that this process starts ends with it, however that ends, and
    /// removes the directory if the process was killed.
    pub tied_directory: Option<PathBuf>,
    /// `CLAUDE_CODE_SESSION_ID`: the conversation of Claude Code that started this process.
    pub claude_session: Option<String>,
    /// `CLAUDE_PROJECT_DIR`: where that conversation is.
    pub claude_project: Option<PathBuf>,
    /// The environment of what the daemon starts for agents.
    pub child_variables: Variables,
    /// The environment of a daemon that this process starts.
    pub daemon_variables: Variables,
    /// The environment of commands that print keys.
    pub key_variables: Variables,
    /// The environment of commands that tell people.
    pub hook_variables: Variables,
}

/// Flags of the command line, which override everything else.
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

impl Settings {
    /// Merges all layers. Reads the config file, and nothing else from outside of its arguments.
    pub fn resolve(environment: &Environment, flags: &Flags) -> Result<Settings, Error> {
        let (config_file, mut table) = config_file(environment, flags)?;
        // Later layers overwrite earlier ones. The file was checked key by key when it was read, variables are
        // checked as they are set, so that an error names the layer it comes from.
        set_from_environment(&mut table, environment)?;
        set_from_flags(&mut table, flags);
        // Most users set nothing, and to read nothing takes time at the start of every MCP conversation.
        let config: Config = match table.is_empty() {
            true => Config::default(),
            false => table.try_into().map_err(|source| Error::Unusable {
                file: config_file.clone(),
                source: Box::new(source),
            })?,
        };
        Ok(Settings {
            child_variables: environment.for_children(&config.agent.environment),
            daemon_variables: environment.for_the_daemon(&config.agent.environment),
            key_variables: environment.for_key_commands(),
            hook_variables: environment.for_hooks(),
            config,
            home: home(environment, flags)?,
            config_file,
            development: environment.get("NODE_ENV")? == Some("development"),
            providers: Providers::of(environment)?,
            user: User::of(environment)?,
            opencode_config: base_directory(environment, "XDG_CONFIG_HOME", ".config")?
                .map(|config| config.join("opencode")),
            codex_config: base_directory(environment, "CODEX_HOME", ".codex")?,
            user_home: environment.get("HOME")?.map(PathBuf::from),
            search_path: environment.0.get("PATH").cloned(),
            host_flag: flags.host.clone(),
            model_flag: flags.model.clone(),
            // `scripted:/path/to.sock` names the host `scripted`.
            named_host: flags.host.as_ref().map(|host| {
                host.split_once(':').map_or(host.as_str(), |(name, _)| name).to_owned()
            }),
            parent: environment.get("ASYNCAGENTS_PARENT")?.map(str::to_owned),
            of_command: environment.get("ASYNCAGENTS_GUARD")?.is_some(),
            tied_directory: None,
            claude_session: environment.get("CLAUDE_CODE_SESSION_ID")?.map(str::to_owned),
            claude_project: environment.get("CLAUDE_PROJECT_DIR")?.map(PathBuf::from),
        })
    }

    /// Where the config file is or would be; it is not read.
    pub fn config_file(environment: &Environment, flags: &Flags) -> Result<PathBuf, Error> {
        match named_path(&flags.config, environment, "ASYNCAGENTS_CONFIG")? {
            Some(file) => Ok(file),
            None => default_config_file(environment, flags),
        }
    }
}

impl Environment {
    /// The process's own. Call it once, in `main`, and hand it on.
    pub fn read() -> Environment {
        // Values may be any bytes, and are only refused when they are used: a variable of another program must not
        // keep this one from starting.
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Environment(std::env::vars_os().filter_map(named).collect())
    }

    /// The same without settings of ours, for a daemon apart from the user's, on any port. It stays known that a
    /// command of an agent asks: that may start no daemon.
    pub fn apart(&self) -> Environment {
        let mut others = self.clone();
        let is_kept = |name: &str| !name.starts_with("ASYNCAGENTS_") || name == "ASYNCAGENTS_GUARD";
        others.0.retain(|name, _| is_kept(name));
        others.0.insert("ASYNCAGENTS_API_PORT".to_owned(), "0".into());
        others
    }

    /// The user's editor: `VISUAL`, or `EDITOR`.
    pub fn editor(&self) -> Option<String> {
        let named = |name| self.get(name).ok().flatten().map(str::to_owned);
        named("VISUAL").or_else(|| named("EDITOR"))
    }

    /// Whether the terminal is one whose cursor can be moved: `TERM` is set, and not to `dumb`.
    pub fn moves_cursor(&self) -> bool {
        self.get("TERM").ok().flatten().is_some_and(|term| term != "dumb")
    }

    /// `COLUMNS`: the width for output that is to look like that of a terminal.
    pub fn columns(&self) -> Option<usize> {
        let columns = self.get("COLUMNS").ok()??.parse().ok()?;
        Some(columns).filter(|columns| *columns > 0)
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

fn home(environment: &Environment, flags: &Flags) -> Result<PathBuf, Error> {
    if let Some(home) = named_path(&flags.home, environment, "ASYNCAGENTS_HOME")? {
        return Ok(home);
    }
    let data = base_directory(environment, "XDG_DATA_HOME", ".local/share")?;
    absolute(&data.ok_or(Error::NoHome)?.join("asyncagents"))
}

/// The path and content of the file. Only one that was named explicitly has to exist.
fn config_file(environment: &Environment, flags: &Flags) -> Result<(PathBuf, Table), Error> {
    if let Some(file) = named_path(&flags.config, environment, "ASYNCAGENTS_CONFIG")? {
        let table = read_file(&file)?.ok_or_else(|| Error::Missing { file: file.clone() })?;
        return Ok((file, table));
    }
    let file = default_config_file(environment, flags)?;
    let table = read_file(&file)?.unwrap_or_default();
    Ok((file, table))
}

fn default_config_file(environment: &Environment, flags: &Flags) -> Result<PathBuf, Error> {
    match base_directory(environment, "XDG_CONFIG_HOME", ".config")? {
        Some(config) => absolute(&config.join("asyncagents/config.toml")),
        // A service without a home of its own may still have been given a storage directory.
        None => Ok(home(environment, flags)?.join("config.toml")),
    }
}

/// A path that was given explicitly: the flag before the variable.
fn named_path(
    flag: &Option<PathBuf>,
    environment: &Environment,
    variable: &str,
) -> Result<Option<PathBuf>, Error> {
    // The variable is read even if the flag wins: one that is not text is refused in any case.
    match (flag, environment.get(variable)?) {
        (Some(path), _) => absolute(path).map(Some),
        (None, Some(path)) => absolute(Path::new(path)).map(Some),
        (None, None) => Ok(None),
    }
}

/// An XDG base directory. The specification has relative paths ignored.
fn base_directory(
    environment: &Environment,
    variable: &str,
    under_home: &str,
) -> Result<Option<PathBuf>, Error> {
    let named = environment.get(variable)?.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = environment.get("HOME")?;
    Ok(named.or_else(|| home.map(|home| Path::new(home).join(under_home))))
}

/// Absolute without resolving links: the path may not exist yet, and the daemon runs in another directory.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|source| Error::NoPlace { path: path.to_owned(), source })
}

fn read_file(file: &Path) -> Result<Option<Table>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) if text.is_empty() => Ok(Some(Table::new())),
        Ok(text) => parse(&text, file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Unreadable { file: file.to_owned(), source }),
    }
}

fn parse(text: &str, file: &Path) -> Result<Table, Error> {
    let syntax = |source| Error::Syntax { file: file.to_owned(), source: Box::new(source) };
    let table = text.parse().map_err(syntax)?;
    check_table(&table, &file.display().to_string())?;
    Ok(table)
}

/// The environment layer: keys that declare a variable, of all sections.
fn set_from_environment(table: &mut Table, environment: &Environment) -> Result<(), Error> {
    for key in Config::keys() {
        match (key.rule)() {
            Rule::Keys(keys) => keys
                .iter()
                .try_for_each(|inner| set_key(table, Some(key.name), inner, environment))?,
            _ => set_key(table, None, &key, environment)?,
        }
    }
    Ok(())
}

fn set_key(
    table: &mut Table,
    section: Option<&str>,
    key: &Key,
    environment: &Environment,
) -> Result<(), Error> {
    let Some(variable) = key.variable else { return Ok(()) };
    let Some(text) = environment.get(variable)? else { return Ok(()) };
    let value = read_variable(key, variable, text)?;
    let name = section.map_or(key.name.to_owned(), |section| format!("{section}.{}", key.name));
    set(table, &name, value);
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
    // A section that is no table was refused when the file was checked.
    if let Value::Table(section) = section {
        section.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn load(text: &str) -> Result<Config, Error> {
        Ok(parse(text, Path::new("config.toml"))?.try_into().unwrap())
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_the_defaults() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(
            &file,
            "host = 'file'\nmodel = 'file'\n[log]\nlevel = 'warn'\nkeep_days = 3",
        )
        .unwrap();
        let environment = Environment::of([
            ("HOME", "/home/ada"),
            ("ASYNCAGENTS_CONFIG", "/from/environment.toml"),
            ("ASYNCAGENTS_HOST", "environment"),
            ("ASYNCAGENTS_MODEL", "environment"),
            ("ASYNCAGENTS_LOG", "debug"),
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
                log: Log { level: "debug".to_owned(), keep_days: 3, ..Log::default() },
                ..Config::default()
            },
            home: "/from/flag".into(),
            config_file: file,
            development: true,
            providers: Providers::default(),
            user: User { home: Some("/home/ada".into()), ..User::default() },
            opencode_config: Some("/home/ada/.config/opencode".into()),
            codex_config: Some("/home/ada/.codex".into()),
            user_home: Some("/home/ada".into()),
            search_path: None,
            host_flag: None,
            model_flag: flags.model.clone(),
            named_host: None,
            parent: Some("ses_parent".to_owned()),
            of_command: false,
            tied_directory: None,
            claude_session: None,
            claude_project: None,
            child_variables: environment.for_children(&[]),
            daemon_variables: environment.for_the_daemon(&[]),
            key_variables: environment.for_key_commands(),
            hook_variables: environment.for_hooks(),
        };
        assert_eq!(Settings::resolve(&environment, &flags).unwrap(), expected);
    }

    #[test]
    fn the_api_is_set_by_its_variables() {
        let check = |pairs: &[(&str, &str)], expected: Api| {
            let pairs = pairs.iter().copied().chain([("HOME", "/none")]);
            let settings = Settings::resolve(&Environment::of(pairs), &Flags::default()).unwrap();
            assert_eq!(settings.config.api, expected);
        };
        check(&[], Api::default());
        check(&[("ASYNCAGENTS_API_ENABLED", "false")], Api { enabled: false, ..Api::default() });
        check(&[("ASYNCAGENTS_API_ENABLED", "true")], Api::default());
        check(
            &[("ASYNCAGENTS_API_PORT", "0"), ("ASYNCAGENTS_API_HOST", "::1")],
            Api { port: 0, host: "::1".to_owned(), ..Api::default() },
        );
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
                providers: Providers::default(),
                user: settings.user.clone(),
                opencode_config: Some(
                    Path::new(config_file).parent().unwrap().with_file_name("opencode"),
                ),
                codex_config: settings.codex_config.clone(),
                user_home: settings.user_home.clone(),
                search_path: None,
                host_flag: None,
                model_flag: None,
                named_host: None,
                parent: None,
                of_command: false,
                tied_directory: None,
                claude_session: None,
                claude_project: None,
                child_variables: environment.for_children(&[]),
                daemon_variables: environment.for_the_daemon(&[]),
                key_variables: environment.for_key_commands(),
                hook_variables: environment.for_hooks(),
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
    fn the_providers_own_variables_are_read_and_keys_are_not_shown() {
        let environment = Environment::of([
            ("HOME", "/none"),
            ("OPENAI_API_KEY", "sk-openai"),
            ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1"),
            ("ANTHROPIC_API_KEY", "sk-anthropic"),
            ("GOOGLE_API_KEY", "sk-google"),
            ("OLLAMA_HOST", "gpu"),
            ("OPENROUTER_API_KEY", ""),
        ]);
        let providers = Settings::resolve(&environment, &Flags::default()).unwrap().providers;
        let access = |key: Option<&str>, base_url: Option<&str>| ProviderVariables {
            key: key.map(Secret::new),
            base_url: base_url.map(str::to_owned),
        };
        let openai = access(Some("sk-openai"), Some("http://127.0.0.1:1/v1"));
        let expected = BTreeMap::from([
            ("anthropic".to_owned(), access(Some("sk-anthropic"), None)),
            ("gemini".to_owned(), access(Some("sk-google"), None)),
            ("ollama".to_owned(), access(None, Some("gpu"))),
            ("openai".to_owned(), openai.clone()),
            ("openai-responses".to_owned(), openai),
        ]);
        assert_eq!(providers.models, expected);
        assert!(!format!("{providers:?}").contains("sk-"));
    }

    #[test]
    fn without_a_home_the_config_file_is_looked_for_in_the_storage_directory() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().to_owned();
        let flags = Flags { home: Some(home.clone()), ..Flags::default() };
        let expected = |host: &str| Settings {
            config: Config { host: host.to_owned(), ..Config::default() },
            home: home.clone(),
            config_file: home.join("config.toml"),
            development: false,
            providers: Providers::default(),
            user: User::default(),
            opencode_config: None,
            codex_config: None,
            user_home: None,
            search_path: None,
            host_flag: None,
            model_flag: None,
            named_host: None,
            parent: None,
            of_command: false,
            tied_directory: None,
            claude_session: None,
            claude_project: None,
            child_variables: Variables::default(),
            daemon_variables: Variables::default(),
            key_variables: Variables::default(),
            hook_variables: Variables::default(),
        };
        let by_variable = Environment::of([("ASYNCAGENTS_HOME", home.clone())]);
        let resolved = || {
            let by_flag = Settings::resolve(&Environment::default(), &flags).unwrap();
            let daemon_variables = Variables::default();
            let by_variable = Settings::resolve(&by_variable, &Flags::default()).unwrap();
            assert_eq!(Settings { daemon_variables, ..by_variable }, by_flag);
            by_flag
        };
        assert_eq!(resolved(), expected(""));
        std::fs::write(home.join("config.toml"), "host = 'file'").unwrap();
        assert_eq!(resolved(), expected("file"));
    }

    #[test]
    fn an_environment_that_does_not_fit_is_refused_by_name() {
        let check = |pairs: &[(&str, &str)], expected: &str| {
            let environment = Environment::of(pairs.iter().copied());
            let error = Settings::resolve(&environment, &Flags::default()).unwrap_err();
            assert_eq!(error.to_string(), expected, "{pairs:?}");
        };
        check(
            &[("HOME", "/none"), ("ASYNCAGENTS_LOG", " ")],
            "`ASYNCAGENTS_LOG` in the environment is `\" \"`; give a text that is not empty",
        );
        for port in ["much", "65536", "-1"] {
            let shown = port.parse::<i64>().map_or_else(|_| format!("{port:?}"), |n| n.to_string());
            check(
                &[("HOME", "/none"), ("ASYNCAGENTS_API_PORT", port)],
                &format!(
                    "`ASYNCAGENTS_API_PORT` in the environment is `{shown}`; \
                     give a number from 0 to 65535"
                ),
            );
        }
        for switch in ["0", "1", "no", "off", "False"] {
            check(
                &[("HOME", "/none"), ("ASYNCAGENTS_API_ENABLED", switch)],
                &format!(
                    "`ASYNCAGENTS_API_ENABLED` in the environment is `{switch:?}`; \
                     give `true` or `false`"
                ),
            );
        }
        for pairs in [&[] as &[_], &[("XDG_CONFIG_HOME", "/none")]] {
            check(
                pairs,
                "there is no default for the storage directory without a home; \
                 set `HOME` or `ASYNCAGENTS_HOME`",
            );
        }
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
