// One task: its conversation as it grows, what it was asked, what it found, what it cost, and its relatives.

import { createEffect, createMemo, createResource, createSignal, For, Match, on, onCleanup, Show, Switch, type JSX } from "solid-js";

import { Actions, answerSeen, Asks, asksOf, canCancel, canResume, canSend, setTalk, talk } from "./actions";
import { ApiError, get, mayAct, type Detail, type PageOfTasks } from "./api";
import { eventsOf } from "./events";
import { clockTime, count, money, plural, visible } from "./format";
import { onKeys } from "./keys";
import { now, onChanges, store, version } from "./live";
import { Code, Markdown } from "./Markdown";
import { go, toAgents, toBatch, toTask } from "./router";
import { isLive, startOf, type Task } from "./tasks";
import { Elapsed, Empty, Figure, StateIcon, StateLabel } from "./ui";

interface Part {
  type?: string;
  text?: string;
  synthetic?: boolean;
  tool?: string;
  state?: { status?: string; input?: unknown; output?: string; error?: string };
}

interface Message {
  info?: { id?: string; role?: string; time?: { created?: number }; error?: { name?: string; data?: { message?: string } } };
  parts?: Part[];
}

const MESSAGES = 100;
/** How much of a tool's result is shown; `asyncagents logs ID` has all. */
const LONGEST_RESULT = 20_000;
const REFRESH = 400;

export function TaskView(props: { id: string }): JSX.Element {
  const [detail, { refetch }] = createResource(() => props.id, (id) => get<Detail>(`/v1/tasks/${encodeURIComponent(id)}`));
  const [limit, setLimit] = createSignal(MESSAGES);
  const [messages, setMessages] = createSignal<Message[]>([]);
  const [problem, setProblem] = createSignal("");
  /** The stream is newer than what was fetched, but has the result cut short. */
  const task = createMemo<Detail | undefined>(() => {
    version();
    const fetched = detail.error ? undefined : detail.latest;
    const streamed = store.get(props.id);
    if (!fetched || fetched.sessionID !== props.id || !streamed) return fetched?.sessionID === props.id ? fetched : undefined;
    const whole = streamed.resultTruncated ? { result: fetched.result ?? streamed.result ?? "" } : {};
    return { ...fetched, ...streamed, ...whole };
  });

  const fetchMessages = async (id: string, most: number) => {
    const query = `full_session=true&include_thinking=true&include_tool_results=true&message_limit=${most}`;
    try {
      const found = await get<{ messages: Message[] }>(`/v1/tasks/${encodeURIComponent(id)}/messages?${query}`);
      if (id !== props.id) return;
      setMessages(found.messages);
      setProblem("");
    } catch (error) {
      if (id === props.id) setProblem(error instanceof ApiError ? error.message : "the daemon does not answer");
    }
  };
  createEffect(on(() => [props.id, limit()] as const, ([id, most], before) => {
    if (before && before[0] !== id) setMessages([]);
    void fetchMessages(id, most);
  }));

  // Its events say that there is more; it is fetched a moment later, once for a burst of them.
  let timer: number | undefined;
  const refreshSoon = () => {
    timer ??= window.setTimeout(() => {
      timer = undefined;
      void refetch();
      void fetchMessages(props.id, limit());
    }, REFRESH);
  };
  onCleanup(onChanges((changes) => {
    if (changes.some((change) => change.kind === "snapshot" || change.task.sessionID === props.id)) refreshSoon();
  }));
  // A message that was sent is no change of the task yet.
  createEffect(on(talk, refreshSoon, { defer: true }));
  onCleanup(() => window.clearTimeout(timer));

  onCleanup(onKeys({
    a: () => task() && mayAct() && answerSeen(task()!, true),
    d: () => task() && mayAct() && answerSeen(task()!, false),
    x: () => task() && canCancel(task()!) && setTalk({ kind: "cancel", tasks: [task()!] }),
    s: () => {
      const current = task();
      if (current && canSend(current)) setTalk({ kind: "send", task: current });
      else if (current && canResume(current)) setTalk({ kind: "resume", task: current });
    },
    Escape: () => go("#/agents"),
  }));

  return (
    <Show when={task()} fallback={
      <Show when={detail.error} fallback={<div class="empty dim">Loading…</div>}>
        <Empty title="No such task"><p>{(detail.error as Error).message}</p><p><a href="#/agents">All agents</a></p></Empty>
      </Show>
    }>
      {(task) => (
        <div class="task">
          <header class="head">
            <nav aria-label="Breadcrumb"><a href="#/agents">Agents</a> <span aria-hidden="true">/</span> {task().shortID}</nav>
            <h1>{visible(task().description)}</h1>
            <div class="line"><StateLabel task={task()} /> <Elapsed task={task()} /> <Actions task={task()} /></div>
            <Show when={asksOf(task().sessionID).length > 0}>
              <section class="asking" aria-label="Needs input"><h2>This agent asks for permission</h2><Asks task={task()} /></section>
            </Show>
            <Show when={task().error}><p class="error" role="note">{visible(task().error!)}</p></Show>
          </header>
          <div class="body">
            <div class="conversation">
              <Show when={task().result}>
                <section class="card result" aria-label="Result"><h2>Result</h2><Markdown text={task().result!} /></section>
              </Show>
              <section aria-label="Conversation">
                <h2>Conversation</h2>
                <Show when={problem()}><p class="dim">{problem()}</p></Show>
                <Show when={messages().length >= limit()}>
                  <button type="button" onClick={() => setLimit((n) => n * 4)}>Show earlier messages</button>
                </Show>
                <Conversation messages={messages()} prompt={task().prompt} />
                <Show when={isLive(task())}><p class="dim typing"><StateIcon task={task()} /> {task().progress.phase === "blocked" ? "waits for an answer" : `${task().progress.phase}…`}</p></Show>
              </section>
            </div>
            <aside aria-label="About this task">
              <Facts task={task()} />
              <Tree task={task()} />
              <Show when={task().inherited}>
                {(inherited) => (
                  <section class="card"><h2>Inherited by the fork</h2>
                    <p class="dim">{count(inherited().characters)} characters of the parent's conversation</p>
                    <details><summary>What the agent was told about it</summary><Markdown text={inherited().preamble} /></details>
                  </section>
                )}
              </Show>
              <Events task={task()} />
            </aside>
          </div>
        </div>
      )}
    </Show>
  );
}

