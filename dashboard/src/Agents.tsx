// The fleet at a glance: tasks in four groups, those that wait for a person first. Only the rows in sight exist.

import {
  createEffect, createMemo, createResource, createSignal, For, on, onCleanup, onMount, Show, untrack, type JSX,
} from "solid-js";

import { Asks, answerOnly, asksOf, canCancel, canResume, canSend, setTalk } from "./actions";
import { get, mayAct, type PageOfTasks } from "./api";
import { EndedList } from "./ended";
import { ago, count, gistOf, money, plural, short, visible } from "./format";
import { connection, now, onChanges, store, version } from "./live";
import { onKeys } from "./keys";
import { go, replace, route, toAgents, toBatch, toTask } from "./router";
import {
  GROUPS, groupOf, isLive, NO_FILTER, queryOf, startOf, endOf, type Filter, type Group, type Stats, type Task,
} from "./tasks";
import { Elapsed, Empty, StateIcon } from "./ui";

const STATUSES = ["running", "resumed", "completed", "error", "cancelled"];

/** Heights in pixels; `style.css` gives rows the same. Rows that ask have a line more, and on phones one for buttons. */
const WIDE = { header: 40, row: 50, input: 92, buttons: 0 };
const NARROW = { header: 40, row: 66, input: 98, buttons: 40 };
/** Rows beyond the edges that exist already. */
const MARGIN = 400;

interface Item {
  key: string;
  top: number;
  height: number;
  group: Group;
  /** Undefined for a header, and for a row that is still being loaded. */
  task?: Task | undefined;
  count?: number;
}

const load = (filter: Filter, offset: number, limit: number) => {
  const query = queryOf(filter);
  query.set("sort", "completedAt:desc");
  query.set("offset", `${offset}`);
  query.set("limit", `${limit}`);
  return get<PageOfTasks>(`/v1/tasks?${query}`);
};

// Kept over changes of the view, so that coming back from a task finds the list as it was left.
const [collapsed, setCollapsed] = createSignal<ReadonlySet<Group>>(new Set());
const [selected, setSelected] = createSignal("");
let scrolledTo = 0;

