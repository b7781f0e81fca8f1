// Figures over time, by agent and by model; the queue and its limits. The charts are small SVGs of our own.

import { createResource, createSignal, For, onCleanup, Show, type JSX } from "solid-js";

import { get, type History } from "./api";
import { clockTime, count, duration, money, short, visible } from "./format";
import { onKeys } from "./keys";
import { onChanges } from "./live";
import { go, toAgents } from "./router";
import type { Stats } from "./tasks";
import { Figure } from "./ui";

const SPANS: [string, number][] = [["1 h", 1], ["6 h", 6], ["24 h", 24], ["7 d", 168], ["30 d", 720]];
const REFRESH = 3000;

type Bucket = History["buckets"][number];
type Share = History["byAgent"][string];

export function StatsView(): JSX.Element {
  const [hours, setHours] = createSignal(1);
  const [history, { refetch }] = createResource(hours, (hours) => get<History>(`/v1/stats/history?hours=${hours}`));
  const [totals, { refetch: refetchTotals }] = createResource(() => get<Stats>("/v1/stats"));
  let timer: number | undefined;
  onCleanup(onChanges(() => {
    timer ??= window.setTimeout(() => {
      timer = undefined;
      void refetch();
      void refetchTotals();
    }, REFRESH);
  }));
  onCleanup(() => window.clearTimeout(timer));
  onCleanup(onKeys({ Escape: () => go("#/agents") }));
  const sum = (pick: (bucket: Bucket) => number) => history.latest?.buckets.reduce((all, bucket) => all + pick(bucket), 0) ?? 0;
  const time = (milliseconds: number) => (sum((bucket) => bucket.completed + bucket.error + bucket.cancelled) ? duration(milliseconds) : "–");
  return (
    <div class="stats page">
      <header class="bar">
        <h1>Stats</h1>
        <span class="buttons" role="group" aria-label="Time">
          <For each={SPANS}>{([name, n]) => (
            <button type="button" aria-pressed={hours() === n} onClick={() => setHours(n)}>{name}</button>
          )}</For>
        </span>
      </header>
      <Show when={history.latest} fallback={<p class="dim">Loading…</p>}>
        {(history) => (
          <>
            <Show when={history().partial}><p class="dim">Only the newest 50,000 tasks of this time are counted.</p></Show>
            <dl class="figures wide">
              <Figure name="Launched" value={count(sum((bucket) => bucket.launched))} />
              <Figure name="Completed" value={count(sum((bucket) => bucket.completed))} />
              <Figure name="Failed" value={count(sum((bucket) => bucket.error))} />
              <Figure name="Cancelled" value={count(sum((bucket) => bucket.cancelled))} />
              <Figure name="Median time" value={time(history().duration.p50)} />
              <Figure name="90 % within" value={time(history().duration.p90)} />
              <Figure name="99 % within" value={time(history().duration.p99)} />
              <Figure name="Tokens" value={short(sum((bucket) => bucket.tokens))} />
              <Figure name="Cost" value={money(sum((bucket) => bucket.cost))} />
            </dl>
            <div class="charts">
              <Chart title="Launches" history={history()} series={[["working", (bucket) => bucket.launched]]} show={count} />
              <Chart title="Ends" history={history()} show={count} series={[
                ["completed", (bucket) => bucket.completed], ["failed", (bucket) => bucket.error], ["cancelled", (bucket) => bucket.cancelled],
              ]} />
              <Chart title="Tokens" history={history()} series={[["working", (bucket) => bucket.tokens]]} show={short} />
              <Chart title="Cost" history={history()} series={[["working", (bucket) => bucket.cost]]} show={money} />
            </div>
            <div class="tables">
              <Shares title="By agent" shares={history().byAgent} link={(name) => toAgents({ agent: name })} />
              <Shares title="By model" shares={history().byModel} />
              <Queue queue={history().queue} />
              <Show when={totals.latest}>{(totals) => <AllTime totals={totals()} />}</Show>
            </div>
          </>
        )}
      </Show>
    </div>
  );
}

type Series = [state: string, value: (bucket: Bucket) => number];

