// Tasks on the axis of time, with the tool calls inside them: how much ran at the same time is seen at once.

import { createEffect, createMemo, createSignal, For, onCleanup, onMount, Show, type JSX } from "solid-js";

import { get } from "./api";
import { clockTime, count, duration, plural, visible } from "./format";
import { onKeys } from "./keys";
import { now, store, version } from "./live";
import { go, toTask } from "./router";
import { endOf, isLive, startOf, stateOf, type Task } from "./tasks";
import { bars, drawn, fit, parallelism, segments, ticks, zoom, type Range, type Segment } from "./timeline";
import { Empty, StateIcon } from "./ui";

const ROW = 30;
const MARGIN = 300;
const SPANS: [string, number][] = [["1 min", 60e3], ["10 min", 600e3], ["1 h", 3600e3], ["6 h", 6 * 3600e3], ["24 h", 86400e3]];
/** Narrower bars show no tool calls. */
const NARROWEST = 24;

// Kept over changes of the view.
const [span, setSpan] = createSignal(0);
/** Where the range ends; undefined follows the present. */
const [end, setEnd] = createSignal<number>();

/** The tool calls of tasks in sight, fetched two at a time. */
const calls = new Map<string, { stamp: string; segments: Segment[] }>();
const [callsVersion, setCallsVersion] = createSignal(0);
const wanted = new Map<string, Task>();
let fetching = 0;

function want(task: Task): Segment[] {
  const stamp = isLive(task) ? `${task.progress.toolCalls} ${task.progress.phase}` : `${task.completedAt}`;
  const known = calls.get(task.sessionID);
  if (known?.stamp !== stamp && task.progress.toolCalls > 0) {
    wanted.set(task.sessionID, task);
    void fetchNext();
  }
  return known?.segments ?? [];
}

async function fetchNext(): Promise<void> {
  if (fetching >= 2) return;
  const [id, task] = wanted.entries().next().value ?? [];
  if (id === undefined || task === undefined) return;
  wanted.delete(id);
  fetching += 1;
  const stamp = isLive(task) ? `${task.progress.toolCalls} ${task.progress.phase}` : `${task.completedAt}`;
  try {
    const { messages } = await get<{ messages: unknown[] }>(`/v1/tasks/${encodeURIComponent(id)}/messages?message_limit=200`);
    calls.set(id, { stamp, segments: segments(messages, Date.now()) });
  } catch {
    calls.set(id, { stamp, segments: [] });
  }
  if (calls.size > 500) calls.delete(calls.keys().next().value!);
  fetching -= 1;
  setCallsVersion((n) => n + 1);
  void fetchNext();
}

export function Timeline(): JSX.Element {
  const all = createMemo(() => {
    version();
    return [...store.ended.values(), ...store.live.values()];
  });
  // At first: back to the oldest task that works, within a minute and an hour.
  createEffect(() => {
    if (span() > 0 || all().length === 0) return;
    const recent = all().filter((task) => (endOf(task) ?? now()) > now() - 3600e3);
    const oldest = Math.min(...recent.map(startOf), now() - 60e3);
    setSpan(Math.min(3600e3, (now() - oldest) * 1.1));
  });
  const range = createMemo<Range>(() => {
    const length = span() || 600e3;
    const to = end() ?? now() + length * 0.03;
    return { from: to - length, to };
  });
  const setRange = ({ from, to }: Range) => {
    setSpan(to - from);
    setEnd(to >= Date.now() ? undefined : to);
  };
  const fitAll = () => {
    const range = fit(all(), Date.now());
    if (range) setRange(range);
  };
  return (
    <div class="timeline">
      <header class="bar">
        <h1>Timeline</h1>
        <span class="buttons" role="group" aria-label="Zoom">
          <For each={SPANS}>{([name, length]) => (
            <button type="button" aria-pressed={Math.abs(span() - length) < 1 && end() === undefined}
              onClick={() => { setSpan(length); setEnd(undefined); }}>{name}</button>
          )}</For>
          <button type="button" onClick={fitAll}>Fit</button>
          <button type="button" aria-label="Zoom out" onClick={() => setRange(zoom(range(), 1.6, end() ?? now()))}>−</button>
          <button type="button" aria-label="Zoom in" onClick={() => setRange(zoom(range(), 1 / 1.6, end() ?? now()))}>+</button>
        </span>
        <Show when={end() !== undefined} fallback={<span class="chip live">follows the present</span>}>
          <button type="button" onClick={() => setEnd(undefined)}>Follow the present</button>
        </Show>
        <Show when={all().length >= 1000}><span class="dim">the newest {count(all().length)} tasks</span></Show>
        <span class="legend" aria-hidden="true"><i data-state="working" />working <i class="call" />tool call
          <i data-state="completed" />completed <i data-state="failed" />failed <i data-state="blocked" />needs input</span>
      </header>
      <Gantt tasks={all()} range={range()} setRange={setRange} />
    </div>
  );
}

