//! The driver of the agent loop: carries out the effects of a [`Turn`] and feeds back what happened. All
//! IO of the loop is here, none of its decisions. Whatever changes the conversation is on disk before the
//! next thing happens (write-ahead), so after a crash a new `Turn` goes on from the saved messages, and a
//! tool that had started is known to have started.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::model::{self, Call, Model, Piece, Request};
use super::turn::{Effect, Event, Mint, Purpose, Turn};
use crate::transcript::{Message, ToolState};

/// How long tools may take to stop when the run is over: the processes of a command are killed and waited
/// for, which may take the kernel seconds.
const CLEANUP_LIMIT: Duration = Duration::from_secs(8);

/// What a run needs from the host that it runs in.
pub trait RunEnvironment: Send + Sync + 'static {
    /// Puts a message on disk. Resolves when it is there; nothing else happens before.
    fn save(&self, message: &Message) -> impl Future<Output = Result<(), Suspension>> + Send;
    /// Puts the state of one call of a saved message on disk.
    fn save_call(
        &self,
        message: &str,
        part: usize,
        state: &ToolState,
    ) -> impl Future<Output = Result<(), Suspension>> + Send;
    /// The messages that were sent to the session since the last call.
    fn hear(&self) -> impl Future<Output = Result<Vec<Message>, Suspension>> + Send;
    /// The model for the next request. Looked up every time, because its key may have changed.
    fn model(&self) -> impl Future<Output = Result<Model, model::Error>> + Send;
    /// The request to the model, for these messages.
    fn request(&self, messages: &[Message], purpose: Purpose) -> Request;
    /// Decides whether a call may run. May take as long as a person takes to answer.
    fn permit(&self, call: &Call) -> impl Future<Output = Permit> + Send;
    /// Runs a call. Both results are text for the model. It must stop when `cancel` is.
    fn run_tool(
        &self,
        call: &Call,
        permit: Allowance,
        cancel: CancellationToken,
    ) -> impl Future<Output = Result<String, String>> + Send;
    /// Reports progress.
    fn show(&self, phase: RunPhase, messages: &[Message]);
}

/// The decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Yes(Allowance),
    /// A rule forbids it: the model is told why and goes on.
    Forbidden(String),
    /// A person refused it: the run ends.
    Refused(String),
}

/// What a call may reach beyond the workspace or the sandbox, if it was permitted to.
pub type Allowance = Option<String>;

/// What a run is doing, for progress reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunPhase {
    Asking,
    Streaming,
    Tools,
    Retrying(String),
}

/// The run was suspended: what is on disk is complete, and a new `Turn` can resume it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run was suspended and can be resumed: {0}")]
pub struct Suspension(pub String);

/// An event of a tool. Its sender waits until the event is on disk.
struct ToolNote {
    event: Event,
    saved: oneshot::Sender<()>,
}

/// The work in flight: at most one request to the model, the running tools, a timer.
struct Work {
    pieces: Option<mpsc::Receiver<Piece>>,
    /// The newest request. Its answer may be complete while it still closes its connection.
    model: JoinSet<Result<(), model::Error>>,
    tools: JoinSet<()>,
    notes: mpsc::Receiver<ToolNote>,
    to_notes: mpsc::Sender<ToolNote>,
    retry_at: Option<tokio::time::Instant>,
    /// Cancels the tools that are still running when the run is over.
    tools_over: CancellationToken,
}

