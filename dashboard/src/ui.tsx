// What the views share: states as shape and colour, times, buttons, dialogs, messages.

import { createSignal, For, onMount, Show, type JSX } from "solid-js";

import { duration } from "./format";
import { now } from "./live";
import { endOf, isLive, startOf, stateOf, type Task } from "./tasks";

/** Shapes differ as well as colours: a check, a cross, a bar, a clock, an exclamation mark, a ring. */
const SHAPES: Record<string, string> = {
  completed: "M3.5 8.5l3 3 6-7",
  failed: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  cancelled: "M4 8h8",
  queued: "M8 4.5V8l2.5 1.5M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z",
  blocked: "M8 3.5v5.5M8 11.8v.7",
  stalled: "M3.5 8h.5M7.75 8h.5M12 8h.5",
  retrying: "M12.5 8A4.5 4.5 0 1 1 11 4.6M11.5 2v3h-3",
  working: "M8 2.5a5.5 5.5 0 1 1-5.5 5.5",
};

const WORDS: Record<string, string> = { blocked: "needs input", tool: "using a tool" };

function shape(state: string): string {
  return state in SHAPES ? state : "working";
}

export function StateIcon(props: { task: Task }): JSX.Element {
  const state = () => stateOf(props.task);
  const word = () => WORDS[state()] ?? state();
  return (
    <span class="state" data-state={shape(state())} role="img" aria-label={word()} title={word()}>
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d={SHAPES[shape(state())]} /></svg>
    </span>
  );
}

export function StateLabel(props: { task: Task }): JSX.Element {
  const state = () => stateOf(props.task);
  return (
    <span class="label" data-state={shape(state())}>
      <StateIcon task={props.task} /> {WORDS[state()] ?? state()}
    </span>
  );
}

/** How long it has worked, counting while it is live. */
export function Elapsed(props: { task: Task }): JSX.Element {
  const text = () => {
    const start = startOf(props.task);
    const end = endOf(props.task) ?? (isLive(props.task) ? now() : start);
    const length = Math.max(0, end - start);
    // While it counts, whole seconds: tenths would flicker.
    const isCounting = isLive(props.task) && length < 60_000;
    return isCounting ? `${Math.floor(length / 1000)} s` : duration(length);
  };
  return <span class="number">{text()}</span>;
}

interface Message {
  id: number;
  text: string;
  isError: boolean;
}

const [messages, setMessages] = createSignal<Message[]>([]);
let lastMessage = 0;

export function say(text: string, isError = false): void {
  const id = ++lastMessage;
  setMessages((all) => [...all.slice(-3), { id, text, isError }]);
  window.setTimeout(() => dismiss(id), isError ? 12_000 : 5_000);
}

function dismiss(id: number): void {
  setMessages((all) => all.filter((message) => message.id !== id));
}

export function Messages(): JSX.Element {
  return (
    <div class="messages" role="status" aria-live="polite">
      <For each={messages()}>
        {(message) => (
          <div class="message" classList={{ error: message.isError }}>
            <span>{message.text}</span>
            <button type="button" class="quiet" aria-label="Dismiss" onClick={() => dismiss(message.id)}>×</button>
          </div>
        )}
      </For>
    </div>
  );
}

/** A dialog over the page; the browser keeps the focus within it and closes it with Escape. */
export function Dialog(props: { title: string; onClose: () => void; children: JSX.Element }): JSX.Element {
  let dialog!: HTMLDialogElement;
  onMount(() => dialog.showModal());
  return (
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      onClose={() => props.onClose()}
      onClick={(event) => event.target === dialog && dialog.close()}
    >
      <div class="dialog">
        <header>
          <h2 id="dialog-title">{props.title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick={() => dialog.close()}>×</button>
        </header>
        {props.children}
      </div>
    </dialog>
  );
}

export function Empty(props: { title: string; children?: JSX.Element }): JSX.Element {
  return (
    <div class="empty">
      <svg viewBox="0 0 64 40" aria-hidden="true">
        <rect x="4" y="4" width="34" height="8" rx="4" /><rect x="18" y="16" width="42" height="8" rx="4" />
        <rect x="8" y="28" width="26" height="8" rx="4" />
      </svg>
      <h2>{props.title}</h2>
      <Show when={props.children}><div>{props.children}</div></Show>
    </div>
  );
}

export function Figure(props: { name: string; value: string; title?: string }): JSX.Element {
  return (
    <div class="figure" title={props.title ?? ""}>
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
    </div>
  );
}
