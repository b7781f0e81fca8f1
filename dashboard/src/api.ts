// Calls of the daemon's API. What changes something carries the page's own token, which it got for a one-time code
// (`asyncagents dash`); it is kept for this tab only.

import { createSignal } from "solid-js";

import type { components } from "./schema";
import type { Task } from "./tasks";

type Schemas = components["schemas"];
export type Detail = Schemas["DetailView"];
export type GroupDetail = Schemas["GroupView"];
export type Groups = Schemas["GroupsView"];
export type History = Schemas["HistoryView"];
export type Health = Schemas["HealthView"];
export type PageOfTasks = Schemas["PageView"];

/** A permission request that waits for an answer. */
export interface Ask {
  id: string;
  sessionID: string;
  shortID: string;
  description: string;
  what: string;
  since: string;
  question?: string;
}

export class ApiError extends Error {
  constructor(readonly status: number, text: string) {
    super(text);
  }
}

const KEY = "asyncagents-token";
const [token, setToken] = createSignal(sessionStorage.getItem(KEY));

/** Whether the page may change something. */
export const mayAct = (): boolean => token() !== null;

export function forget(): void {
  sessionStorage.removeItem(KEY);
  setToken(null);
}

/** Exchanges a code; whoever found it in the address has taken it out of there. */
export async function signIn(code: string): Promise<void> {
  const answer = await post<{ token: string }>("/v1/dash/token", { code });
  sessionStorage.setItem(KEY, answer.token);
  setToken(answer.token);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return read<T>(await fetch(path, signal ? { signal } : {}));
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  const bearer = token();
  if (bearer !== null) headers["Authorization"] = `Bearer ${bearer}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  // The daemon was restarted, or the token has expired.
  if (response.status === 401) forget();
  return read<T>(response);
}

async function read<T>(response: Response): Promise<T> {
  if (response.ok) return (await response.json()) as T;
  let text = `the daemon answered with status ${response.status}`;
  try {
    text = ((await response.json()) as { error: string }).error;
  } catch {
    // Not one of its own errors.
  }
  throw new ApiError(response.status, text);
}

const caller = { sessionID: "cli" };
/** So that a repeated click or request does nothing twice. */
const key = () => crypto.randomUUID();
const of = (id: string) => `/v1/tasks/${encodeURIComponent(id)}`;

export const asks = () => get<{ permissions: Ask[] }>("/v1/permissions");
export const answer = (id: string, allow: boolean) =>
  post(`/v1/permissions/${encodeURIComponent(id)}`, { allow, door: "dashboard", by: "cli" });
export const cancel = (ids: string[]) => post("/v1/cancel", { caller, ids });
export const send = (id: string, message: string) => post(`${of(id)}/send`, { message, key: key() });
export const resume = (id: string, prompt: string) => post(`${of(id)}/resume`, { prompt, key: key() });
export const retry = (id: string) => post<Task>(`${of(id)}/retry`, { caller, key: key() });

export interface Launch {
  description: string;
  prompt: string;
  agent: string;
  directory: string;
  model: string;
  batch: string;
  host: string;
}

export function launch({ directory, ...rest }: Launch): Promise<Task> {
  const given = Object.entries(rest).filter(([, value]) => value.trim() !== "");
  return post<Task>("/v1/tasks", {
    caller: { ...caller, directory }, arguments: Object.fromEntries(given), key: key(),
  });
}
