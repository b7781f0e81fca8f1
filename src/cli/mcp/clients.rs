//! The MCP clients that `mcp install` knows: path and format of their configuration, and what the user still has to
//! do. A new client is a variant of [`Client`] and an arm in each match.

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::json::{self as text, Entry};
use super::{Server, codex, variables};
use crate::cli::opencode::config_file_in;
use crate::config::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code: `.mcp.json` in the current directory
    Claude,
    /// Codex: its `config.toml`, for every project
    Codex,
    /// Gemini CLI: its `settings.json`, for every project
    Gemini,
    /// Qwen Code: its `settings.json`, for every project
    Qwen,
    /// OpenCode, without the plugin: its `opencode.json`, for every project
    Opencode,
    /// Cursor: its `mcp.json`, for every project
    Cursor,
    /// VS Code: `.vscode/mcp.json` in the current directory
    Vscode,
}

impl Client {
    pub(super) fn file(self, settings: &Settings) -> anyhow::Result<PathBuf> {
        let nowhere = "there is no home directory; set HOME";
        let here = || std::env::current_dir().context("cannot find the current directory");
        let home = || settings.user_home.clone().context(nowhere);
        Ok(match self {
            Client::Claude => here()?.join(".mcp.json"),
            Client::Codex => settings.codex_config.clone().context(nowhere)?.join("config.toml"),
            Client::Gemini => home()?.join(".gemini/settings.json"),
            Client::Qwen => home()?.join(".qwen/settings.json"),
            Client::Opencode => config_file_in(&settings.opencode_config.clone().context(nowhere)?),
            Client::Cursor => home()?.join(".cursor/mcp.json"),
            Client::Vscode => here()?.join(".vscode/mcp.json"),
        })
    }

    /// Its file belongs to the current directory, so that directory is where its agents work.
    pub(super) fn is_of_a_project(self) -> bool {
        matches!(self, Client::Claude | Client::Vscode)
    }

    /// How an entry refers to a variable of the environment. `None` where the file is the user's own, and the value
    /// itself may be in it.
    pub(super) fn variable(self, name: &str) -> Option<String> {
        match self {
            Client::Claude => Some(format!("${{{name}}}")),
            Client::Vscode => Some(format!("${{env:{name}}}")),
            Client::Codex | Client::Gemini | Client::Qwen | Client::Opencode | Client::Cursor => {
                None
            }
        }
    }

    /// The configuration with our server in it.
    pub(super) fn add_server(self, given: &str, server: &Server) -> anyhow::Result<String> {
        Ok(match self.in_json(server) {
            Some(entry) => text::add_server(given, &entry)?,
            None => codex::add_server(given, server)?,
        })
    }

    /// The configuration without our server. `None`: it has none.
    pub(super) fn remove_server(self, given: &str) -> anyhow::Result<Option<String>> {
        Ok(match self.in_json(&Server::Program("")) {
            Some(entry) => text::remove_server(given, entry.section)?,
            None => codex::remove_server(given)?,
        })
    }

    /// `None`: Codex, whose configuration is TOML.
    fn in_json(self, server: &Server) -> Option<Entry> {
        let program = match server {
            Server::Program(program) => *program,
            Server::Address { url, authorization } => return self.over_http(url, authorization),
        };
        let plain = vec![("command", json!(program)), ("args", json!(["mcp"]))];
        let usual = || Entry {
            section: "mcpServers",
            fields: plain.clone(),
            defaults: Vec::new(),
            not_with: "url",
        };
        Some(match self {
            Client::Claude | Client::Cursor => usual(),
            Client::Qwen => Entry { not_with: "httpUrl", ..usual() },
            Client::Codex => return None,
            // Gemini CLI removes variables that look like secrets from the environment of servers, unless the
            // entry names them.
            Client::Gemini => {
                let key = |name: &&str| ((*name).to_owned(), json!(format!("${name}")));
                let keys: Map<String, Value> = variables::KEYS.iter().map(key).collect();
                let defaults = vec![("env", Value::Object(keys))];
                Entry { defaults, not_with: "httpUrl", ..usual() }
            }
            Client::Opencode => Entry {
                section: "mcp",
                fields: vec![("type", json!("local")), ("command", json!([program, "mcp"]))],
                ..usual()
            },
            Client::Vscode => Entry {
                section: "servers",
                fields: [vec![("type", json!("stdio"))], plain.clone()].concat(),
                ..usual()
            },
        })
    }

