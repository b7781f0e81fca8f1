// Where the page is: views are fragments of the address (`#/task/ses_…`), so that the daemon serves one page.

import { createMemo, createRoot, createSignal } from "solid-js";

export type Route =
  | { view: "agents"; query: URLSearchParams }
  | { view: "timeline" }
  | { view: "batches" }
  | { view: "stats" }
  | { view: "task"; id: string }
  | { view: "batch"; id: string };

const [fragment, setFragment] = createSignal("");

/**
 * Follows the address from now on. A code in it, of the first address or pasted into an open page, is no view: it is
 * taken out of the address and the history and handed over, and the view stays.
 */
export function follow(onCode: (code: string) => void): void {
  const look = () => {
    const code = /^#code=(.*)$/.exec(location.hash)?.[1];
    if (code === undefined) {
      setFragment(location.hash);
    } else {
      history.replaceState(null, "", location.pathname + fragment());
      onCode(code);
    }
  };
  window.addEventListener("hashchange", look);
  look();
}

export function parse(fragment: string): Route {
  const [path = "", query = ""] = fragment.replace(/^#\/?/, "").split("?");
  const slash = path.indexOf("/");
  const name = slash < 0 ? path : path.slice(0, slash);
  const id = slash < 0 ? "" : decode(path.slice(slash + 1));
  if ((name === "task" || name === "batch") && id) return { view: name, id };
  if (name === "timeline" || name === "batches" || name === "stats") return { view: name };
  return { view: "agents", query: new URLSearchParams(query) };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = createRoot(() => createMemo(() => parse(fragment())));

export function go(address: string): void {
  location.hash = address;
  // At once, and not with the event: a key pressed in between would be taken by the view that is left.
  setFragment(location.hash);
}

/** Changes the address without a step in the history. */
export function replace(address: string): void {
  history.replaceState(null, "", address);
  setFragment(location.hash);
}

export const toTask = (id: string): string => `#/task/${encodeURIComponent(id)}`;
export const toBatch = (id: string): string => `#/batch/${encodeURIComponent(id)}`;
export const toAgents = (filter: Record<string, string>): string => {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value !== ""));
  return query.size ? `#/agents?${query}` : "#/agents";
};