/// Runs a turn to its end. `cancel` ends the run (the turn records that it was aborted); `stop` suspends
/// it as it is, for the next daemon. Returns `Err` only if the run is suspended.
pub async fn drive<M: Mint, S: RunEnvironment>(
    mut turn: Turn<M>,
    environment: Arc<S>,
    cancel: CancellationToken,
    stop: CancellationToken,
) -> Result<(), Suspension> {
    let mut work = Work::new(&cancel);
    let mut cancelled = false;
    let mut effects = turn.on(Event::Begin);
    loop {
        match work.carry_out(effects, &mut turn, &environment).await {
            Ok(Step::GoesOn) => {}
            Ok(Step::Over) => {
                work.finish().await;
                return Ok(());
            }
            Err(stopped) => {
                work.finish().await;
                return Err(stopped);
            }
        }
        let (event, saved) = tokio::select! {
            event = work.next() => event,
            () = cancel.cancelled(), if !cancelled => {
                cancelled = true;
                (Event::Cancel, None)
            }
            () = stop.cancelled() => {
                work.finish().await;
                return Err(Suspension("the daemon is stopping".into()));
            }
        };
        // No event for the turn: what is on disk stays as it is, and the run is resumed once somebody
        // brings credentials again.
        if let Event::ModelFailed(model::Error::Lost(why)) = event {
            work.finish().await;
            return Err(Suspension(why));
        }
        let phase = match event {
            Event::Piece(_) => Some(RunPhase::Streaming),
            Event::Started { .. } | Event::ToolEnded { .. } => Some(RunPhase::Tools),
            Event::Begin
            | Event::Heard(_)
            | Event::ModelFailed(_)
            | Event::Retry
            | Event::Refused { .. }
            | Event::Cancel => None,
        };
        effects = turn.on(event);
        // Progress is only shown if nothing else will be: `carry_out` shows what it starts itself.
        let is_save = |effect: &Effect| matches!(effect, Effect::Save(_) | Effect::SaveCall { .. });
        if let Some(phase) = phase.filter(|_| effects.iter().all(is_save)) {
            environment.show(phase, turn.messages());
        }
        // The tool waits for this: it must not start before "started" is on disk. After a crash it would
        // otherwise be run again although it may have done half of its work.
        if let Some(saved) = saved {
            let (saves, others): (Vec<_>, Vec<_>) = effects.into_iter().partition(is_save);
            if let Err(stopped) = work.carry_out(saves, &mut turn, &environment).await {
                // Not confirmed, but not left waiting either; `finish` cancels it.
                drop(saved);
                work.finish().await;
                return Err(stopped);
            }
            let _ = saved.send(());
            effects = others;
        }
    }
}

/// Whether the run goes on after some effects.
enum Step {
    GoesOn,
    Over,
}

impl Work {
    fn new(cancel: &CancellationToken) -> Work {
        let (to_notes, notes) = mpsc::channel(16);
        Work {
            pieces: None,
            model: JoinSet::new(),
            tools: JoinSet::new(),
            notes,
            to_notes,
            retry_at: None,
            tools_over: cancel.child_token(),
        }
    }