function Conversation(props: { messages: Message[]; prompt: string }): JSX.Element {
  // By their ids, so that a message that grows keeps its place, its folds and the selection of its text.
  const byId = createMemo(() => new Map(props.messages.map((message, n) => [message.info?.id ?? `${n}`, message])));
  const ids = createMemo(() => [...byId().keys()]);
  return (
    <Show when={props.messages.length > 0} fallback={
      <div class="bubble user"><header>Prompt</header><Markdown text={props.prompt} /></div>
    }>
      <For each={ids()}>{(id) => {
        const message = createMemo<Message>((before) => byId().get(id) ?? before!);
        return <MessageView message={message()} />;
      }}</For>
    </Show>
  );
}

function MessageView(props: { message: Message }): JSX.Element {
  const role = () => (props.message.info?.role === "user" ? "user" : "assistant");
  const parts = () => (props.message.parts ?? []).filter((part) => part.type === "tool" || (part.text ?? "").trim() !== "");
  const failure = () => props.message.info?.error;
  return (
    <Show when={parts().length > 0 || failure()}>
      <article class={`bubble ${role()}`}>
        <header>
          {role() === "user" ? "Prompt" : "Agent"}
          <Show when={props.message.info?.time?.created}>{(at) => <time>{clockTime(at())}</time>}</Show>
        </header>
        <For each={parts().map((_, n) => n)}>{(n) => <PartView part={parts()[n] ?? {}} />}</For>
        <Show when={failure()}>{(failure) =>
          <p class="error">{visible(failure().data?.message ?? failure().name ?? "failed")}</p>}</Show>
      </article>
    </Show>
  );
}

function PartView(props: { part: Part }): JSX.Element {
  return (
    <Switch>
      <Match when={props.part.type === "tool"}><ToolCall part={props.part} /></Match>
      <Match when={props.part.type === "reasoning" || props.part.type === "thinking"}>
        <details class="thinking"><summary>Thinking</summary><Markdown text={props.part.text ?? ""} /></details>
      </Match>
      <Match when={props.part.synthetic || (props.part.text ?? "").length > 12_000}>
        <details><summary>{plural((props.part.text ?? "").length, "character")}</summary><Markdown text={props.part.text ?? ""} /></details>
      </Match>
      <Match when={true}><Markdown text={props.part.text ?? ""} /></Match>
    </Switch>
  );
}

/** The one argument that tells most of a call. */
function gist(input: unknown): string {
  if (typeof input !== "object" || input === null) return typeof input === "string" ? input : "";
  const fields = input as Record<string, unknown>;
  for (const name of ["command", "filePath", "file_path", "path", "pattern", "query", "url", "description", "prompt"]) {
    if (typeof fields[name] === "string") return fields[name];
  }
  const first = Object.values(fields).find((value) => typeof value === "string");
  return typeof first === "string" ? first : "";
}

function ToolCall(props: { part: Part }): JSX.Element {
  const state = () => props.part.state ?? {};
  const status = () => state().status ?? "";
  const result = () => state().error ?? state().output ?? "";
  const input = () => {
    const value = state().input;
    if (value === undefined || value === null) return "";
    return (typeof value === "string" ? value : JSON.stringify(value, null, 2)).slice(0, LONGEST_RESULT);
  };
  return (
    <details class="tool" data-status={status()}>
      <summary>
        <b>{visible(props.part.tool ?? "tool")}</b> <span class="gist">{visible(gist(state().input)).slice(0, 200)}</span>
        <span class="status">{status() === "completed" ? "" : status()}</span>
      </summary>
      <Show when={input()}><Code text={input()} language="json" /></Show>
      <Show when={result()}>
        <Code text={result().slice(0, LONGEST_RESULT)} language="text" />
        <Show when={result().length > LONGEST_RESULT}>
          <p class="dim">{plural(result().length - LONGEST_RESULT, "character")} more</p>
        </Show>
      </Show>
    </details>
  );
}