export function Agents(): JSX.Element {
  let scroller!: HTMLDivElement;
  let search!: HTMLInputElement;
  const narrow = window.matchMedia("(max-width: 720px)");
  const [heights, setHeights] = createSignal(narrow.matches ? NARROW : WIDE);
  const resized = () => setHeights(narrow.matches ? NARROW : WIDE);
  narrow.addEventListener("change", resized);
  onCleanup(() => narrow.removeEventListener("change", resized));

  const filter = createMemo<Filter>(() => {
    const current = route();
    const query = current.view === "agents" ? current.query : new URLSearchParams();
    const names = Object.keys(NO_FILTER) as (keyof Filter)[];
    return Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""])) as unknown as Filter;
  }, NO_FILTER, { equals: (one, other) => queryOf(one).toString() === queryOf(other).toString() });
  const setFilter = (name: keyof Filter, value: string) => replace(toAgents({ ...filter(), [name]: value }));

  const [loaded, setLoaded] = createSignal(0);
  const changed = () => setLoaded((n) => n + 1);
  const liveMatching = () => Object.values(store.counts(filter())).reduce((sum, n) => sum + n, 0);
  const ended = createMemo(() => new EndedList(filter(), load, () => untrack(liveMatching), changed));
  createEffect(on(ended, (list) => void list.refresh()));
  onCleanup(onChanges((changes) => {
    const list = untrack(ended);
    // After a reconnection anything may have happened.
    if (changes.some((change) => change.kind === "snapshot")) return void list.refresh();
    for (const change of changes) {
      if (change.kind !== "task") continue;
      if (!isLive(change.task) || !change.before || !isLive(change.before)) list.take(change.task);
    }
  }));

  const live = createMemo(() => {
    version();
    return store.groups(filter());
  });
  const lengths = createMemo(() => {
    version();
    loaded();
    const { input, working, queued } = live();
    return { input: input.length, working: working.length, queued: queued.length, done: ended().length };
  });
  const sections = createMemo(() => {
    let top = 0;
    return GROUPS.map(({ id }) => {
      const length = lengths()[id];
      const row = id !== "input" ? heights().row : heights().input + (mayAct() ? heights().buttons : 0);
      const shown = collapsed().has(id) ? 0 : length;
      // A group without tasks has no header, either, but for the last one.
      const header = length === 0 && id !== "done" ? 0 : heights().header;
      const section = { id, length, top, header, row, shown, height: header + row * shown };
      top += section.height;
      return section;
    });
  });
  const height = () => sections().reduce((sum, section) => sum + section.height, 0);

  const [scroll, setScroll] = createSignal({ top: scrolledTo, height: 900 });
  const taskAt = (group: Group, n: number) => (group === "done" ? ended().at(n) : live()[group][n]);
  const items = createMemo<Map<string, Item>>(() => {
    version();
    loaded();
    const found = new Map<string, Item>();
    const [from, to] = [scroll().top - MARGIN, scroll().top + scroll().height + MARGIN];
    for (const section of sections()) {
      const { id, top, header, row, shown } = section;
      if (header > 0 && top + header >= from && top <= to) {
        found.set(id, { key: id, top, height: header, group: id, count: section.length });
      }
      const first = Math.max(0, Math.floor((from - top - header) / row));
      const last = Math.min(shown, Math.ceil((to - top - header) / row));
      if (id === "done" && first < last) untrack(() => ended().ensure(first, last));
      for (let n = first; n < last; n++) {
        const task = taskAt(id, n);
        const key = task?.sessionID ?? `${id} ${n}`;
        found.set(key, { key, top: top + header + n * row, height: row, group: id, task });
      }
    }
    return found;
  });
  // In the order in which they were first seen, so that elements are not moved about; the places come from `top`.
  const keys = createMemo<string[]>((before) => {
    const all = items();
    const kept = before.filter((key) => all.has(key));
    const known = new Set(kept);
    return [...kept, ...[...all.keys()].filter((key) => !known.has(key))];
  }, []);

  onMount(() => {
    const measure = () => {
      scrolledTo = scroller.scrollTop;
      setScroll({ top: scroller.scrollTop, height: scroller.clientHeight });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(scroller);
    scroller.addEventListener("scroll", measure, { passive: true });
    onCleanup(() => observer.disconnect());
    scroller.scrollTop = scrolledTo;
  });

  /** Where the selected task is in the list of all that are shown. */
  const place = (id: string) => {
    for (const { id: group, shown } of sections()) {
      for (let n = 0; n < shown; n++) if (taskAt(group, n)?.sessionID === id) return { group, n };
      if (group === "done") break;
    }
    return undefined;
  };
  const move = (by: number) => {
    const all = sections().filter((section) => section.shown > 0);
    const at = place(selected());
    let [s, n] = at ? [all.findIndex((section) => section.id === at.group), at.n + by] : [0, 0];
    if (s < 0 || all.length === 0) return;
    if (n < 0) {
      s -= 1;
      n = (all[s]?.shown ?? 0) - 1;
    } else if (n >= all[s]!.shown) {
      s += 1;
      n = 0;
    }
    const section = all[s];
    const task = section && taskAt(section.id, n);
    if (!section || !task) return;
    setSelected(task.sessionID);
    const top = section.top + section.header + n * section.row;
    if (top < scroller.scrollTop + section.header) scroller.scrollTop = top - section.header;
    else if (top + section.row > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = top + section.row - scroller.clientHeight;
    }
  };
  const current = () => {
    const at = place(selected());
    return at && taskAt(at.group, at.n);
  };
  const withCurrent = (act: (task: Task) => void) => () => {
    const task = current();
    if (task) act(task);
  };
  onCleanup(onKeys({
    j: () => move(1),
    k: () => move(-1),
    "/": () => search.focus(),
    Enter: withCurrent((task) => go(toTask(task.sessionID))),
    a: withCurrent((task) => mayAct() && answerOnly(task, true)),
    d: withCurrent((task) => mayAct() && answerOnly(task, false)),
    x: withCurrent((task) => canCancel(task) && setTalk({ kind: "cancel", tasks: [task] })),
    s: withCurrent((task) => {
      if (canSend(task)) setTalk({ kind: "send", task });
      else if (canResume(task)) setTalk({ kind: "resume", task });
    }),
  }));

  const toggle = (group: Group) =>
    setCollapsed((all) => new Set(all.has(group) ? [...all].filter((one) => one !== group) : [...all, group]));
  const isEmpty = () => connection() !== "connecting" && loaded() > 0 && height() <= heights().header;
  const isFiltered = () => queryOf(filter()).size > 0;

  return (
    <div class="agents">
      <h1 class="hidden">Agents</h1>
      <Filters filter={filter()} set={setFilter} searchRef={(input) => (search = input)} />
      <div class="scroller" ref={scroller} data-testid="tasks">
        <Show when={isEmpty()}>
          <Show when={isFiltered()} fallback={
            <Empty title="No agents yet">
              <p>Launch one{mayAct() ? " with the button above, or" : ""} from a shell:</p>
              <pre>asyncagents run --agent explore 'Where is the login handled?'</pre>
            </Empty>
          }>
            <Empty title="No task matches">
              <p><button type="button" onClick={() => replace("#/agents")}>Clear the filters</button></p>
            </Empty>
          </Show>
        </Show>
        <div class="rows" style={{ height: `${isEmpty() ? 0 : height()}px` }}>
          <For each={keys()}>
            {(key) => {
              // The last one is kept: an element that is about to be removed is still asked for its contents.
              const item = createMemo<Item>((before) => items().get(key) ?? before!);
              return (
                <div
                  class="item" style={{ transform: `translateY(${item().top}px)`, height: `${item().height}px` }}
                  classList={{ "is-hidden": isEmpty() }}
                >
                  <Show when={item().count !== undefined} fallback={
                    <Show when={item().task} fallback={<div class="row loading" aria-hidden="true"><i /><i /></div>}>
                      {(task) => <Row task={task()} isSelected={selected() === task().sessionID} />}
                    </Show>
                  }>
                    <Header group={item().group} count={item().count ?? 0} isOpen={!collapsed().has(item().group)} toggle={toggle} />
                  </Show>
                </div>
              );
            }}
          </For>
        </div>
      </div>
    </div>
  );
}