    /// Carries out effects in order. Hearing new messages can lead to further effects, which come after
    /// the others.
    async fn carry_out<M: Mint, S: RunEnvironment>(
        &mut self,
        effects: Vec<Effect>,
        turn: &mut Turn<M>,
        environment: &Arc<S>,
    ) -> Result<Step, Suspension> {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Save(id) => {
                    if let Some(message) = turn.message(&id) {
                        environment.save(message).await?;
                    }
                }
                Effect::SaveCall { message: id, part } => {
                    let message = turn.message(&id);
                    if let Some(state) = message.and_then(|message| message.tool_state(part)) {
                        environment.save_call(&id, part, state).await?;
                    }
                }
                // Right before the next request: what was said during the run is answered with the next step, and not
                // only when the run is over.
                Effect::Hear => {
                    let heard = environment.hear().await?;
                    effects.extend(turn.on(Event::Heard(heard)));
                }
                Effect::AskModel(purpose) => {
                    let request = environment.request(turn.asked(), purpose);
                    self.ask(request, Arc::clone(environment));
                    environment.show(RunPhase::Asking, turn.messages());
                }
                Effect::RunTools(calls) => {
                    for call in calls {
                        self.run(call, Arc::clone(environment));
                    }
                    environment.show(RunPhase::Tools, turn.messages());
                }
                Effect::Wait { pause, why } => {
                    self.retry_at = Some(tokio::time::Instant::now() + pause);
                    environment.show(RunPhase::Retrying(why), turn.messages());
                }
                Effect::Done => return Ok(Step::Over),
            }
        }
        Ok(Step::GoesOn)
    }

    /// Starts a request to the model; its pieces come through a bounded channel (back-pressure).
    fn ask<S: RunEnvironment>(&mut self, request: Request, environment: Arc<S>) {
        // 64 pieces: a run that waits for the disk stops reading, and the server feels it through TCP.
        let (sink, pieces) = mpsc::channel(64);
        self.pieces = Some(pieces);
        // Aborts the one before, which is over or was given up.
        self.model = JoinSet::new();
        self.model.spawn(async move { environment.model().await?.answer(request, sink).await });
    }

    /// Starts a tool call: permission, then "started" on disk, then the tool.
    fn run<S: RunEnvironment>(&mut self, call: Call, environment: Arc<S>) {
        let cancel = self.tools_over.clone();
        let notes = self.to_notes.clone();
        let tell = move |event| {
            let notes = notes.clone();
            async move {
                let (saved, on_disk) = oneshot::channel();
                if notes.send(ToolNote { event, saved }).await.is_ok() {
                    let _ = on_disk.await;
                }
            }
        };
        self.tools.spawn(async move {
            let id = call.id.clone();
            // In a task of its own, so that a panic becomes the result of the call and not the end of
            // the run. It is aborted with this one.
            let say = tell.clone();
            let mut made = JoinSet::from_iter([async move {
                let permit = tokio::select! {
                    permit = environment.permit(&call) => permit,
                    // The run is over while a person is still being asked.
                    () = cancel.cancelled() => Permit::Forbidden("aborted".to_owned()),
                };
                let allowance = match permit {
                    Permit::Yes(allowance) => allowance,
                    Permit::Forbidden(why) => {
                        return Event::ToolEnded { call: call.id, result: Err(why) };
                    }
                    Permit::Refused(what) => return Event::Refused { call: call.id, what },
                };
                say(Event::Started { call: call.id.clone() }).await;
                let result = environment.run_tool(&call, allowance, cancel).await;
                Event::ToolEnded { call: call.id, result }
            }]);
            let panicked = || Event::ToolEnded {
                call: id,
                result: Err("internal error: the tool panicked".into()),
            };
            let ended = made.join_next().await.and_then(Result::ok);
            tell(ended.unwrap_or_else(panicked)).await;
        });
    }

    /// Waits for the next event, and for events of tools returns the confirmation they wait for.
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
                    // Complete: the end of the channel that follows must not be taken for a failure.
                    if matches!(piece, Piece::End(_)) {
                        self.pieces = None;
                    }
                    (Event::Piece(piece), None)
                }
                None => {
                    self.pieces = None;
                    (Event::ModelFailed(self.why_the_model_ended().await), None)
                }
            },
            Some(ToolNote { event, saved }) = self.notes.recv() => (event, Some(saved)),
            () = retry => {
                self.retry_at = None;
                (Event::Retry, None)
            }
        }
    }

    /// The error behind a stream of pieces that ended without [`Piece::End`].
    async fn why_the_model_ended(&mut self) -> model::Error {
        match self.model.join_next().await {
            Some(Ok(Ok(()))) | None => model::Error::Truncated,
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => model::Error::Unusable("internal error: the model panicked".into()),
        }
    }

    /// Aborts the request to the model, cancels the tools and waits for both for a while. Tools that do not
    /// stop are aborted.
    async fn finish(mut self) {
        self.tools_over.cancel();
        // Tools that wait for a confirmation wake up and see that they are cancelled.
        drop(self.notes);
        let _ = tokio::time::timeout(CLEANUP_LIMIT, async {
            self.model.shutdown().await;
            while self.tools.join_next().await.is_some() {}
        })
        .await;
    }
}
