// The connection to the event stream, and everything that follows from it: the tasks, what they ask, how fresh it is.
// Events are collected and shown together, ten times a second at most.

import { batch, createSignal } from "solid-js";

import { asks as fetchAsks, forget, get, mayAct, type Ask, type Health } from "./api";
import { FrameParser, type Frame } from "./sse";
import { TaskStore, type Change, type Snapshot, type Task } from "./tasks";

/** The daemon sends something every 30 s; without that for longer, the connection is dead. */
const SILENCE = 75_000;
const FLUSH = 100;
const SHORTEST_WAIT = 300;
const LONGEST_WAIT = 8_000;

export type Connection = "connecting" | "live" | "lost";

export const store = new TaskStore();

const [version, setVersion] = createSignal(0);
const [connection, setConnection] = createSignal<Connection>("connecting");
const [lostAt, setLostAt] = createSignal(0);
const [health, setHealth] = createSignal<Health>();
const [asks, setAsks] = createSignal<Ask[]>([]);
const [now, setNow] = createSignal(Date.now());

/** Changes whenever tasks have; what reads the store reads this first. */
export { version, connection, lostAt, health, asks, now };

type Listener = (changes: Change[]) => void;
const listeners = new Set<Listener>();

/** Calls back with the changes of each flush; returns how to stop that. */
export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let queue: Change[] = [];
let flushing: number | undefined;
let lastId = "";

function enqueue(change: Change): void {
  queue.push(change);
  flushing ??= window.setTimeout(flush, change.kind === "snapshot" ? 0 : FLUSH);
}

function flush(): void {
  flushing = undefined;
  const changes = queue;
  queue = [];
  batch(() => {
    for (const listener of listeners) listener(changes);
    setVersion((n) => n + 1);
    setNow(Date.now());
  });
  const asked = (task: Task | undefined) => task?.progress.phase === "blocked";
  if (changes.some((change) => change.kind === "snapshot" || asked(change.task) || asked(change.before))) {
    refreshAsks();
  }
}

let asking = false;
let askAgain = false;

/** One request at a time, and one more after it when something changed meanwhile. */
export function refreshAsks(): void {
  askAgain = asking;
  if (asking) return;
  asking = true;
  fetchAsks()
    .then(({ permissions }) => setAsks(permissions))
    .catch(() => {})
    .finally(() => {
      asking = false;
      if (askAgain) refreshAsks();
    });
}

function take({ event, id, data }: Frame): void {
  if (id) lastId = id;
  if (event === "snapshot") {
    store.replace(JSON.parse(data) as Snapshot);
    // What waits to be shown is in the snapshot.
    queue = [];
    enqueue({ kind: "snapshot" });
  } else if (event.startsWith("task.")) {
    const { task } = JSON.parse(data) as { task: Task };
    enqueue({ kind: "task", task, before: store.put(task) });
  }
}

async function follow(): Promise<void> {
  const aborting = new AbortController();
  let silence = window.setTimeout(() => aborting.abort(), SILENCE);
  try {
    const since = lastId ? `?since=${lastId}` : "";
    const response = await fetch(`/v1/events${since}`, { signal: aborting.signal });
    if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
    await lookAfter();
    setConnection("live");
    const parser = new FrameParser();
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      window.clearTimeout(silence);
      silence = window.setTimeout(() => aborting.abort(), SILENCE);
      parser.push(decoder.decode(value, { stream: true })).forEach(take);
    }
  } finally {
    window.clearTimeout(silence);
    aborting.abort();
  }
}

/** A daemon that was restarted knows nothing of this page's token. */
async function lookAfter(): Promise<void> {
  const before = health();
  const current = await get<Health>("/v1/health");
  if (before && before.pid !== current.pid && mayAct()) forget();
  setHealth(current);
}

export async function run(): Promise<never> {
  window.setInterval(() => setNow(Date.now()), 1000);
  let wait = SHORTEST_WAIT;
  for (;;) {
    const began = Date.now();
    await follow().catch(() => {});
    if (connection() !== "lost") setLostAt(Date.now());
    setConnection("lost");
    // A connection that held for a while was a good one: begin with short waits again.
    if (Date.now() - began > 10_000) wait = SHORTEST_WAIT;
    await new Promise((resolve) => {
      window.setTimeout(resolve, wait * (0.75 + Math.random() / 2));
      window.addEventListener("online", resolve, { once: true });
    });
    wait = Math.min(wait * 1.7, LONGEST_WAIT);
  }
}
