//! A real MCP client (Claude Code, Codex, Gemini CLI), registered by our own command in its own
//! home and project, with the scripted model server as its model. `install-clients.sh` installs the
//! programs. A script between client and server records the environment and, with `tee`, what the
//! client sends.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::canary::CANARY;
use super::process::{CommandOutcome, RunningCommand, Shell};
use super::real_opencode::cache;
use super::{ModelServer, RecordedRequest, skip};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Claude,
    Codex,
    Gemini,
}

/// One of our tools, and its arguments.
pub type Call = (&'static str, Value);

pub struct RealClient {
    client: Client,
    /// Its agents run on a host that survives the daemon.
    pub shell: Shell,
    model: ModelServer,
    _runtime: Runtime,
}

impl RealClient {
    /// `None` when the client is not installed, which is a failure in CI.
    pub fn registered(client: Client) -> Option<RealClient> {
        if !client.is_installed() {
            return None;
        }
        let runtime = Runtime::new().unwrap();
        let model = runtime.block_on(ModelServer::start());
        let mut shell = Shell::with_host_process();
        for directory in ["project", "bin", ".codex", ".gemini"] {
            fs::create_dir(shell.path(directory)).unwrap();
        }
        for (name, value) in client.variables(&model) {
            shell.set(name, value);
        }
        shell.set("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", shell.path("bin").display()));
        shell.set("OPENROUTER_API_KEY", CANARY);
        // A dead proxy, so that the client reaches nothing but the model server, whatever it would
        // like to download.
        shell.set("HTTPS_PROXY", "http://127.0.0.1:1");
        shell.set("HTTP_PROXY", "http://127.0.0.1:1");
        shell.set("NO_PROXY", "127.0.0.1");
        let real = RealClient { client, shell, model, _runtime: runtime };
        real.configure();
        real.register();
        Some(real)
    }

    /// The same with embedded agents that use the client's model server, and with these lines in
    /// the configuration file.
    pub fn with_own_agents(client: Client, settings: &str) -> Option<RealClient> {
        let mut real = RealClient::registered(client)?;
        real.shell.unset("ASYNCAGENTS_HOST");
        real.shell.set("ASYNCAGENTS_MODEL", "scripted/any");
        let address = real.model.base_url();
        let provider = format!("[providers.scripted]\nkind = 'openai'\nbase_url = '{address}'\n");
        real.set_up(&format!("{settings}\n{provider}"));
        Some(real)
    }

    /// The same over HTTP: the client starts no process, and connects to the daemon's port.
    pub fn over_http(client: Client) -> Option<RealClient> {
        let mut real = RealClient::registered(client)?;
        let project = real.shell.path("project");
        let removed = real.shell.run_in(&project, ["mcp", "uninstall", client.name(), "--write"]);
        assert_eq!(removed.code, 0, "{removed:?}");
        let directory = project.to_str().unwrap();
        let install =
            ["mcp", "install", "--http", client.name(), "--directory", directory, "--write"];
        let added = real.shell.run_in(&project, install);
        assert!(added.stdout.starts_with("added the server to "), "{added:?}");
        // The token is not written to files of a project, so pass it in.
        let token = fs::read_to_string(real.shell.home().join("token")).unwrap();
        real.shell.set("ASYNCAGENTS_TOKEN", token.trim());
        Some(real)
    }

    /// Writes a configuration file.
    pub fn set_up(&mut self, settings: &str) {
        let file = self.shell.path("settings.toml");
        fs::write(&file, settings).unwrap();
        self.shell.set("ASYNCAGENTS_CONFIG", file);
    }

    /// Starts a conversation that makes these calls, one after the other, and then says `the end`.
    pub fn start(&self, title: &str, calls: &[Call]) -> RunningCommand {
        let messages: Vec<&[Call]> = calls.chunks(1).collect();
        self.start_with(title, &messages)
    }

    /// Starts a conversation whose messages make several calls at once.
    fn start_with(&self, title: &str, messages: &[&[Call]]) -> RunningCommand {
        let mut command = self.command(&self.prompt(title, messages));
        let mut running = RunningCommand::new(command.current_dir(self.shell.path("project")));
        // Codex would wait for more of its prompt.
        running.close_input();
        running
    }

    pub fn converse(&self, title: &str, calls: &[Call]) -> CommandOutcome {
        self.start(title, calls).wait()
    }

    pub fn converse_with(&self, title: &str, messages: &[&[Call]]) -> CommandOutcome {
        self.start_with(title, messages).wait()
    }

    /// The results of our tools so far in the conversation with this title.
    pub fn answers(&self, title: &str) -> Vec<String> {
        let asked = self.asked(title).pop();
        let texts = asked.map(|asked| asked.texts("tool")).unwrap_or_default();
        let texts = texts.iter().map(|text| self.client.plain(text));
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// The last input of its model in that conversation, without tool results.
    pub fn told(&self, title: &str) -> String {
        let asked = self.asked(title).pop();
        asked.map(|asked| asked.texts("user").join("\n")).unwrap_or_default()
    }

    /// The arguments to start the client in a terminal; without a conversation it continues the
    /// last one.
    pub fn on_screen(&self, conversation: Option<(&str, &[Call])>) -> Vec<String> {
        let file = self.client.file().display().to_string();
        let mut words = vec![file, "--allowedTools=mcp__asyncagents".to_owned()];
        match conversation {
            Some((title, calls)) => {
                let messages: Vec<&[Call]> = calls.chunks(1).collect();
                words.extend(["--".to_owned(), self.prompt(title, &messages)]);
            }
            None => words.push("--continue".to_owned()),
        }
        words
    }

    /// The times of the model requests in that conversation, oldest first.
    pub fn asked_at(&self, title: &str) -> Vec<Instant> {
        self.asked(title).into_iter().map(|asked| asked.at).collect()
    }

    fn asked(&self, title: &str) -> Vec<RecordedRequest> {
        let mut asked = self.model.asked();
        asked.retain(|asked| {
            asked.texts("user").iter().any(|text| text.lines().any(|line| line == title))
        });
        asked
    }

    /// The messages that the client has sent to our server, oldest first.
    pub fn sent(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.wire()).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The number of calls of one of our tools.
    pub fn calls(&self, tool: &str) -> usize {
        let sent = self.sent().into_iter();
        sent.filter(|sent| sent["method"] == "tools/call" && sent["params"]["name"] == tool).count()
    }

    /// A variable in the environment that our server gets from the client.
    pub fn variable(&self, name: &str) -> Option<String> {
        let text = fs::read_to_string(self.shell.path("environment")).unwrap();
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
    }

    /// Sets the client's time-out for tool calls.
    pub fn give_up_after(&mut self, seconds: u64) {
        match self.client {
            Client::Claude => self.shell.set("MCP_TOOL_TIMEOUT", (seconds * 1000).to_string()),
            Client::Codex => {
                let file = self.shell.path(".codex/config.toml");
                let text = fs::read_to_string(&file).unwrap();
                fs::write(&file, format!("{text}tool_timeout_sec = {seconds}\n")).unwrap();
            }
            Client::Gemini => {
                let file = self.shell.path(".gemini/settings.json");
                let text = fs::read_to_string(&file).unwrap();
                let mut settings: Value = serde_json::from_str(&text).unwrap();
                settings["mcpServers"]["asyncagents"]["timeout"] = json!(seconds * 1000);
                fs::write(&file, settings.to_string()).unwrap();
            }
        }
    }

    fn wire(&self) -> PathBuf {
        self.shell.path("wire")
    }

    fn configure(&self) {
        let address = self.model.base_url();
        let codex = format!(
            "model = \"scripted\"\nmodel_provider = \"scripted\"\n\
             check_for_update_on_startup = false\n[analytics]\nenabled = false\n\
             [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{address}\"\n\
             wire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\n"
        );
        fs::write(self.shell.path(".codex/config.toml"), codex).unwrap();
        let gemini = json!({
            "general": {"enableAutoUpdate": false},
            "privacy": {"usageStatisticsEnabled": false},
            "security": {"auth": {"selectedType": "gemini-api-key"}},
        });
        fs::write(self.shell.path(".gemini/settings.json"), gemini.to_string()).unwrap();
    }

    /// Registers the server by a name that leads to the recording script.
    fn register(&self) {
        let program = self.shell.path("bin/asyncagents");
        symlink(env!("CARGO_BIN_EXE_asyncagents"), &program).unwrap();
        let install = ["mcp", "install", self.client.name(), "--write"];
        let ended = self.shell.run_in(&self.shell.path("project"), install);
        assert!(ended.stdout.starts_with("added the server to "), "{ended:?}");
        fs::remove_file(&program).unwrap();
        let script = format!(
            "#!/bin/sh\nenv > {}\ntee -a {} | exec {} \"$@\"\n",
            self.shell.path("environment").display(),
            self.wire().display(),
            env!("CARGO_BIN_EXE_asyncagents")
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn prompt(&self, title: &str, messages: &[&[Call]]) -> String {
        let mut lines = vec![title.to_owned()];
        let calls = messages.concat();
        if self.client == Client::Claude {
            // Claude Code's model has to search for the tools of servers before it can call them.
            let tools: Vec<String> = calls.iter().map(|(tool, _)| self.client.tool(tool)).collect();
            lines.push(format!("@call ToolSearch {{\"query\":\"select:{}\"}}", tools.join(",")));
        }
        let step = |(tool, arguments): &Call| {
            // Escaped, because a bar separates the steps of this script, too.
            let arguments = arguments.to_string().replace('|', "\\u007c");
            format!("call {} {arguments}", self.client.tool(tool))
        };
        for calls in messages {
            let steps: Vec<String> = calls.iter().map(step).collect();
            lines.push(format!("@{}", steps.join(" | ")));
        }
        lines.push("@say the end".to_owned());
        lines.join("\n")
    }

    fn command(&self, prompt: &str) -> Command {
        let mut command = self.shell.program(match self.client {
            Client::Gemini => "node".into(),
            Client::Claude | Client::Codex => self.client.file(),
        });
        match self.client {
            Client::Claude => {
                command.args(["-p", "--allowedTools", "mcp__asyncagents", "--", prompt])
            }
            Client::Codex => command.args(["exec", "--skip-git-repo-check", prompt]),
            Client::Gemini => command.arg(self.client.file()).args([
                "--skip-trust",
                "--allowed-mcp-server-names",
                "asyncagents",
                "--model",
                "gemini-2.5-pro",
                "--prompt",
                prompt,
            ]),
        };
        command
    }
}

impl Client {
    /// Its name for `mcp install`.
    fn name(self) -> &'static str {
        match self {
            Client::Claude => "claude",
            Client::Codex => "codex",
            Client::Gemini => "gemini",
        }
    }

    fn file(self) -> PathBuf {
        cache().join("clients/node_modules").join(match self {
            Client::Claude => "@anthropic-ai/claude-code-linux-x64/claude",
            Client::Codex => "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
            Client::Gemini => "@google/gemini-cli/bundle/gemini.js",
        })
    }

    fn is_installed(self) -> bool {
        let there = self.file().exists();
        if !there {
            skip(&format!("{} is not installed; run tests/tools/install-clients.sh", self.name()));
        }
        there
    }

    fn variables(self, model: &ModelServer) -> Vec<(&'static str, String)> {
        let key = |name| (name, CANARY.to_owned());
        match self {
            Client::Claude => vec![
                key("ANTHROPIC_API_KEY"),
                ("ANTHROPIC_BASE_URL", model.origin()),
                ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
                ("DISABLE_AUTOUPDATER", "1".to_owned()),
            ],
            Client::Codex => vec![key("OPENAI_API_KEY")],
            Client::Gemini => vec![
                key("GEMINI_API_KEY"),
                ("GOOGLE_GEMINI_BASE_URL", model.origin()),
                // It would restart itself to get more memory.
                ("GEMINI_CLI_NO_RELAUNCH", "true".to_owned()),
            ],
        }
    }

    /// The name under which its model calls one of our tools.
    fn tool(self, name: &str) -> String {
        match self {
            Client::Claude => format!("mcp__asyncagents__{name}"),
            Client::Codex => format!("mcp__asyncagents.{name}"),
            Client::Gemini => format!("mcp_asyncagents_{name}"),
        }
    }

    /// A result without the client's own wrapping.
    fn plain(self, text: &str) -> String {
        match self {
            Client::Claude => text.to_owned(),
            Client::Codex => match text.split_once("\nOutput:\n") {
                Some((_, text)) => text.to_owned(),
                None => text.to_owned(),
            },
            Client::Gemini => {
                let response: Value = serde_json::from_str(text).unwrap();
                let text = response["output"].as_str().or(response["error"].as_str());
                let text = text.unwrap_or_default();
                let text = text.strip_prefix("<untrusted_context>\n").unwrap_or(text);
                text.strip_suffix("\n</untrusted_context>").unwrap_or(text).to_owned()
            }
        }
    }
}
