//! Client of a scripted host in another process, over its Unix socket. The event connection is re-opened
//! for ever: the process may be restarted while daemons run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;

use super::{Call, Reply};
use crate::host::Error;
use crate::net;

/// Generous: a slow answer on a loaded machine must not count as unreachable.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub struct Remote {
    client: reqwest::Client,
    socket: PathBuf,
}

impl Remote {
    pub fn new(socket: &Path) -> Result<Remote, Error> {
        let client = net::plain().unix_socket(socket).build();
        let client = client.map_err(|error| Error::Unreachable(error.to_string()))?;
        Ok(Remote { client, socket: socket.to_owned() })
    }

    pub(super) async fn call(&self, call: &Call) -> Result<Reply, Error> {
        let request = self.client.post("http://scripted/call").json(call).timeout(CALL_TIMEOUT);
        let unreachable =
            |_| Error::Unreachable(format!("no scripted host at `{}`", self.socket.display()));
        let response = request.send().await.map_err(unreachable)?;
        response.json::<Result<Reply, Error>>().await.map_err(unreachable)?
    }

    /// Reconnects for ever. Every connection starts with a wake-up, because events may have been missed.
    pub(super) async fn listen(&self, wake: &Notify) {
        loop {
            if let Ok(response) = self.client.get("http://scripted/events").send().await {
                let mut lines = response.bytes_stream();
                while let Some(Ok(_)) = lines.next().await {
                    wake.notify_one();
                }
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
    }
}
