// The geometry of the timeline: what is where on the axis of time. Pure.

import { endOf, startOf, type Task } from "./tasks";

export interface Range {
  from: number;
  to: number;
}

export interface Bar {
  task: Task;
  /** Fractions of the width; within 0 and 1. */
  left: number;
  width: number;
}

export interface Tick {
  at: number;
  left: number;
}

/** A tool call, or the model's own time between two, within a task. */
export interface Segment {
  tool: string;
  from: number;
  to: number;
  failed: boolean;
}

export const SHORTEST_RANGE = 2_000;
export const LONGEST_RANGE = 90 * 86_400_000;

/** The tasks that overlap the range, in the order of their start. */
export function bars(tasks: Iterable<Task>, { from, to }: Range, now: number): Bar[] {
  const found: { bar: Bar; start: number }[] = [];
  for (const task of tasks) {
    const start = startOf(task);
    const end = Math.max(endOf(task) ?? now, start);
    if (end < from || start > to) continue;
    const left = (Math.max(start, from) - from) / (to - from);
    const right = (Math.min(end, to) - from) / (to - from);
    found.push({ bar: { task, left, width: right - left }, start });
  }
  found.sort((one, other) => one.start - other.start || (one.bar.task.sessionID < other.bar.task.sessionID ? -1 : 1));
  return found.map(({ bar }) => bar);
}

/** How many tasks were at work at the same time, at most, in each of so many equal parts of the range. */
export function parallelism(tasks: Iterable<Task>, { from, to }: Range, now: number, parts: number): number[] {
  const [starts, ends]: [number[], number[]] = [[], []];
  for (const task of tasks) {
    if (task.progress.phase === "queued" && endOf(task) === undefined) continue;
    const start = startOf(task);
    const end = Math.max(endOf(task) ?? now, start + 1);
    if (end < from || start > to) continue;
    starts.push(start);
    ends.push(end);
  }
  starts.sort((one, other) => one - other);
  ends.sort((one, other) => one - other);
  let [started, ended] = [0, 0];
  const endUntil = (at: number) => {
    while (ended < ends.length && ends[ended]! <= at) ended += 1;
  };
  return Array.from({ length: parts }, (_, part) => {
    const until = from + ((to - from) * (part + 1)) / parts;
    let most = started - ended;
    for (; started < starts.length && starts[started]! < until; most = Math.max(most, started - ended)) {
      endUntil(starts[started]!);
      started += 1;
    }
    endUntil(until);
    return most;
  });
}

const STEPS = [
  1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000,
  3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000, 1_209_600_000,
];

/** Round times for the axis, at least so many pixels apart. `offset` is that of the time zone, in milliseconds. */
export function ticks({ from, to }: Range, width: number, offset: number, apart = 90): Tick[] {
  const wanted = ((to - from) * apart) / Math.max(width, 1);
  const step = STEPS.find((step) => step >= wanted) ?? STEPS.at(-1)!;
  const found: Tick[] = [];
  for (let at = Math.ceil((from + offset) / step) * step - offset; at <= to; at += step) {
    found.push({ at, left: (at - from) / (to - from) });
  }
  return found;
}

/** The range after zooming by a factor around a point, which stays where it is. */
export function zoom({ from, to }: Range, factor: number, around: number): Range {
  const length = Math.min(LONGEST_RANGE, Math.max(SHORTEST_RANGE, (to - from) * factor));
  const share = (around - from) / (to - from);
  return { from: around - length * share, to: around + length * (1 - share) };
}

/** The range that shows all of these tasks, with some room on both sides. */
export function fit(tasks: Iterable<Task>, now: number): Range | undefined {
  let from = Infinity;
  let to = -Infinity;
  for (const task of tasks) {
    from = Math.min(from, startOf(task));
    to = Math.max(to, endOf(task) ?? now);
  }
  if (from === Infinity) return undefined;
  const room = Math.max((to - from) * 0.04, 500);
  return { from: Math.max(from - room, to - LONGEST_RANGE), to: to + room };
}

interface Message {
  info?: { role?: string; time?: { created?: number; completed?: number } };
  parts?: { type?: string; tool?: string; state?: { status?: string; time?: { start?: number; end?: number } } }[];
}

/** Less than this between two messages is no tool call, but the host's own time. */
const SHORTEST_GAP = 20;

/**
 * The tool calls of a conversation. Hosts that say when a call began and ended are believed. For others it follows
 * from the messages: some hosts end the message that makes a call before it runs, so that it fills the gap to the
 * next message, and some after it.
 */
export function segments(messages: unknown[], now: number): Segment[] {
  const found: Segment[] = [];
  const all = messages as Message[];
  all.forEach((message, n) => {
    const time = message.info?.time;
    for (const part of message.parts ?? []) {
      if (part.type !== "tool") continue;
      const next = all[n + 1]?.info?.time?.created;
      const own = part.state?.time;
      const isOver = part.state?.status === "completed" || part.state?.status === "error";
      const runsAfter = time?.completed !== undefined && (next ?? now) - time.completed >= SHORTEST_GAP && !(isOver && next === undefined);
      const from = own?.start ?? (runsAfter ? time.completed : time?.created);
      if (from === undefined) continue;
      const to = own?.end ?? (runsAfter ? next : time?.completed) ?? (isOver ? from : now);
      found.push({
        tool: part.tool ?? "tool", from, to: Math.max(from, to), failed: part.state?.status === "error",
      });
    }
  });
  return found;
}

/** Segments as fractions of a bar, with those that would be drawn over each other merged: `least` is one pixel. */
export function drawn(
  segments: Segment[], start: number, end: number, least: number,
): { left: number; width: number; tools: string[]; failed: boolean }[] {
  const length = Math.max(end - start, 1);
  const result: { left: number; width: number; tools: string[]; failed: boolean }[] = [];
  const sorted = [...segments].sort((one, other) => one.from - other.from);
  for (const segment of sorted) {
    const left = Math.min(1, Math.max(0, (segment.from - start) / length));
    const right = Math.min(1, Math.max(left, (segment.to - start) / length));
    const last = result.at(-1);
    if (last && left < last.left + Math.max(last.width, least)) {
      last.width = Math.max(last.width, right - last.left);
      last.failed ||= segment.failed;
      if (last.tools.length < 4 && !last.tools.includes(segment.tool)) last.tools.push(segment.tool);
    } else {
      result.push({ left, width: right - left, tools: [segment.tool], failed: segment.failed });
    }
  }
  return result;
}