export function Gantt(props: { tasks: Task[]; range: Range; setRange: (range: Range) => void }): JSX.Element {
  let chart!: HTMLDivElement;
  const [size, setSize] = createSignal({ width: 800, height: 600 });
  const [scrollTop, setScrollTop] = createSignal(0);
  const shown = createMemo(() => bars(props.tasks, props.range, now()));
  const rows = createMemo(() => {
    const first = Math.max(0, Math.floor((scrollTop() - MARGIN) / ROW));
    const last = Math.ceil((scrollTop() + size().height + MARGIN) / ROW);
    return new Map(shown().slice(first, last).map((bar, n) => [bar.task.sessionID, { bar, top: (first + n) * ROW }]));
  });
  const ids = createMemo(() => [...rows().keys()]);
  const axis = createMemo(() => ticks(props.range, size().width, -new Date().getTimezoneOffset() * 60_000));
  const working = createMemo(() => parallelism(props.tasks, props.range, now(), 120));
  const most = createMemo(() => Math.max(...working(), 1));
  const length = () => props.range.to - props.range.from;
  /** Of the axis, with seconds or without; one that would stick out at the end is left out. */
  const labels = () => (length() < 600e3 ? { characters: 8, width: 56 } : { characters: 5, width: 38 });

  onMount(() => {
    const measure = () => setSize({ width: Math.max(chart.clientWidth - labelWidth(chart), 100), height: chart.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(chart);
    onCleanup(() => observer.disconnect());
    // The newest tasks are at the end: that is where the user looks, unless they scrolled away.
    let stuck = true;
    chart.addEventListener("scroll", () => {
      setScrollTop(chart.scrollTop);
      stuck = chart.scrollTop + chart.clientHeight >= chart.scrollHeight - ROW;
    }, { passive: true });
    createEffect(() => {
      shown().length;
      if (stuck) queueMicrotask(() => (chart.scrollTop = chart.scrollHeight));
    });
  });

  const timeAt = (clientX: number) => {
    const box = chart.getBoundingClientRect();
    return props.range.from + ((clientX - box.left - labelWidth(chart)) / size().width) * length();
  };
  const wheel = (event: WheelEvent) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      props.setRange(zoom(props.range, Math.exp(event.deltaY / 300), timeAt(event.clientX)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan(((event.deltaX || event.deltaY) / size().width) * length());
    }
  };
  const pan = (by: number) => props.setRange({ from: props.range.from + by, to: props.range.to + by });
  onMount(() => chart.addEventListener("wheel", wheel, { passive: false }));
  const drag = (event: PointerEvent) => {
    if (event.button !== 0 || event.pointerType === "touch" || (event.target as HTMLElement).closest("a")) return;
    const { from, to } = props.range;
    const start = event.clientX;
    const moved = (event: PointerEvent) => {
      const by = ((start - event.clientX) / size().width) * (to - from);
      props.setRange({ from: from + by, to: to + by });
    };
    chart.setPointerCapture(event.pointerId);
    chart.addEventListener("pointermove", moved);
    chart.addEventListener("pointerup", () => chart.removeEventListener("pointermove", moved), { once: true });
  };
  onCleanup(onKeys({
    "+": () => props.setRange(zoom(props.range, 1 / 1.6, (props.range.from + props.range.to) / 2)),
    "-": () => props.setRange(zoom(props.range, 1.6, (props.range.from + props.range.to) / 2)),
    ArrowLeft: () => pan(-length() / 5),
    ArrowRight: () => pan(length() / 5),
    Escape: () => go("#/agents"),
  }));

  return (
    <div class="gantt">
      <div class="parallel" role="img" aria-label={`At most ${plural(most(), "task")} at the same time`}>
        <span class="name">in parallel <b>{most() === 1 && Math.max(...working()) === 0 ? 0 : most()}</b></span>
        <svg viewBox={`0 0 ${working().length} 1`} preserveAspectRatio="none" aria-hidden="true">
          <path d={area(working(), most())} />
        </svg>
      </div>
      <div class="chart" ref={chart} onPointerDown={drag} tabindex="0" role="group" aria-label="Tasks over time">
        <div class="axis" aria-hidden="true">
          <For each={axis().filter(({ left }) => left * size().width < size().width - labels().width)}>{(tick) => (
            <span style={{ left: `calc(var(--names) + ${tick.left * size().width}px)` }}>{clockTime(tick.at).slice(0, labels().characters)}</span>
          )}</For>
        </div>
        <Show when={shown().length > 0} fallback={
          <Show when={props.tasks.length > 0} fallback={<Empty title="No agents yet"><p>Tasks are drawn here as they run.</p></Empty>}>
            <Empty title="Nothing in this time"><p>Zoom out, or press “Fit”.</p></Empty>
          </Show>
        }>
          <div class="lanes" style={{ height: `${shown().length * ROW}px` }}>
            <For each={axis()}>{(tick) => <i class="grid" style={{ left: `calc(var(--names) + ${tick.left * size().width}px)` }} />}</For>
            <For each={ids()}>{(id) => {
              const row = createMemo<{ bar: ReturnType<typeof shown>[number]; top: number }>((before) => rows().get(id) ?? before!);
              return <Lane row={row()} width={size().width} />;
            }}</For>
          </div>
        </Show>
      </div>
    </div>
  );
}

function labelWidth(chart: HTMLElement): number {
  return parseFloat(getComputedStyle(chart).getPropertyValue("--names")) || 0;
}

function Lane(props: { row: { bar: { task: Task; left: number; width: number }; top: number }; width: number }): JSX.Element {
  const task = () => props.row.bar.task;
  const pixels = () => Math.max(props.row.bar.width * props.width, 3);
  const parts = createMemo(() => {
    callsVersion();
    if (pixels() < NARROWEST) return [];
    const start = startOf(task());
    return drawn(want(task()), start, endOf(task()) ?? now(), 3 / pixels());
  });
  const title = () => {
    const length = (endOf(task()) ?? now()) - startOf(task());
    return `${visible(task().description)}: ${stateOf(task())}, ${duration(length)}, ${plural(task().progress.toolCalls, "tool call")}`;
  };
  // Tool calls are drawn on the whole bar; one that begins before the range shows its visible part only.
  const isCut = () => props.row.bar.left === 0 || props.row.bar.left + props.row.bar.width > 0.999;
  return (
    <div class="lane" style={{ transform: `translateY(${props.row.top}px)` }}>
      <a class="name" href={toTask(task().sessionID)} title={title()}>
        <StateIcon task={task()} /><span>{visible(task().description)}</span>
      </a>
      <a
        class="span" data-state={stateOf(task())} classList={{ live: isLive(task()) }} href={toTask(task().sessionID)}
        tabindex="-1" aria-hidden="true" title={title()}
        style={{ left: `calc(var(--names) + ${props.row.bar.left * props.width}px)`, width: `${pixels()}px` }}
      >
        <Show when={!isCut() || isLive(task())}>
          <For each={parts()}>{(part) => (
            <i class="call" classList={{ failed: part.failed }} title={part.tools.join(", ")}
              style={{ left: `${part.left * 100}%`, width: `max(3px, ${part.width * 100}%)` }} />
          )}</For>
        </Show>
      </a>
    </div>
  );
}

function area(values: number[], most: number): string {
  const y = (n: number) => (1 - n / most).toFixed(3);
  const steps = values.map((n, x) => `L${x} ${y(n)}L${x + 1} ${y(n)}`);
  return `M0 1${steps.join("")}L${values.length} 1Z`;
}