function Header(props: { group: Group; count: number; isOpen: boolean; toggle: (group: Group) => void }): JSX.Element {
  return (
    <h2 class="group" data-group={props.group}>
      <button type="button" aria-expanded={props.isOpen} onClick={() => props.toggle(props.group)}>
        <svg viewBox="0 0 16 16" aria-hidden="true"><path d={props.isOpen ? "M4 6l4 4 4-4" : "M6 4l4 4-4 4"} /></svg>
        {GROUPS.find(({ id }) => id === props.group)?.title} <span class="count">{count(props.count)}</span>
      </button>
    </h2>
  );
}

/** What there is to say about a task in a line: what it does, what it found, or why it failed. */
function summary(task: Task): string {
  if (!isLive(task)) return gistOf(task.error ?? task.result ?? "");
  const { phase, detail, lastTools, lastMessage } = task.progress;
  if (phase === "queued") return visible(detail ?? "waits for a slot");
  const doing = phase === "tool" ? lastTools.at(-1) ?? "a tool" : phase;
  const rest = detail ?? lastMessage;
  return gistOf(rest ? `${doing} · ${rest}` : doing);
}

function Row(props: { task: Task; isSelected: boolean }): JSX.Element {
  const task = () => props.task;
  const hasAsks = () => groupOf(task()) === "input";
  return (
    <div class="row" classList={{ selected: props.isSelected, asks: hasAsks() }} data-id={task().sessionID}>
      <a class="main" href={toTask(task().sessionID)} onFocus={() => setSelected(task().sessionID)}>
        <StateIcon task={task()} />
        <span class="what">
          <span class="title">{visible(task().description)}</span>
          <span class="sub">{hasAsks() ? "" : summary(task())}</span>
        </span>
        <span class="agent">{visible(task().agent)}<Show when={task().isForked}> <i class="tag">fork</i></Show>
          <Show when={task().resumeCount > 0}> <i class="tag">#{task().resumeCount + 1}</i></Show></span>
        <span class="tools number" title={plural(task().progress.toolCalls, "tool call")}>
          {task().progress.toolCalls ? `${short(task().progress.toolCalls)} ${task().progress.toolCalls === 1 ? "call" : "calls"}` : ""}
        </span>
        <span class="tokens number">{task().progress.tokens ? `${short(task().progress.tokens!)} tok` : ""}</span>
        <span class="cost number">{task().progress.cost ? money(task().progress.cost!) : ""}</span>
        <span class="elapsed"><Elapsed task={task()} /></span>
        <time class="when" datetime={task().startedAt}>{ago(endOf(task()) ?? startOf(task()), now())}</time>
      </a>
      <Show when={hasAsks()}>
        <div class="asking">
          <Show when={asksOf(task().sessionID).length > 0} fallback={<code class="what">{visible(task().progress.detail ?? "")}</code>}>
            <FirstAsk task={task()} />
          </Show>
        </div>
      </Show>
    </div>
  );
}

