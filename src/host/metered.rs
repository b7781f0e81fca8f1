//! A host whose calls are counted and timed.

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    AgentOffer, Answer, AnyHost, Error, Handed, Host, NewSession, Observation, Opened, Post,
    Prompt, Toast, Watch,
};
use crate::metrics::{Metrics, Outcome};
use crate::task::{MessageId, SessionId};

#[derive(Clone)]
pub struct Metered {
    name: String,
    host: AnyHost,
    metrics: Metrics,
}

impl Metered {
    pub fn new(name: String, host: AnyHost, metrics: Metrics) -> Metered {
        Metered { name, host, metrics }
    }

    /// The same, with its calls made to another handle of the host.
    pub fn over(&self, host: AnyHost) -> Metered {
        Metered { host, ..self.clone() }
    }

    pub fn host(&self) -> &AnyHost {
        &self.host
    }

    async fn count<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let answer = answer.await;
        let outcome = if answer.is_ok() { Outcome::Ok } else { Outcome::Failed };
        self.metrics.host_called(&self.name, call, began.elapsed(), outcome);
        answer
    }
}

impl Host for Metered {
    async fn open(&self, session: NewSession) -> Result<Opened, Error> {
        self.count("open", self.host.open(session)).await
    }

    fn can_fork(&self) -> bool {
        self.host.can_fork()
    }

    fn keeps_transcripts(&self) -> bool {
        self.host.keeps_transcripts()
    }

    async fn fork(&self, of: &SessionId, session: NewSession) -> Result<Opened, Error> {
        self.count("fork", self.host.fork(of, session)).await
    }

    async fn find(&self, session: &NewSession) -> Result<Vec<Opened>, Error> {
        self.count("find", self.host.find(session)).await
    }

    async fn delete(&self, session: &SessionId) -> Result<(), Error> {
        self.count("delete", self.host.delete(session)).await
    }

    async fn prompt(&self, prompt: Prompt) -> Result<(), Error> {
        self.count("prompt", self.host.prompt(prompt)).await
    }

    async fn observe(&self, watches: Vec<Watch>) -> Result<Vec<Option<Observation>>, Error> {
        self.count("observe", self.host.observe(watches)).await
    }

    async fn missing(&self, sessions: Vec<SessionId>) -> Result<Vec<SessionId>, Error> {
        self.count("missing", self.host.missing(sessions)).await
    }

    async fn has(&self, session: &SessionId) -> Result<bool, Error> {
        self.count("has", self.host.has(session)).await
    }

    fn version(&self, session: &SessionId) -> Option<u64> {
        self.host.version(session)
    }

    async fn transcript(&self, session: &SessionId) -> Result<String, Error> {
        self.count("transcript", self.host.transcript(session)).await
    }

    async fn abort(&self, session: &SessionId) -> Result<(), Error> {
        self.count("abort", self.host.abort(session)).await
    }

    async fn post(&self, posts: Vec<Post>) -> Result<(), Error> {
        self.count("post", self.host.post(posts)).await
    }

    async fn posted(&self, parent: &SessionId, message: &MessageId) -> Result<bool, Error> {
        self.count("posted", self.host.posted(parent, message)).await
    }

    async fn objection(&self, directory: &str, agent: &str) -> Result<Option<String>, Error> {
        self.count("objection", self.host.objection(directory, agent)).await
    }

    async fn model(&self, wish: Option<String>, handed: Handed) -> Result<Option<String>, Error> {
        self.count("model", self.host.model(wish, handed)).await
    }

    async fn hand_over(&self, session: &SessionId, handed: Handed) -> Result<(), Error> {
        self.host.hand_over(session, handed).await
    }

    async fn bring(&self, session: &SessionId, handed: &Handed) -> Result<bool, Error> {
        self.host.bring(session, handed).await
    }

    async fn lacks(
        &self,
        session: &SessionId,
        model: Option<String>,
    ) -> Result<Option<String>, Error> {
        self.host.lacks(session, model).await
    }

    fn handed(&self, session: &SessionId) -> Handed {
        self.host.handed(session)
    }

    async fn agents(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<Vec<AgentOffer>, Error> {
        self.count("agents", self.host.agents(directory, parent)).await
    }

    async fn directory(
        &self,
        directory: &str,
        parent: Option<&SessionId>,
    ) -> Result<String, Error> {
        self.count("directory", self.host.directory(directory, parent)).await
    }

    async fn answer(&self, session: &SessionId, ask: &str, answer: Answer) -> Result<(), Error> {
        self.count("answer", self.host.answer(session, ask, answer)).await
    }

    async fn toast(&self, parent: &SessionId, toast: Toast) -> Result<(), Error> {
        self.count("toast", self.host.toast(parent, toast)).await
    }

    async fn listen(&self, wake: &Notify) {
        self.host.listen(wake).await;
    }
}
