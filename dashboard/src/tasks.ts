// The tasks that the event stream told of: all live ones, and the newest others. Plain data, without the framework,
// so that hundreds of events a second cost little and tests need no browser.

import type { components } from "./schema";

export type Task = components["schemas"]["TaskView"];
export type Stats = components["schemas"]["StatsView"];

export interface Snapshot {
  tasks: Task[];
  stats: Stats;
  total: number;
}

export type Group = "input" | "working" | "queued" | "done";

export const GROUPS: { id: Group; title: string }[] = [
  { id: "input", title: "Needs input" },
  { id: "working", title: "Working" },
  { id: "queued", title: "Queued" },
  { id: "done", title: "Done" },
];

/** What the user filters by; an empty field admits all. */
export interface Filter {
  status: string;
  agent: string;
  batch: string;
  parent: string;
  host: string;
  search: string;
}

export const NO_FILTER: Filter = { status: "", agent: "", batch: "", parent: "", host: "", search: "" };

/** The filter by the names of the API's query. */
export function queryOf(filter: Filter): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(filter)) if (value) query.set(name, value);
  return query;
}

export function matches(filter: Filter, task: Task): boolean {
  const is = (wanted: string, value: string) => wanted === "" || wanted === value;
  return (
    is(filter.status, task.status) && is(filter.agent, task.agent) && is(filter.batch, task.batchId) &&
    is(filter.parent, task.parentSessionID) && is(filter.host, task.host) &&
    (filter.search === "" || task.description.toLowerCase().includes(filter.search.toLowerCase()))
  );
}

export function isLive(task: Task): boolean {
  return task.status === "running" || task.status === "resumed";
}

export function groupOf(task: Task): Group {
  if (!isLive(task)) return "done";
  if (task.progress.phase === "blocked") return "input";
  return task.progress.phase === "queued" ? "queued" : "working";
}

export const startOf = (task: Task): number => Date.parse(task.startedAt);

export function endOf(task: Task): number | undefined {
  return task.completedAt ? Date.parse(task.completedAt) : undefined;
}

/** A word for what a task is doing, more exact than its status. */
export function stateOf(task: Task): string {
  if (!isLive(task)) return task.status === "error" ? "failed" : task.status;
  return task.progress.phase;
}

/** How many ended tasks are remembered beside the live ones; the API has the others. */
const MOST_ENDED = 2000;

export type Change = { kind: "snapshot" } | { kind: "task"; task: Task; before: Task | undefined };

export class TaskStore {
  readonly live = new Map<string, Task>();
  /** In the order in which they were heard of. */
  readonly ended = new Map<string, Task>();

  replace(snapshot: Snapshot): void {
    this.live.clear();
    this.ended.clear();
    // A snapshot begins with the newest; the oldest are to be forgotten first.
    for (const task of [...snapshot.tasks].reverse()) this.#put(task);
  }

  /** Takes a task over and returns what was known of it before. */
  put(task: Task): Task | undefined {
    const before = this.get(task.sessionID);
    this.#put(task);
    return before;
  }

  get(id: string): Task | undefined {
    return this.live.get(id) ?? this.ended.get(id);
  }

  counts(filter: Filter): Record<Exclude<Group, "done">, number> {
    const counts = { input: 0, working: 0, queued: 0 };
    for (const task of this.live.values()) {
      const group = groupOf(task);
      if (group !== "done" && matches(filter, task)) counts[group] += 1;
    }
    return counts;
  }

  /** The live tasks of each group: who waits longest for an answer first, else the newest first. */
  groups(filter: Filter): Record<Exclude<Group, "done">, Task[]> {
    const groups = { input: [] as Task[], working: [] as Task[], queued: [] as Task[] };
    for (const task of this.live.values()) {
      const group = groupOf(task);
      if (group !== "done" && matches(filter, task)) groups[group].push(task);
    }
    // RFC 3339 in UTC sorts as text, and parsing ten thousand dates takes longer than comparing them.
    const newest = (one: Task, other: Task) =>
      one.startedAt < other.startedAt ? 1 : one.startedAt > other.startedAt ? -1 : 0;
    groups.input.sort((one, other) => -newest(one, other));
    groups.working.sort(newest);
    groups.queued.sort((one, other) => -newest(one, other));
    return groups;
  }

  #put(task: Task): void {
    const id = task.sessionID;
    if (isLive(task)) {
      this.ended.delete(id);
      this.live.set(id, task);
      return;
    }
    this.live.delete(id);
    this.ended.set(id, task);
    if (this.ended.size > MOST_ENDED) {
      const oldest = this.ended.keys().next().value;
      if (oldest !== undefined) this.ended.delete(oldest);
    }
  }
}
