//! Allow-lists of environment variables for child processes: for commands of agents, for a daemon started on demand,
//! and for commands that print keys. An allow-list and no deny-list: the program that starts us may be another agent
//! with tokens of its session in its environment, under names that no deny-list would have.

use std::ffi::OsString;
use std::fmt;

use super::{Environment, providers};

/// For commands of agents. A name that ends with `*` is a prefix.
const FOR_CHILDREN: [&str; 46] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "TZ",
    "TMPDIR",
    "XDG_*",
    // Where toolchains are.
    "ANDROID_HOME",
    "BUN_INSTALL",
    "CARGO_HOME",
    "CONDA_PREFIX",
    "DENO_DIR",
    "GOBIN",
    "GOPATH",
    "GOROOT",
    "GRADLE_USER_HOME",
    "JAVA_HOME",
    "MAVEN_HOME",
    "NVM_BIN",
    "NVM_DIR",
    "PNPM_HOME",
    "PYENV_ROOT",
    "RBENV_ROOT",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "SDKMAN_DIR",
    "VIRTUAL_ENV",
    "VOLTA_HOME",
    // How the network is reached.
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_*",
];

/// What a daemon that is started on demand gets besides: its own settings, and what password managers need.
const FOR_THE_DAEMON: [&str; 9] = [
    "ASYNCAGENTS_*",
    "NODE_ENV",
    "OPENCODE_SERVER_PASSWORD",
    "OPENCODE_SERVER_USERNAME",
    "DBUS_SESSION_BUS_ADDRESS",
    "GNUPGHOME",
    "OP_*",
    "PASSWORD_STORE_*",
    "VAULT_*",
];

/// Settings of one client process (its parent session, its default model), which must not become the daemon's: it
/// serves others, too.
const OF_CLIENTS: [&str; 2] = ["ASYNCAGENTS_PARENT", "ASYNCAGENTS_MODEL"];

/// The whole environment of a child process. `Debug` shows the names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Variables(Vec<(String, OsString)>);

impl Variables {
    pub fn iter(&self) -> impl Iterator<Item = (&String, &OsString)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Environment {
    /// With the names that the configuration adds.
    pub(super) fn for_children(&self, added: &[String]) -> Variables {
        let added = added.iter().map(String::as_str);
        self.only(&FOR_CHILDREN.into_iter().chain(added).collect::<Vec<_>>())
    }

    /// Without model credentials: each client hands over its own with its launches.
    pub(super) fn for_the_daemon(&self, added: &[String]) -> Variables {
        // What commands may get has to pass through the daemon, which starts them.
        let mut names: Vec<&str> = FOR_CHILDREN.into_iter().chain(FOR_THE_DAEMON).collect();
        names.extend(added.iter().map(String::as_str));
        let mut variables = self.only(&names);
        let is_of_a_client = |name: &str| {
            OF_CLIENTS.contains(&name) || providers::variables().any(|own| own == name)
        };
        // Named in `agent.environment` it is meant for commands, and the daemon has to pass it on. Only by its exact
        // name: a prefix such as `OPENAI_*` is no decision about keys.
        let is_added = |name: &str| added.iter().any(|added| added == name);
        variables.0.retain(|(name, _)| !is_of_a_client(name) || is_added(name));
        variables
    }

    /// For commands that print keys: they may need whatever the person has who wrote them, so this is a deny-list. No
    /// key of another provider, and none of our own settings.
    pub(super) fn for_key_commands(&self) -> Variables {
        let variables = self.0.iter().filter(|(name, _)| {
            let is_for_us =
                ["ASYNCAGENTS_", "OPENCODE_SERVER_"].iter().any(|ours| name.starts_with(ours));
            !is_for_us && !providers::variables().any(|own| own == name.as_str())
        });
        Variables(variables.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// For what is run to tell people: notifications go over the session bus.
    pub(super) fn for_hooks(&self) -> Variables {
        let names = FOR_CHILDREN.into_iter().chain(["DBUS_SESSION_BUS_ADDRESS"]);
        self.only(&names.collect::<Vec<_>>())
    }

    fn only(&self, allowed: &[&str]) -> Variables {
        // Told apart once and not for every variable: each start of the program goes through here.
        let (prefixes, names): (Vec<&str>, Vec<&str>) =
            allowed.iter().partition(|allowed| allowed.ends_with('*'));
        let is_allowed = |name: &str| {
            names.contains(&name)
                || prefixes.iter().any(|prefix| name.starts_with(&prefix[..prefix.len() - 1]))
        };
        let variables = self.0.iter().filter(|(name, _)| is_allowed(name));
        Variables(variables.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_the_environment_reach_neither_commands_nor_the_daemon() {
        let names = [
            "ANTHROPIC_API_KEY",
            "ASYNCAGENTS_MODEL",
            "ASYNCAGENTS_PARENT",
            "CLAUDE_CODE_SESSION_ID",
            "CORP_TOOLS",
            "DBUS_SESSION_BUS_ADDRESS",
            "GITHUB_TOKEN",
            "HOME",
            "LC_TIME",
            "OLLAMA_HOST",
            "PATH",
            "SSH_AUTH_SOCK",
            "https_proxy",
        ];
        let environment = Environment::of(names.map(|name| (name, "value")));
        let shown = |variables: Variables| format!("{variables:?}");
        let children = r#"{"HOME", "LC_TIME", "PATH", "https_proxy"}"#;
        assert_eq!(shown(environment.for_children(&[])), children);
        let added = r#"{"CORP_TOOLS", "HOME", "LC_TIME", "PATH", "SSH_AUTH_SOCK", "https_proxy"}"#;
        let names = ["CORP_*".to_owned(), "SSH_AUTH_SOCK".to_owned()];
        assert_eq!(shown(environment.for_children(&names)), added);
        let daemon = r#"{"DBUS_SESSION_BUS_ADDRESS", "HOME", "LC_TIME", "PATH", "https_proxy"}"#;
        assert_eq!(shown(environment.for_the_daemon(&[])), daemon);
        let keys = r#"{"CLAUDE_CODE_SESSION_ID", "CORP_TOOLS", "DBUS_SESSION_BUS_ADDRESS", "GITHUB_TOKEN", "HOME", "LC_TIME", "PATH", "SSH_AUTH_SOCK", "https_proxy"}"#;
        assert_eq!(shown(environment.for_key_commands()), keys);
    }
}
