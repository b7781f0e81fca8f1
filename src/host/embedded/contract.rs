//! The embedded host's side of the host contract, with the capabilities it has: forks, steering, permissions,
//! vetting and credentials. Sessions and messages are rows of our own store, so opening is idempotent by
//! nonce and saying by message id. Whatever reads files or a whole conversation runs on another thread:
//! the event loop serves every other task meanwhile.

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::{Embedded, INSTANCE, broken};
use crate::agent::definition::{AgentUnavailable, Definition};
use crate::host::directory::{canonical, canonical_now};
use crate::host::{
    Activity, AgentOffer, Answer, ClientCredentials, Credentials, Error, Forks, Host, HostFuture,
    NewSession, Observation, OpenedSession, Permissions, Place, Post, Prompt, Steering, Vetting,
    Watch,
};
use crate::store::Session;
use crate::task::{MessageId, SessionId};
use crate::threads;
use crate::transcript::{Figures, Outcome, Part};

impl Host for Embedded {
    fn open(&self, new: NewSession) -> HostFuture<'_, OpenedSession> {
        Box::pin(async move {
            let (handed, noted) = self.noted(&new).await?;
            let id = self.0.store.sessions().open(self.blank(new, noted)).await.map_err(broken)?;
            // Keys go to memory only. A crash before this line leaves a session whose row notes that it
            // had some, so it waits for its caller to bring them instead of failing.
            self.keep_handed(&id, handed);
            Ok(opened(id))
        })
    }

    fn find(&self, session: NewSession) -> HostFuture<'_, Vec<OpenedSession>> {
        Box::pin(async move {
            let found = self.0.store.sessions().by_nonce(&session.nonce).map_err(broken)?;
            Ok(found.into_iter().map(|session: Session| opened(session.id)).collect())
        })
    }

    fn delete(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(async move {
            self.halt(&place.session).await?;
            self.forget_handed(&place.session);
            self.0.store.sessions().delete(&place.session).await.map_err(broken)
        })
    }

    fn prompt(&self, prompt: Prompt) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let Prompt { to: Place { session: id, .. }, message, text, agent, model } = prompt;
            let (session, model) = (self.session(&id)?, model.unwrap_or_default());
            let find = move |host: &Embedded| {
                let agent = host.definition(&session.directory, &agent);
                let agent = agent.map_err(|missing| Error::Refused(missing.to_string()))?;
                let model = host.model_name(&model, &agent);
                host.find_model(&session, &model)?;
                Ok(model)
            };
            // Checked before anything is stored: a refused prompt leaves no message behind.
            let model = self.in_thread(find).await?;
            let parts = vec![Part::Text { id: message.part(0), text, synthetic: false }];
            self.say(&id, &message, parts, model, true).await
        })
    }

    fn post(&self, posts: Vec<Post>) -> HostFuture<'_, ()> {
        Box::pin(async move {
            for Post { to, message, visible, hidden, wake, agent: _ } in posts {
                let model = self.session(&to.session)?.model;
                let part = |n, text, synthetic| Part::Text { id: message.part(n), text, synthetic };
                let parts = vec![part(0, visible, false), part(1, hidden, true)];
                self.say(&to.session, &message, parts, model, wake).await?;
            }
            Ok(())
        })
    }

    fn posted(&self, to: Place, message: MessageId) -> HostFuture<'_, bool> {
        Box::pin(async move {
            self.session(&to.session)?;
            self.0.store.sessions().has_message(&to.session, message.as_str()).map_err(broken)
        })
    }

    fn observe(&self, watches: Vec<Watch>) -> HostFuture<'_, Vec<Option<Observation>>> {
        Box::pin(async move {
            let at_work = watches.iter().map(|watch| self.at_work(&watch.session));
            let at_work: Vec<Option<Observation>> = at_work.collect();
            // The usual case: every watched run is in memory, and nothing has to be read.
            if at_work.iter().all(Option::is_some) {
                return Ok(at_work);
            }
            // Reading a long conversation blocks, so it happens on another thread. That thread enters the
            // runtime because `at_rest` may restart a run (`work`), which spawns.
            let (host, runtime) = (self.clone(), tokio::runtime::Handle::current());
            let looked = threads::run_blocking(move || {
                let _inside = runtime.enter();
                let each = watches.into_iter().zip(at_work);
                let look = |(watch, seen)| match seen {
                    Some(seen) => Ok(Some(seen)),
                    None => look_at_rest(&host, watch).map(Some),
                };
                let looked: Vec<Result<Option<Observation>, Error>> = each.map(look).collect();
                // One unreadable session must not hide the state of the others. Only when all fail is it
                // an error of the host.
                match looked.iter().any(Result::is_ok) {
                    true => Ok(looked.into_iter().map(|seen| seen.unwrap_or(None)).collect()),
                    false => looked.into_iter().collect(),
                }
            });
            looked.await.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
        })
    }

    fn missing(&self, places: Vec<Place>) -> HostFuture<'_, Vec<SessionId>> {
        Box::pin(async move {
            let mut missing = Vec::new();
            for Place { session, .. } in places {
                if self.0.store.sessions().get(&session).map_err(broken)?.is_none() {
                    missing.push(session);
                }
            }
            Ok(missing)
        })
    }

    fn transcript(&self, place: Place) -> HostFuture<'_, String> {
        Box::pin(async move {
            self.session(&place.session)?;
            let host = self.clone();
            let read = move || host.0.store.sessions().transcript(&place.session).map_err(broken);
            let read = threads::run_blocking(read).await;
            read.unwrap_or_else(|stuck| Err(Error::Unreachable(stuck.to_string())))
        })
    }

    fn abort(&self, place: Place) -> HostFuture<'_, ()> {
        Box::pin(async move { self.halt(&place.session).await })
    }

    fn agents(&self, directory: String, _: Option<Place>) -> HostFuture<'_, Vec<AgentOffer>> {
        let load = move |host: &Embedded| {
            let offer = |(name, agent): (String, Definition)| {
                let model = host.model_in_file(&agent);
                AgentOffer { name, model, reads_only: agent.reads_only() }
            };
            let directory = canonical_now(&directory)?;
            Ok(host.definitions(&directory).into_iter().map(offer).collect())
        };
        Box::pin(self.in_thread(load))
    }

    fn directory(&self, directory: String, _: Option<Place>) -> HostFuture<'_, String> {
        Box::pin(async move { canonical(&directory).await })
    }

    fn listen<'a>(&'a self, wake: &'a Notify) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut events = self.0.events.subscribe();
            while events.changed().await.is_ok() {
                wake.notify_one();
            }
        })
    }

    fn keeps_transcripts(&self) -> bool {
        true
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }

    fn steering(&self) -> Option<&dyn Steering> {
        Some(self)
    }

    fn permissions(&self) -> Option<&dyn Permissions> {
        Some(self)
    }

    fn vetting(&self) -> Option<&dyn Vetting> {
        Some(self)
    }

    fn credentials(&self) -> Option<&dyn Credentials> {
        Some(self)
    }
}

