//! Drives a turn: carries out its effects and feeds back what happened. All IO of the loop is
//! here, none of its decisions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::model::{self, Call, Model, Piece, Request};
use super::turn::{Effect, Event, Mint, Purpose, Turn};
use crate::transcript::Message;

/// How long tools may take to clean up behind themselves: a command's processes are killed and seen
/// gone, which the kernel may take seconds for.
const FAREWELL: Duration = Duration::from_secs(8);

/// What a run needs from the place where it runs.
pub trait Surroundings: Send + Sync + 'static {
    /// Puts a message on disk. Nothing happens after it before it is there.
    fn save(&self, message: &Message) -> impl Future<Output = Result<(), Stopped>> + Send;
    /// Everything the model is told, for these messages.
    fn request(&self, messages: &[Message], purpose: Purpose) -> Request;
    /// May take as long as somebody takes to answer.
    fn permit(&self, call: &Call) -> impl Future<Output = Permit> + Send;
    fn run_tool(
        &self,
        call: &Call,
        permit: Leave,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<String, String>> + Send;
    /// For whoever watches. `messages` are the saved ones.
    fn show(&self, doing: Doing, messages: &[Message], writing: Option<&Message>);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Yes(Leave),
    /// A rule forbids it: the model is told and may do something else.
    Forbidden(String),
    /// Somebody said no: the run ends.
    Refused(String),
}

/// The place outside the workspace that a call may go to, if any.
pub type Leave = Option<String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    Asking,
    Streaming,
    Tools,
    Retrying(String),
}

/// The run was left as it is and can be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run was left where it is: {0}")]
pub struct Stopped(pub String);

/// News of a tool. Its sender waits until they are on disk.
struct Note {
    event: Event,
    noted: oneshot::Sender<()>,
}

struct Work {
    pieces: Option<mpsc::Receiver<Piece>>,
    model: Option<JoinHandle<Result<(), model::Error>>>,
    tools: JoinSet<()>,
    notes: mpsc::Receiver<Note>,
    to_notes: mpsc::Sender<Note>,
    retry_at: Option<tokio::time::Instant>,
    /// Stops the tools that still run when the run is over.
    tools_over: CancellationToken,
}

/// Goes on until the run is over, somebody cancels it, or the daemon stops.
pub async fn drive<M: Mint, S: Surroundings>(
    mut turn: Turn<M>,
    model: Model,
    surroundings: Arc<S>,
    cancel: CancellationToken,
    stop: CancellationToken,
) -> Result<(), Stopped> {
    let (to_notes, notes) = mpsc::channel(16);
    let mut work = Work {
        pieces: None,
        model: None,
        tools: JoinSet::new(),
        notes,
        to_notes,
        retry_at: None,
        tools_over: cancel.child_token(),
    };
    let mut cancelled = false;
    let mut effects = VecDeque::from(turn.on(Event::Begin));
    loop {
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Save(message) => {
                    if let Err(stopped) = surroundings.save(&message).await {
                        work.finish().await;
                        return Err(stopped);
                    }
                }
                Effect::AskModel(purpose) => {
                    let request = surroundings.request(&turn.messages, purpose);
                    work.ask(&model, request);
                    surroundings.show(Doing::Asking, &turn.messages, turn.writing());
                }
                Effect::RunTools(calls) => {
                    for call in calls {
                        work.run(call, Arc::clone(&surroundings));
                    }
                    surroundings.show(Doing::Tools, &turn.messages, turn.writing());
                }
                Effect::Wait { pause, why } => {
                    work.retry_at = Some(tokio::time::Instant::now() + pause);
                    surroundings.show(Doing::Retrying(why), &turn.messages, turn.writing());
                }
                Effect::Done => {
                    work.finish().await;
                    return Ok(());
                }
            }
        }
        let (event, noted) = tokio::select! {
            event = work.next() => event,
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                (Event::Cancel, None)
            }
            () = stop.cancelled() => {
                work.finish().await;
                return Err(Stopped("the daemon is stopping".into()));
            }
        };
        let streams = matches!(event, Event::Piece(_));
        let tools = matches!(event, Event::Started { .. } | Event::ToolEnded { .. });
        for effect in turn.on(event) {
            // What a tool does next waits for this to be on disk.
            match effect {
                Effect::Save(message) => {
                    if let Err(stopped) = surroundings.save(&message).await {
                        work.finish().await;
                        return Err(stopped);
                    }
                }
                other => effects.push_back(other),
            }
        }
        if let Some(noted) = noted {
            let _ = noted.send(());
        }
        if streams && effects.is_empty() {
            surroundings.show(Doing::Streaming, &turn.messages, turn.writing());
        } else if tools && effects.is_empty() {
            surroundings.show(Doing::Tools, &turn.messages, turn.writing());
        }
    }
}

