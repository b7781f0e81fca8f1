//! `asyncagents fork-preview`: the context that a forked agent would inherit, and its size, before any model is
//! paid to read it. With `--file` it works on exported messages, without the daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgGroup, Args};

use super::{connect, show};
use crate::config::Settings;
use crate::fork;
use crate::wire::ForkView;

/// A rule of thumb, for an estimate of the tokens.
const CHARACTERS_PER_TOKEN: usize = 4;

#[derive(Args)]
#[command(
    group = ArgGroup::new("conversation").required(true),
    after_help = "\
What is inherited goes to standard output, its size to standard error.

Example:
  asyncagents fork-preview $id | less
  asyncagents run --fork $id --agent explore 'And where is it tested?'"
)]
pub(super) struct ForkPreview {
    /// A session of any host, or a task
    #[arg(group = "conversation")]
    session: Option<String>,
    /// Read the messages from a JSON file instead; needs no daemon
    #[arg(long, value_name = "FILE", group = "conversation")]
    file: Option<PathBuf>,
    /// Print it as JSON, with the counts
    #[arg(long)]
    json: bool,
}

impl ForkPreview {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let view = match (&self.session, &self.file) {
            (_, Some(file)) => read(file)?,
            (session, None) => {
                let session = session.as_deref().unwrap_or_default();
                let connection = connect(settings).await?;
                connection.call(async |client| client.fork_preview(session).await).await?
            }
        };
        if self.json {
            show::json(&view)?;
        } else {
            let inherited = format!("{}\n\n{}", view.preamble, view.context);
            show::framed("what the agent would inherit", &inherited)?;
            // On standard error, so that a pipe gets the context alone.
            show::note(&size(&view));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(file: &Path) -> anyhow::Result<ForkView> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read `{name}`"))?;
    let inheritance = fork::inherit(&text).with_context(|| {
        format!(
            "`{name}` is not a transcript; expected a JSON array of messages as OpenCode has them"
        )
    })?;
    Ok(ForkView::from(inheritance))
}

fn size(view: &ForkView) -> String {
    let ForkView { kept, messages, characters, .. } = view;
    let tokens = characters.div_ceil(CHARACTERS_PER_TOKEN);
    format!("{kept} of {messages} messages, {characters} characters, about {tokens} tokens")
}
