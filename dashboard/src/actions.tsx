// What can be done with a task from the page: answer, cancel, send, resume, retry; and launching another one.

import { createSignal, For, Show, type JSX } from "solid-js";

import * as api from "./api";
import { count, visible } from "./format";
import { asks, refreshAsks, store, version } from "./live";
import { go, toTask } from "./router";
import { isLive, type Task } from "./tasks";
import { Dialog, say } from "./ui";

export type Talk = { kind: "send" | "resume"; task: Task } | { kind: "cancel"; tasks: Task[] } | { kind: "launch" };

const [talk, setTalk] = createSignal<Talk>();

export { talk, setTalk };

/** Carries something out and says how it went. */
async function attempt(what: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await what();
    say(done);
    return true;
  } catch (error) {
    say(error instanceof Error ? error.message : "that did not work", true);
    return false;
  }
}

export const asksOf = (id: string) => asks().filter((ask) => ask.sessionID === id);

export async function answer(ask: api.Ask, allow: boolean): Promise<void> {
  await attempt(() => api.answer(ask.id, allow), allow ? "Approved." : "Denied.");
  refreshAsks();
}

/** The requests of a task that stand on the screen: what has not been seen is not answered. */
const inSight = (task: Task) => asksOf(task.sessionID).filter((ask) => {
  const box = document.querySelector(`[data-ask="${CSS.escape(ask.id)}"]`)?.getBoundingClientRect();
  return box !== undefined && box.bottom > 0 && box.top < window.innerHeight;
});

/** On the page of a task, which shows all that it asks for. */
export async function answerSeen(task: Task, allow: boolean): Promise<void> {
  for (const ask of inSight(task)) await answer(ask, allow);
}

/** In the list, where a row shows a request only if it is the only one. */
export function answerOnly(task: Task, allow: boolean): void {
  const [[seen], { length }] = [inSight(task), asksOf(task.sessionID)];
  if (seen && length === 1) void answer(seen, allow);
  else if (length > 0) go(toTask(task.sessionID));
}

export const canSend = (task: Task) => api.mayAct() && isLive(task);
export const canResume = (task: Task) => api.mayAct() && task.status === "completed";
export const canCancel = (task: Task) => api.mayAct() && isLive(task);
const canTryAgain = (task: Task) =>
  api.mayAct() && (task.status === "error" || task.status === "cancelled");

async function retry(task: Task): Promise<void> {
  await attempt(async () => {
    const again = await api.retry(task.sessionID);
    go(toTask(again.sessionID));
  }, "Launched again.");
}

/** The open requests of a task, each as it will run. */
export function Asks(props: { task: Task }): JSX.Element {
  return (
    <For each={asksOf(props.task.sessionID)}>
      {(ask) => (
        <div class="ask" role="group" aria-label="permission request" data-ask={ask.id}>
          <code class="what">{visible(ask.what)}</code>
          <Show when={api.mayAct()}>
            <span class="buttons">
              <button type="button" class="primary" onClick={() => answer(ask, true)}>Approve</button>
              <button type="button" onClick={() => answer(ask, false)}>Deny</button>
            </span>
          </Show>
        </div>
      )}
    </For>
  );
}

export function Actions(props: { task: Task }): JSX.Element {
  return (
    <Show when={api.mayAct()}>
      <span class="buttons">
        <Show when={canSend(props.task)}>
          <button type="button" onClick={() => setTalk({ kind: "send", task: props.task })}>Send…</button>
        </Show>
        <Show when={canResume(props.task)}>
          <button type="button" onClick={() => setTalk({ kind: "resume", task: props.task })}>Resume…</button>
        </Show>
        <Show when={canTryAgain(props.task)}>
          <button type="button" onClick={() => retry(props.task)}>Retry</button>
        </Show>
        <Show when={canCancel(props.task)}>
          <button type="button" class="danger" onClick={() => setTalk({ kind: "cancel", tasks: [props.task] })}>
            Cancel…
          </button>
        </Show>
      </span>
    </Show>
  );
}

/** The dialog that is open, if any. */
export function Talks(): JSX.Element {
  return (
    <Show when={talk()} keyed>
      {(open) => {
        // A dialog says that it was closed some time after: another one may be open by then.
        const close = () => talk() === open && setTalk(undefined);
        switch (open.kind) {
          case "send":
          case "resume":
            return <Message kind={open.kind} task={open.task} onClose={close} />;
          case "cancel":
            return <Cancel tasks={open.tasks} onClose={close} />;
          case "launch":
            return <LaunchForm onClose={close} />;
        }
      }}
    </Show>
  );
}