function Facts(props: { task: Detail }): JSX.Element {
  const progress = () => props.task.progress;
  const tools = () => Object.entries(progress().toolCallsByName).sort((one, other) => other[1] - one[1]);
  const parent = () => props.task.parentSessionID;
  const Link = (link: { id: string }) => <a class="path" href={toTask(link.id)}>{visible(link.id)}</a>;
  return (
    <section class="card facts"><h2>Facts</h2>
      <dl>
        <dt>Agent</dt><dd><a href={toAgents({ agent: props.task.agent })}>{visible(props.task.agent)}</a></dd>
        <Show when={props.task.model}><dt>Model</dt><dd>{visible(props.task.model!)}</dd></Show>
        <dt>Host</dt><dd>{props.task.host}</dd>
        <dt>Directory</dt><dd class="path">{visible(props.task.directory)}</dd>
        <dt>Batch</dt><dd><a href={toBatch(props.task.batchId)}>{visible(props.task.batchId)}</a></dd>
        <dt>Parent</dt><dd><a href={toAgents({ parent: parent() })}>{visible(parent())}</a></dd>
        <Show when={props.task.retryOf}>{(id) => <><dt>Retry of</dt><dd><Link id={id()} /></dd></>}</Show>
        <Show when={props.task.retriedBy}>{(id) => <><dt>Retried by</dt><dd><Link id={id()} /></dd></>}</Show>
        <dt>Id</dt><dd class="path">{props.task.sessionID}</dd>
      </dl>
      <dl class="figures">
        <Figure name="Tokens" value={progress().tokens === undefined ? "–" : count(progress().tokens!)} />
        <Figure name="Cost" value={progress().cost === undefined ? "–" : money(progress().cost!)} />
        <Figure name="Tool calls" value={count(progress().toolCalls)} />
      </dl>
      <Show when={tools().length > 0}>
        <p class="tools"><For each={tools()}>{([name, n]) => <span class="chip">{visible(name)} <b>{count(n)}</b></span>}</For></p>
      </Show>
      <details><summary>Prompt</summary><Markdown text={props.task.prompt} /></details>
    </section>
  );
}

/** The parent, if it is a task, and the children. */
function Tree(props: { task: Task }): JSX.Element {
  // Other parents are conversations elsewhere, or the shell.
  const above = () => (props.task.parentSessionID.startsWith("ses_") ? props.task.parentSessionID : undefined);
  const [parent] = createResource(above, (id) =>
    get<Task>(`/v1/tasks/${encodeURIComponent(id)}`).catch(() => undefined));
  const stamp = () => [props.task.sessionID, props.task.progress.toolCalls, props.task.status].join(" ");
  const [children] = createResource(stamp, () =>
    get<PageOfTasks>(`/v1/tasks?parent=${encodeURIComponent(props.task.sessionID)}&limit=100`).catch(() => undefined));
  const Node = (node: { task: Task; isSelf?: boolean }) => {
    const fresh = () => (version(), store.get(node.task.sessionID) ?? node.task);
    return (
      <span class="node" classList={{ self: node.isSelf ?? false }}>
        <StateIcon task={fresh()} /> <a href={toTask(node.task.sessionID)}>{visible(node.task.description)}</a>
      </span>
    );
  };
  return (
    <Show when={parent.latest || (children.latest?.tasks.length ?? 0) > 0}>
      <section class="card tree"><h2>Family</h2>
        <ul>
          <li>
            <Show when={parent.latest} fallback={<Node task={props.task} isSelf />}>
              {(above) => <><Node task={above()} /><ul><li><Node task={props.task} isSelf />
                <Children tasks={children.latest?.tasks ?? []} node={(task) => <Node task={task} />} /></li></ul></>}
            </Show>
            <Show when={!parent.latest}>
              <Children tasks={children.latest?.tasks ?? []} node={(task) => <Node task={task} />} />
            </Show>
          </li>
        </ul>
      </section>
    </Show>
  );
}

function Children(props: { tasks: Task[]; node: (task: Task) => JSX.Element }): JSX.Element {
  return <Show when={props.tasks.length > 0}><ul><For each={props.tasks}>{(task) => <li>{props.node(task)}</li>}</For></ul></Show>;
}

function Events(props: { task: Detail }): JSX.Element {
  const events = createMemo(() => eventsOf(props.task, asksOf(props.task.sessionID)));
  const withDate = () => now() - startOf(props.task) > 86_400_000;
  return (
    <section class="card events"><h2>Events</h2>
      <ol><For each={events()}>{(event) => (
        <li><time>{clockTime(event.at, withDate())}</time> <span>{visible(event.text)}
          <Show when={event.what}>{(what) => <code title={visible(what())}>{visible(what())}</code>}</Show></span></li>
      )}</For></ol>
    </section>
  );
}