    /// The same for the daemon's own server. `None`: Codex.
    fn over_http(self, url: &str, authorization: &str) -> Option<Entry> {
        let section = match self {
            Client::Codex => return None,
            Client::Opencode => "mcp",
            Client::Vscode => "servers",
            Client::Claude | Client::Gemini | Client::Qwen | Client::Cursor => "mcpServers",
        };
        let kind = match self {
            Client::Claude | Client::Vscode => Some("http"),
            Client::Opencode => Some("remote"),
            Client::Codex | Client::Gemini | Client::Qwen | Client::Cursor => None,
        };
        // With `url` these two would speak an older transport.
        let address = match self {
            Client::Gemini | Client::Qwen => "httpUrl",
            _ => "url",
        };
        let kind = kind.map(|kind| ("type", json!(kind)));
        let rest = [(address, json!(url)), ("headers", json!({ "Authorization": authorization }))];
        Some(Entry {
            section,
            fields: kind.into_iter().chain(rest).collect(),
            defaults: Vec::new(),
            not_with: "command",
        })
    }

    /// What the user has to know or do before tools can be called over HTTP; none of them was tried.
    pub(super) fn notes_over_http(self) -> &'static [&'static str] {
        match self {
            Client::Claude | Client::Qwen => self.notes(),
            // What follows is about the environment of a process.
            Client::Codex | Client::Gemini => &self.notes()[..1],
            Client::Opencode => self.notes(),
            Client::Cursor => {
                &["Cursor lists the server in its MCP settings, where it may have to be \
                                 enabled, and asks before tools are called."]
            }
            Client::Vscode => {
                &["VS Code asks whether you trust the server when it is first used, and \
                                 before tools are called."]
            }
        }
    }

    /// What the user has to know or do before the tools can be called. Checked with Claude Code 2.1,
    /// Codex 0.169 and Gemini CLI 0.61; the others were not tried.
    pub(super) fn notes(self) -> &'static [&'static str] {
        match self {
            Client::Claude => &[
                "Claude Code asks you to approve the servers of `.mcp.json` when it is next started \
                 here, and asks before tools are called; `claude -p` needs \
                 `--allowedTools mcp__asyncagents`.",
            ],
            Client::Codex => &[
                "`default_tools_approval_mode = \"approve\"` lets Codex call these tools without \
                 asking; without it `codex exec` refuses them. Agents that write and run commands \
                 (`build`, `general`) do so outside of Codex's sandbox.",
                "`env_vars` passes our settings and the providers' API keys on where they are set; \
                 without it Codex removes them from the environment of servers.",
            ],
            Client::Gemini => &[
                "Gemini CLI starts MCP servers only in trusted folders, and asks before tools are \
                 called; `gemini -p` needs `--allowed-mcp-server-names asyncagents`, or \
                 `\"trust\": true` in this entry.",
                "`env` passes the providers' API keys on where they are set; without it Gemini CLI \
                 removes them from the environment of servers.",
            ],
            Client::Qwen => &["Qwen Code asks before tools are called."],
            Client::Opencode => {
                &["`asyncagents opencode install` is usually better: with that plugin agents run \
                 inside OpenCode, and their results come into the conversation by themselves."]
            }
            Client::Cursor => &[
                "Cursor lists the server in its MCP settings, where it may have to be enabled, and \
                 asks before tools are called. Started from a desktop, it may have another PATH than \
                 your shell.",
            ],
            Client::Vscode => {
                &["VS Code asks whether you trust the server when it is first started, and before \
                 tools are called. Started from a desktop, it may have another PATH than your shell."]
            }
        }
    }
}