impl Forks for Embedded {
    fn fork(&self, of: Place, new: NewSession) -> HostFuture<'_, OpenedSession> {
        Box::pin(async move {
            self.session(&of.session)?;
            let (handed, noted) = self.noted(&new).await?;
            let copy = self.0.store.sessions().copy(self.blank(new, noted), &of.session);
            let id = copy.await.map_err(broken)?;
            self.keep_handed(&id, handed);
            Ok(opened(id))
        })
    }
}

impl Steering for Embedded {
    /// The run that is under way hears it before it asks the model again; one that has just ended goes on.
    fn steer(&self, message: Prompt) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let Prompt { to: Place { session: id, .. }, message, text, agent: _, model: _ } =
                message;
            let model = self.session(&id)?.model;
            let parts = vec![Part::Text { id: message.part(0), text, synthetic: false }];
            self.say(&id, &message, parts, model, true).await
        })
    }
}

impl Permissions for Embedded {
    fn answer(&self, place: Place, ask: String, answer: Answer) -> HostFuture<'_, ()> {
        Box::pin(async move {
            let unasked = || Error::Refused(format!("no permission request `{ask}` is open"));
            // Requests live with the run, in memory: after a restart the same call asks again, under the same
            // id.
            let mut runs = self.runs();
            let running = runs.get_mut(&place.session).ok_or_else(unasked)?;
            let asked = running.asks.iter_mut().find(|(asked, _)| asked.id == ask);
            // Taken, so that a second answer to the same request is refused.
            let answering = asked.and_then(|(_, answering)| answering.take());
            let _ = answering.ok_or_else(unasked)?.send(answer);
            Ok(())
        })
    }
}

impl Vetting for Embedded {
    fn objection(&self, directory: String, agent: String) -> HostFuture<'_, Option<String>> {
        let find = move |host: &Embedded| match host.definition(&directory, &agent) {
            Err(untrusted @ AgentUnavailable::Untrusted { .. }) => Ok(Some(untrusted.to_string())),
            Ok(_) | Err(AgentUnavailable::Unknown(_)) => Ok(None),
        };
        Box::pin(self.in_thread(find))
    }

    fn model(
        &self,
        wish: Option<String>,
        handed: ClientCredentials,
    ) -> HostFuture<'_, Option<String>> {
        let find = move |host: &Embedded| {
            let models = &host.0.setup.models;
            let name = wish.unwrap_or_else(|| host.default_model());
            let name = models.resolve(&name).unwrap_or(name);
            let found = models.find(&name, handed.providers());
            found.map_err(|error| Error::Refused(error.to_string()))?;
            Ok(Some(name))
        };
        Box::pin(self.in_thread(find))
    }
}

/// A damaged conversation is reported as a failed run, so that its task ends instead of being retried.
fn look_at_rest(host: &Embedded, watch: Watch) -> Result<Observation, Error> {
    match host.at_rest(watch.clone()) {
        Err(Error::Refused(error)) => Ok(Observation {
            session: watch.session,
            activity: Activity::Idle,
            outcome: Outcome::Failed { error, partial: None },
            open_todos: Vec::new(),
            figures: Figures::default(),
        }),
        other => other,
    }
}

fn opened(session: SessionId) -> OpenedSession {
    OpenedSession { session, instance: INSTANCE.into() }
}
