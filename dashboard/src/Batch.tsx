// Batches: how far they are, what they cost, which tools they used, and who is in them.

import { createEffect, createMemo, createResource, createSignal, For, on, onCleanup, Show, type JSX } from "solid-js";

import { setTalk } from "./actions";
import { get, mayAct, type GroupDetail, type Groups } from "./api";
import { count, duration, money, plural, short, visible } from "./format";
import { onKeys } from "./keys";
import { now, onChanges, store, version } from "./live";
import { go, toAgents, toBatch, toTask } from "./router";
import { Gantt } from "./Timeline";
import { isLive, type Task } from "./tasks";
import { fit, type Range } from "./timeline";
import { Elapsed, Empty, Figure, StateIcon } from "./ui";

type GroupStats = GroupDetail["stats"];

/** Refetches at most once a second while tasks change. */
function whenever(mine: (task: Task) => boolean, refetch: () => unknown): void {
  let timer: number | undefined;
  onCleanup(onChanges((changes) => {
    if (!changes.some((change) => change.kind === "snapshot" || mine(change.task))) return;
    timer ??= window.setTimeout(() => {
      timer = undefined;
      refetch();
    }, 1000);
  }));
  onCleanup(() => window.clearTimeout(timer));
}

/** Shares of a whole as one bar; the words beside it say the same. */
function Completion(props: { stats: GroupStats }): JSX.Element {
  const parts = () => [
    ["completed", props.stats.completed], ["failed", props.stats.error], ["cancelled", props.stats.cancelled],
    ["working", props.stats.running],
  ] as const;
  const words = () => parts().filter(([, n]) => n > 0).map(([name, n]) => `${count(n)} ${name}`).join(", ");
  return (
    <div class="completion" role="img" aria-label={words()} title={words()}>
      <For each={parts()}>{([state, n]) => (
        <i data-state={state} style={{ width: `${(n / Math.max(props.stats.total, 1)) * 100}%` }} />
      )}</For>
    </div>
  );
}

const PAGE = 50;

export function BatchList(): JSX.Element {
  const [offset, setOffset] = createSignal(0);
  const [page, { refetch }] = createResource(offset, (offset) => get<Groups>(`/v1/task-groups?limit=${PAGE}&offset=${offset}`));
  whenever(() => true, refetch);
  onCleanup(onKeys({ Escape: () => go("#/agents") }));
  return (
    <div class="batches page">
      <h1>Batches</h1>
      <Show when={page.latest} fallback={<p class="dim">Loading…</p>}>
        {(page) => (
          <Show when={page().groups.length > 0} fallback={
            <Empty title="No batches yet"><p>Agents that are launched together form a batch.</p></Empty>
          }>
            <div class="scroll" tabindex="0"><table class="list">
              <thead><tr><th>Batch</th><th>Completion</th><th class="r">Tasks</th><th class="r roomy">Tool calls</th><th class="r">Duration</th></tr></thead>
              <tbody>
                <For each={page().groups}>{({ groupId, stats }) => (
                  <tr>
                    <td><a href={toBatch(groupId)}>{visible(groupId)}</a></td>
                    <td><Completion stats={stats} /></td>
                    <td class="r number">{stats.completed + stats.error + stats.cancelled} / {count(stats.total)}</td>
                    <td class="r number roomy">{short(stats.totalToolCalls)}</td>
                    <td class="r number">{duration(stats.duration)}</td>
                  </tr>
                )}</For>
              </tbody>
            </table></div>
            <Show when={page().total > PAGE}>
              <p class="pager">
                <button type="button" disabled={offset() === 0} onClick={() => setOffset(Math.max(0, offset() - PAGE))}>Newer</button>
                <span class="dim">{count(offset() + 1)}–{count(Math.min(offset() + PAGE, page().total))} of {count(page().total)}</span>
                <button type="button" disabled={offset() + PAGE >= page().total} onClick={() => setOffset(offset() + PAGE)}>Older</button>
              </p>
            </Show>
          </Show>
        )}
      </Show>
    </div>
  );
}

/** Of a large batch this many members are listed; the list of agents has all of them. */
const MEMBERS = 200;

export function BatchView(props: { id: string }): JSX.Element {
  const [group, { refetch }] = createResource(() => props.id, (id) => get<GroupDetail>(`/v1/task-groups/${encodeURIComponent(id)}`));
  whenever((task) => task.batchId === props.id, refetch);
  onCleanup(onKeys({ Escape: () => go("#/batches") }));
  const tasks = createMemo(() => {
    version();
    return (group.error ? [] : group.latest?.tasks ?? []).map((task) => store.get(task.sessionID) ?? task);
  });
  const cost = () => tasks().reduce((sum, task) => sum + (task.progress.cost ?? 0), 0);
  const tokens = () => tasks().reduce((sum, task) => sum + (task.progress.tokens ?? 0), 0);
  const live = () => tasks().filter(isLive);
  const [range, setRange] = createSignal<Range>({ from: Date.now() - 60_000, to: Date.now() });
  // Follows the batch until the user zooms.
  const [follows, setFollows] = createSignal(true);
  createEffect(on([tasks, now], ([tasks, now]) => {
    const all = follows() && fit(tasks, now);
    if (all) setRange(all);
  }));
  return (
    <Show when={!group.error && group.latest} fallback={
      <Show when={group.error} fallback={<div class="empty dim">Loading…</div>}>
        <Empty title="No such batch"><p><a href="#/batches">All batches</a></p></Empty>
      </Show>
    }>
      {(group) => (
        <div class="batch page">
          <nav aria-label="Breadcrumb"><a href="#/batches">Batches</a></nav>
          <header class="bar"><h1>{visible(props.id)}</h1>
            <Show when={mayAct() && live().length > 0}>
              <button type="button" class="danger" onClick={() => setTalk({ kind: "cancel", tasks: live() })}>Cancel all…</button>
            </Show>
          </header>
          <Completion stats={group().stats} />
          <dl class="figures wide">
            <Figure name="Ended" value={`${count(group().stats.total - group().stats.running)} / ${count(group().stats.total)}`} />
            <Figure name="Completed" value={`${Math.round(group().stats.completionRate * 100)} %`} />
            <Figure name="Duration" value={duration(group().stats.duration)} />
            <Figure name="Cost" value={money(cost())} />
            <Figure name="Tokens" value={short(tokens())} />
            <Figure name="Tool calls" value={count(group().stats.totalToolCalls)} />
          </dl>
          <p class="tools"><For each={Object.entries(group().stats.toolCallsByName)}>{([name, n]) =>
            <span class="chip">{visible(name)} <b>{count(n)}</b></span>}</For></p>
          <section class="card"><h2>Timeline</h2>
            <Gantt tasks={tasks()} range={range()} setRange={(range) => { setFollows(false); setRange(range); }} />
          </section>
          <section class="card"><h2>Members</h2>
            <ul class="members"><For each={tasks().slice(0, MEMBERS)}>{(task) => (
              <li><StateIcon task={task} /> <a href={toTask(task.sessionID)}>{visible(task.description)}</a>
                <span class="dim">{visible(task.agent)}</span><Elapsed task={task} /></li>
            )}</For></ul>
            <Show when={tasks().length > MEMBERS}>
              <p><a href={toAgents({ batch: props.id })}>{plural(tasks().length - MEMBERS, "more task")}</a></p>
            </Show>
          </section>
        </div>
      )}
    </Show>
  );
}
