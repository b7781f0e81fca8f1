// What happened to a task, in order and in words: its runs, the answers to its requests, what it waits for now. Pure.

import type { Ask, Detail } from "./api";
import { duration } from "./format";
import { isLive } from "./tasks";

export interface TaskEvent {
  at: number;
  text: string;
  /** Text of the agent, its parent or a person. */
  what?: string | undefined;
}

/** Less than this between launch and start is no waiting. */
const SHORTEST_WAIT = 1_000;

export function eventsOf(task: Detail, asks: Ask[]): TaskEvent[] {
  const all: TaskEvent[] = [];
  let queuedAt = 0;
  for (const { at: time, run, kind, text } of task.events) {
    const at = Date.parse(time);
    if (kind === "queued") queuedAt = at;
    const waited = at - queuedAt;
    const words = {
      queued: run === 0 ? "launched" : "resumed",
      started: waited < SHORTEST_WAIT ? "started" : `started after ${duration(waited)}`,
      message: "message sent", correction: "asked for an answer that fits the schema", stalled: "stalled",
      completed: `completed after ${duration(waited)}`, failed: `failed after ${duration(waited)}`,
      cancelled: `cancelled after ${duration(waited)}`, told: "parent told",
    }[kind];
    all.push({ at, text: words, what: text ?? undefined });
  }
  for (const { at, allowed, what, door, by } of task.answers ?? []) {
    all.push({ at: Date.parse(at), text: `${allowed ? "approved" : "denied"} (${by ? `${door}, ${by}` : door})`, what });
  }
  for (const { since, what } of asks) all.push({ at: Date.parse(since), text: "asks for permission", what });
  if (task.resultRetrievedAt) all.push({ at: Date.parse(task.resultRetrievedAt), text: "result retrieved" });
  if (task.clearedAt) all.push({ at: Date.parse(task.clearedAt), text: "cleared from its parent's list" });
  if (isLive(task)) all.push({ at: Date.parse(task.progress.lastUpdate), text: `last seen: ${task.progress.phase}` });
  // Stable: what happens in the same millisecond stays in the order in which it was told.
  return all.sort((one, other) => one.at - other.at);
}