function Chart(props: { title: string; history: History; series: Series[]; show: (n: number) => string }): JSX.Element {
  const WIDTH = 600;
  const HEIGHT = 120;
  const total = (bucket: Bucket) => props.series.reduce((sum, [, value]) => sum + value(bucket), 0);
  const most = () => Math.max(...props.history.buckets.map(total), 0);
  const width = () => WIDTH / props.history.buckets.length;
  const from = () => Date.parse(props.history.from);
  const label = () => {
    const whole = props.history.buckets.reduce((sum, bucket) => sum + total(bucket), 0);
    return `${props.title}: ${props.show(whole)} in all, at most ${props.show(most())} in ${duration(props.history.seconds * 1000)}`;
  };
  const withDate = () => props.history.seconds * 60 > 172_800;
  return (
    <figure class="card chart-card">
      <figcaption><h2>{props.title}</h2> <span class="dim number">{most() > 0 ? `peak ${props.show(most())}` : "none in this time"}</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label()}>
        <line x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
        <For each={props.history.buckets}>{(bucket, n) => {
          let below = 0;
          return (
            <g>
              <title>{`${clockTime(from() + n() * props.history.seconds * 1000, withDate())}  ${props.show(total(bucket))}`}</title>
              <rect class="hover" x={n() * width()} y="0" width={width()} height={HEIGHT} />
              <For each={props.series}>{([state, value]) => {
                const height = most() > 0 ? (value(bucket) / most()) * (HEIGHT - 6) : 0;
                below += height;
                return <rect data-state={state} x={n() * width() + 0.75} y={HEIGHT - below} width={Math.max(width() - 1.5, 1)} height={height} />;
              }}</For>
            </g>
          );
        }}</For>
      </svg>
      <p class="dim ends"><span>{clockTime(from(), withDate()).slice(0, withDate() ? 10 : 5)}</span><span>now</span></p>
    </figure>
  );
}

function Shares(props: { title: string; shares: Record<string, Share>; link?: (name: string) => string }): JSX.Element {
  const rows = () => Object.entries(props.shares).sort((one, other) => other[1].tasks - one[1].tasks).slice(0, 20);
  return (
    <section class="card"><h2>{props.title}</h2>
      <Show when={rows().length > 0} fallback={<p class="dim">No task ended in this time.</p>}>
        <div class="scroll" tabindex="0"><table class="list">
          <thead><tr><th>Name</th><th class="r">Tasks</th><th class="r">Failed</th><th class="r roomy">Median</th><th class="r roomy">90 %</th><th class="r">Tokens</th><th class="r">Cost</th></tr></thead>
          <tbody><For each={rows()}>{([name, share]) => (
            <tr>
              <td><Show when={props.link && name} fallback={visible(name) || "chosen by the host"}><a href={props.link!(name)}>{visible(name)}</a></Show></td>
              <td class="r number">{count(share.tasks)}</td><td class="r number">{share.errors ? count(share.errors) : ""}</td>
              <td class="r number roomy">{duration(share.duration.p50)}</td><td class="r number roomy">{duration(share.duration.p90)}</td>
              <td class="r number">{share.tokens ? short(share.tokens) : ""}</td><td class="r number">{share.cost ? money(share.cost) : ""}</td>
            </tr>
          )}</For></tbody>
        </table></div>
      </Show>
    </section>
  );
}

function Queue(props: { queue: History["queue"] }): JSX.Element {
  const queue = () => props.queue;
  return (
    <section class="card"><h2>Queue and limits</h2>
      <dl class="figures">
        <Figure name="At work" value={count(queue().active)} />
        <Figure name="Waiting" value={count(queue().queued)} />
      </dl>
      <ul class="plain">
        <li>All parents together: {queue().mostActive === undefined ? "no limit" : `at most ${count(queue().mostActive!)} at work`}</li>
        <li>Each parent: at most {count(queue().mostActivePerParent)} at work, {count(queue().mostQueuedPerParent)} waiting</li>
        <For each={Object.entries(queue().mostActivePerModel ?? {})}>{([model, most]) =>
          <li><code>{visible(model)}</code>: at most {count(most)} at work</li>}</For>
      </ul>
    </section>
  );
}

function AllTime(props: { totals: Stats }): JSX.Element {
  const tools = () => Object.entries(props.totals.toolCallsByName).sort((one, other) => other[1] - one[1]).slice(0, 15);
  const time = (milliseconds: number) => (props.totals.totalTasks > props.totals.activeTasks ? duration(milliseconds) : "–");
  return (
    <section class="card"><h2>The whole history</h2>
      <dl class="figures">
        <Figure name="Tasks" value={count(props.totals.totalTasks)} />
        <Figure name="Average" value={time(props.totals.duration.avg)} />
        <Figure name="Longest" value={time(props.totals.duration.max)} />
      </dl>
      <p class="tools"><For each={tools()}>{([name, n]) => <span class="chip">{visible(name)} <b>{short(n)}</b></span>}</For></p>
    </section>
  );
}
