//! Who calls: a client by its name and the workspace it works in, so that it sees its tasks again
//! after a reconnect.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rmcp::RoleServer;
use rmcp::service::RequestContext;

use crate::config::Settings;
use crate::task::id::fingerprint;
use crate::wire::CallerView;

/// A client that says it has roots names them at once.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// Of a client's name.
const LONGEST_NAME: usize = 40;

pub(super) async fn caller(
    settings: &Settings,
    context: &RequestContext<RoleServer>,
) -> CallerView {
    let root = match root(context).await {
        Some(root) => root,
        None => std::env::current_dir().unwrap_or_default(),
    };
    let directory = root.to_string_lossy().into_owned();
    let client = context.client_info().map(|client| client.name).unwrap_or_default();
    let session_id = settings.parent.clone().unwrap_or_else(|| name(&client, &directory));
    CallerView { session_id, directory, development: settings.development, ..CallerView::default() }
}

/// `mcp-claude-code-1b2c3d4e`
fn name(client: &str, directory: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let client: String = client.chars().take(LONGEST_NAME).map(plain).collect();
    let client = if client.is_empty() { "client" } else { &client };
    format!("mcp-{client}-{:08x}", fingerprint(&[directory]))
}

/// The first workspace of a client that names its workspaces.
#[expect(deprecated, reason = "clients of today name their roots this way")]
async fn root(context: &RequestContext<RoleServer>) -> Option<PathBuf> {
    context.client_capabilities()?.roots?;
    let roots = tokio::time::timeout(LONGEST_ANSWER, context.peer.list_roots()).await;
    let roots = roots.ok()?.ok()?.roots;
    let path = roots.iter().find_map(|root| root.uri.strip_prefix("file://"))?;
    let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
    Some(PathBuf::from(percent_decode_str(path).decode_utf8().ok()?.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_by_its_name_and_its_workspace() {
        let here = name("Claude Code", "/work");
        assert_eq!(here, name("claude-code", "/work"));
        assert_ne!(here, name("Claude Code", "/other"));
        assert_ne!(here, name("codex", "/work"));
        assert!(here.starts_with("mcp-claude-code-"), "{here}");
        assert!(name("", "/work").starts_with("mcp-client-"));
    }
}