impl Work {
    fn ask(&mut self, model: &Model, request: Request) {
        let (sink, pieces) = mpsc::channel(64);
        let model = model.clone();
        self.pieces = Some(pieces);
        self.model = Some(tokio::spawn(async move { model.answer(request, sink).await }));
    }

    fn run<S: Surroundings>(&mut self, call: Call, surroundings: Arc<S>) {
        let cancel = self.tools_over.clone();
        let notes = self.to_notes.clone();
        let tell = move |event| {
            let notes = notes.clone();
            async move {
                let (noted, on_disk) = oneshot::channel();
                if notes.send(Note { event, noted }).await.is_ok() {
                    let _ = on_disk.await;
                }
            }
        };
        self.tools.spawn(async move {
            let id = call.id.clone();
            // In a task of its own: a panic is the call's answer, not the end of the run.
            let say = tell.clone();
            let made = tokio::spawn(async move {
                let leave = match surroundings.permit(&call).await {
                    Permit::Yes(leave) => leave,
                    Permit::Forbidden(why) => {
                        return Event::ToolEnded { call: call.id, result: Err(why) };
                    }
                    Permit::Refused(why) => return Event::Refused { call: call.id, why },
                };
                say(Event::Started { call: call.id.clone() }).await;
                let result = surroundings.run_tool(&call, leave, cancel).await;
                Event::ToolEnded { call: call.id, result }
            });
            let panicked = || Event::ToolEnded {
                call: id,
                result: Err("internal error: the tool panicked".into()),
            };
            tell(made.await.unwrap_or_else(|_| panicked())).await;
        });
    }

    /// The next thing that happens.
    async fn next(&mut self) -> (Event, Option<oneshot::Sender<()>>) {
        let pieces = async {
            match &mut self.pieces {
                Some(pieces) => pieces.recv().await,
                None => std::future::pending().await,
            }
        };
        let retry = async {
            match self.retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            piece = pieces => match piece {
                Some(piece) => {
                    if matches!(piece, Piece::End(_)) {
                        self.pieces = None;
                        self.model = None;
                    }
                    (Event::Piece(piece), None)
                }
                None => {
                    self.pieces = None;
                    (Event::ModelFailed(self.why_the_model_ended().await), None)
                }
            },
            Some(Note { event, noted }) = self.notes.recv() => (event, Some(noted)),
            () = retry => {
                self.retry_at = None;
                (Event::Retry, None)
            }
        }
    }

    async fn why_the_model_ended(&mut self) -> model::Error {
        match self.model.take() {
            Some(model) => match model.await {
                Ok(Ok(())) => model::Error::Truncated,
                Ok(Err(error)) => error,
                Err(_) => model::Error::Unusable("internal error: the model panicked".into()),
            },
            None => model::Error::Truncated,
        }
    }

    /// Tools that were told to stop get a moment to do so; whoever does not is dropped.
    async fn finish(mut self) {
        self.tools_over.cancel();
        drop(self.notes);
        let _ = tokio::time::timeout(FAREWELL, async {
            while self.tools.join_next().await.is_some() {}
        })
        .await;
    }
}
