//! Retries: a failed or cancelled task is launched again with the same order, for the same parent, in a new session.
//! The session is opened beside the parent if that is a conversation of the same host, and else on the server of the
//! first task. It is a launch like any other, with the same crash windows; it only knows which task it repeats.

use super::{Caller, Error, Fork, Launch, Supervisor};
use crate::task::launch::TaskSpec;
use crate::task::{LaunchMode, Order, Origin, Task, TaskId};

impl Supervisor {
    /// With an idempotency key: a caller that lost its connection may repeat the call and gets the same task.
    pub async fn retry(
        &self,
        caller: &Caller,
        id: &TaskId,
        key: Option<String>,
    ) -> Result<Task, Error> {
        let first = self.task(id)?;
        self.check_owner(&first, caller)?;
        // Before the check that could refuse: the first task may have been resumed since.
        if let Some(key) = &key
            && let Some(task) = self.launched_with(key).await?
        {
            return Ok(task);
        }
        first.state.check_retry()?;
        // What the caller hands over comes before what the daemon remembers of the first launch.
        let handed = caller.handed.over(&self.0.core.handed_for(&first));
        let Task { origin, order, batch, .. } = first;
        let instance = self.server_of(&origin, caller)?;
        let fork = if origin.is_forked { Fork::Again(id.clone()) } else { Fork::No };
        // The parent is that of the first task, also when a person retries it: it waits for what the task was to
        // bring. No call is held open for it, so a blocking task comes back as one in the background.
        let parent = Caller {
            session: origin.parent.session,
            message: origin.parent.message,
            agent: origin.parent.agent,
            host: origin.parent.host,
            directory: origin.directory,
            instance,
            development: caller.development,
            lone_batches: false,
            heir_of: String::new(),
            anonymous: false,
            longest_wait: None,
            handed,
        };
        let wanted = TaskSpec {
            order: Order { mode: LaunchMode::Background, ..order },
            batch: Some(batch.to_string()),
            host: Some(origin.host),
        };
        let launch = Launch { wanted, fork, key };
        self.launch_linked(parent, launch, Some(id.clone())).await
    }

    /// The server to repeat a task on. A child of a conversation on the same host is opened beside its parent,
    /// wherever that is now. Any other belongs to the server that it was opened on, as with a resume: another one
    /// may have other files, agents and keys.
    fn server_of(&self, origin: &Origin, caller: &Caller) -> Result<Option<String>, Error> {
        let (core, Origin { host, host_instance, .. }) = (&self.0.core, origin);
        if *host == origin.parent.host {
            return Ok(None);
        }
        let Some(servers) = core.host(host)?.servers() else { return Ok(None) };
        if servers.is_named_by_caller(host_instance) {
            // A daemon may have forgotten it since, or its login: a caller that names it attaches it again. One
            // that names another server, which may not even be attached, is no hindrance.
            let attached = core.host_named_by(host, &caller.handed);
            if servers.on(host_instance).is_err() {
                attached?;
            }
        }
        Ok(Some(host_instance.clone()))
    }
}
