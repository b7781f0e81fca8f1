// The frame around the views: where one is, how fresh it is, what may be done.

import { createEffect, createMemo, createSignal, For, Match, onCleanup, Show, Switch, type JSX } from "solid-js";

import { setTalk, Talks } from "./actions";
import { Agents } from "./Agents";
import { mayAct } from "./api";
import { BatchList, BatchView } from "./Batch";
import { ago, plural } from "./format";
import { onKeys, SHORTCUTS } from "./keys";
import { connection, health, lostAt, now, store, version } from "./live";
import { go, route } from "./router";
import { StatsView } from "./Stats";
import { TaskView } from "./Task";
import { NO_FILTER } from "./tasks";
import { Timeline } from "./Timeline";
import { Dialog, Messages } from "./ui";

const VIEWS = [
  ["agents", "Agents"], ["timeline", "Timeline"], ["batches", "Batches"], ["stats", "Stats"],
] as const;

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const THEME = "asyncagents-theme";

export function App(): JSX.Element {
  const [help, setHelp] = createSignal(false);
  const stored = localStorage.getItem(THEME) as Theme | null;
  const [theme, setTheme] = createSignal<Theme>(stored && THEMES.includes(stored) ? stored : "system");
  createEffect(() => {
    if (theme() === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme();
    localStorage.setItem(THEME, theme());
  });
  const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]!);

  const counts = createMemo(() => {
    version();
    return store.counts(NO_FILTER);
  });
  createEffect(() => {
    const { input, working } = counts();
    const count = input > 0 ? `(${input}) ` : "";
    document.title = `${count}asyncagents${input > 0 ? ": needs input" : working > 0 ? `: ${working} working` : ""}`;
  });

  onCleanup(onKeys({
    "?": () => setHelp(true),
    n: () => mayAct() && setTalk({ kind: "launch" }),
    ...Object.fromEntries(VIEWS.map(([view], n) => [`${n + 1}`, () => go(`#/${view}`)])),
  }));

  const section = createMemo(() => {
    const { view } = route();
    return view === "task" ? "agents" : view === "batch" ? "batches" : view;
  });
  /** Of a view with an id, the id as well: another task is another view. */
  const id = createMemo(() => {
    const current = route();
    return "id" in current ? current.id : "";
  });

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the contents</a>
      <header class="top">
        <a class="brand" href="#/agents" aria-label="asyncagents, all agents">
          <svg viewBox="0 0 16 16" aria-hidden="true">
            <rect x="1" y="2" width="9" height="3" rx="1.5" /><rect x="4" y="6.5" width="11" height="3" rx="1.5" opacity=".7" />
            <rect x="2" y="11" width="7" height="3" rx="1.5" opacity=".45" />
          </svg>
          <span>asyncagents</span>
        </a>
        <nav aria-label="Views">
          <For each={VIEWS}>{([view, title]) => (
            <a href={`#/${view}`} aria-current={section() === view ? "page" : undefined}>
              {title}
              <Show when={view === "agents" && counts().input > 0}>
                <span class="badge" aria-label={plural(counts().input, "task needs", "tasks need") + " input"}>{counts().input}</span>
              </Show>
            </a>
          )}</For>
        </nav>
        <div class="tools">
          <Freshness />
          <Show when={mayAct()}>
            <button type="button" class="primary" onClick={() => setTalk({ kind: "launch" })}>Launch…</button>
          </Show>
          <button type="button" class="quiet" aria-label={`Colours: ${theme()}`} title={`Colours: ${theme()}`} onClick={nextTheme}>
            <svg viewBox="0 0 16 16" aria-hidden="true"><path d={
              theme() === "dark" ? "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z"
                : theme() === "light" ? "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1"
                  : "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 2v12M8 5h4.5M8 8h6M8 11h4.5"
            } /></svg>
          </button>
          <button type="button" class="quiet help" aria-label="Keyboard shortcuts" title="Keyboard shortcuts ( ? )" onClick={() => setHelp(true)}>?</button>
        </div>
      </header>
      <Notes />
      <main id="main" tabindex="-1">
        <Switch>
          <Match when={route().view === "agents"}><Agents /></Match>
          <Match when={route().view === "timeline"}><Timeline /></Match>
          <Match when={route().view === "batches"}><BatchList /></Match>
          <Match when={route().view === "stats"}><StatsView /></Match>
          <Match when={route().view === "task" && id()} keyed>{(id) => <TaskView id={id} />}</Match>
          <Match when={route().view === "batch" && id()} keyed>{(id) => <BatchView id={id} />}</Match>
        </Switch>
      </main>
      <Talks />
      <Messages />
      <Show when={help()}>
        <Dialog title="Keyboard shortcuts" onClose={() => setHelp(false)}>
          <dl class="shortcuts"><For each={SHORTCUTS}>{([keys, what]) => <><dt><kbd>{keys}</kbd></dt><dd>{what}</dd></>}</For></dl>
        </Dialog>
      </Show>
    </>
  );
}

function Freshness(): JSX.Element {
  return (
    <span class="fresh" data-connection={connection()} role="status" data-testid="connection">
      <Show when={connection() === "lost"} fallback={connection() === "live" ? "live" : "connecting…"}>
        reconnecting · as of {ago(lostAt(), now())}
      </Show>
    </span>
  );
}

/** What the user has to know: that the page only shows, and what the daemon warns of. */
function Notes(): JSX.Element {
  const warnings = () => health()?.urgent ?? [];
  return (
    <>
      <Show when={!mayAct()}>
        <p class="note" role="note">Read-only. To approve, cancel or launch from here, run <code>asyncagents dash</code> in a shell.</p>
      </Show>
      <For each={warnings()}>{(warning) => <p class="note warning" role="alert">{warning}</p>}</For>
    </>
  );
}