/** In the list there is room for one request; the task's own page has all of them. */
function FirstAsk(props: { task: Task }): JSX.Element {
  const all = () => asksOf(props.task.sessionID);
  return (
    <Show when={all().length === 1} fallback={
      <a href={toTask(props.task.sessionID)}>{plural(all().length, "request")}: open the task to answer</a>
    }>
      <Asks task={props.task} />
    </Show>
  );
}

function Filters(props: {
  filter: Filter; set: (name: keyof Filter, value: string) => void; searchRef: (input: HTMLInputElement) => void;
}): JSX.Element {
  const [stats] = createResource(() => get<Stats>("/v1/stats"));
  const names = createMemo(() => {
    version();
    const agents = new Set(Object.keys(stats.latest?.byAgent ?? {}));
    const hosts = new Set<string>();
    for (const tasks of [store.live, store.ended]) {
      for (const task of tasks.values()) {
        agents.add(task.agent);
        hosts.add(task.host);
      }
    }
    return { agents: [...agents].sort(), hosts: [...hosts].sort() };
  }, undefined, {
    equals: (one, other) => `${one.agents} ${one.hosts}` === `${other.agents} ${other.hosts}`,
  });
  let typing: number | undefined;
  // A search that comes after the view was left would lead back to it.
  onCleanup(() => window.clearTimeout(typing));
  const Choice = (choice: { name: "status" | "agent" | "host"; label: string; values: string[] }) => (
    <select aria-label={choice.label} onChange={(event) => props.set(choice.name, event.currentTarget.value)}
      classList={{ set: props.filter[choice.name] !== "" }}>
      <option value="" selected={props.filter[choice.name] === ""}>{choice.label}</option>
      <For each={[...new Set([...choice.values, ...(props.filter[choice.name] ? [props.filter[choice.name]] : [])])]}>
        {(value) => <option value={value} selected={props.filter[choice.name] === value}>{visible(value)}</option>}
      </For>
    </select>
  );
  const Chip = (chip: { name: "batch" | "parent"; label: string }) => (
    <Show when={props.filter[chip.name]}>
      <span class="chip">
        {chip.label} <Show when={chip.name === "batch"} fallback={<b>{visible(props.filter[chip.name])}</b>}>
          <a href={toBatch(props.filter.batch)}>{visible(props.filter.batch)}</a>
        </Show>
        <button type="button" class="quiet" aria-label={`Clear the filter by ${chip.label}`} onClick={() => props.set(chip.name, "")}>×</button>
      </span>
    </Show>
  );
  return (
    <div class="filters" role="search">
      <input
        type="search" placeholder="Search descriptions  ( / )" aria-label="Search descriptions" value={props.filter.search}
        ref={props.searchRef}
        onInput={(event) => {
          const { value } = event.currentTarget;
          window.clearTimeout(typing);
          typing = window.setTimeout(() => props.set("search", value), 150);
        }}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <Choice name="status" label="Any status" values={STATUSES} />
      <Choice name="agent" label="Any agent" values={names().agents} />
      <Show when={names().hosts.length > 1 || props.filter.host}>
        <Choice name="host" label="Any host" values={names().hosts} />
      </Show>
      <Chip name="batch" label="batch" />
      <Chip name="parent" label="parent" />
    </div>
  );
}