function Message(props: { kind: "send" | "resume"; task: Task; onClose: () => void }): JSX.Element {
  const [text, setText] = createSignal("");
  const [busy, setBusy] = createSignal(false);
  const isSend = () => props.kind === "send";
  const submit = async (event?: Event) => {
    event?.preventDefault();
    if (busy() || text().trim() === "") return;
    setBusy(true);
    const call = () => (isSend() ? api.send : api.resume)(props.task.sessionID, text());
    if (await attempt(call, isSend() ? "Sent." : "Resumed.")) props.onClose();
    setBusy(false);
  };
  return (
    <Dialog title={isSend() ? "Send a message" : "Resume with a follow-up"} onClose={props.onClose}>
      <form onSubmit={submit}>
        <p class="dim">
          {isSend() ? "The agent sees it before its next step." : "The agent goes on in its own conversation."}
        </p>
        <label>
          {isSend() ? "Message" : "Prompt"}
          <textarea
            rows="5" required autofocus value={text()} onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit()}
          />
        </label>
        <footer>
          <span class="dim">Ctrl+Enter</span>
          <button type="submit" class="primary" disabled={busy()}>{isSend() ? "Send" : "Resume"}</button>
        </footer>
      </form>
    </Dialog>
  );
}

/** How many tasks the dialog names. */
const MOST_NAMED = 8;

function Cancel(props: { tasks: Task[]; onClose: () => void }): JSX.Element {
  const submit = async (event: Event) => {
    event.preventDefault();
    const ids = props.tasks.map((task) => task.sessionID);
    if (await attempt(() => api.cancel(ids), "Cancelled.")) props.onClose();
  };
  const words = () => (props.tasks.length === 1
    ? { title: "Cancel this task?", what: "It stops now, with its descendants. What it has said so far is kept.", them: "it" }
    : { title: `Cancel ${count(props.tasks.length)} tasks?`, what: "They stop now, with their descendants. What they have said so far is kept.", them: "them" });
  return (
    <Dialog title={words().title} onClose={props.onClose}>
      <form onSubmit={submit}>
        <ul class="plain">
          <For each={props.tasks.slice(0, MOST_NAMED)}>{(task) => <li>{visible(task.description)}</li>}</For>
          <Show when={props.tasks.length > MOST_NAMED}><li class="dim">and {count(props.tasks.length - MOST_NAMED)} more</li></Show>
        </ul>
        <p class="dim">{words().what}</p>
        <footer>
          <button type="button" onClick={props.onClose}>Keep {words().them}</button>
          <button type="submit" class="danger" autofocus>Cancel {words().them}</button>
        </footer>
      </form>
    </Dialog>
  );
}

/** Of the tasks that are known, newest first. */
function known(field: (task: Task) => string | null | undefined): string[] {
  version();
  const values = new Set<string>();
  for (const task of [...store.live.values(), ...[...store.ended.values()].reverse()]) {
    const value = field(task);
    if (value) values.add(value);
    if (values.size >= 20) break;
  }
  return [...values];
}

const BUILT_IN = ["explore", "general", "build", "librarian", "oracle"];

function LaunchForm(props: { onClose: () => void }): JSX.Element {
  const [form, setForm] = createSignal<api.Launch>({
    description: "", prompt: "", agent: known((task) => task.agent)[0] ?? "explore",
    directory: known((task) => task.directory)[0] ?? "", model: "", batch: "", host: "",
  });
  const [busy, setBusy] = createSignal(false);
  const set = (name: keyof api.Launch) => (event: { currentTarget: { value: string } }) =>
    setForm((form) => ({ ...form, [name]: event.currentTarget.value }));
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy()) return;
    setBusy(true);
    const wanted = form();
    const description = wanted.description.trim() || wanted.prompt.trim().split("\n")[0]!.slice(0, 80);
    const call = async () => {
      const task = await api.launch({ ...wanted, description });
      go(toTask(task.sessionID));
    };
    if (await attempt(call, "Launched.")) props.onClose();
    setBusy(false);
  };
  const Field = (field: { name: keyof api.Launch; label: string; known?: string[]; required?: boolean; hint?: string }) => (
    <label>
      {field.label}
      <input
        name={field.name} value={form()[field.name]} onInput={set(field.name)} required={field.required ?? false}
        placeholder={field.hint ?? ""} list={`known-${field.name}`} autocomplete="off"
      />
      <datalist id={`known-${field.name}`}><For each={field.known ?? []}>{(value) => <option value={value} />}</For></datalist>
    </label>
  );
  return (
    <Dialog title="Launch an agent" onClose={props.onClose}>
      <form onSubmit={submit}>
        <label>
          Prompt
          <textarea name="prompt" rows="5" required autofocus value={form().prompt} onInput={set("prompt")} />
        </label>
        <Field name="description" label="Description" hint="the first line of the prompt" />
        <div class="columns">
          <Field name="agent" label="Agent" required known={[...new Set([...known((task) => task.agent), ...BUILT_IN])]} />
          <Field name="model" label="Model" hint="the default" known={known((task) => task.model)} />
        </div>
        <Field name="directory" label="Directory" required known={known((task) => task.directory)} />
        <div class="columns">
          <Field name="batch" label="Batch" hint="one of its own" known={known((task) => task.batchId)} />
          <Field name="host" label="Host" hint="the default" known={known((task) => task.host)} />
        </div>
        <footer><button type="submit" class="primary" disabled={busy()}>Launch</button></footer>
      </form>
    </Dialog>
  );
}
