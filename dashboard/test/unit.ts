// Unit tests of what needs no browser: the stores, the event parser, the timeline's geometry, Markdown, figures.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Detail } from "../src/api";
import { EndedList, PAGE } from "../src/ended";
import { eventsOf } from "../src/events";
import { ago, duration, gistOf, money, short, visible, visibleLines } from "../src/format";
import { highlight } from "../src/highlight";
import { inline, LONGEST, parse, safeHref } from "../src/markdown";
import { FrameParser } from "../src/sse";
import { groupOf, matches, NO_FILTER, queryOf, TaskStore, type Filter, type Task } from "../src/tasks";
import { bars, drawn, fit, parallelism, segments, ticks, zoom } from "../src/timeline";

const at = (seconds: number) => new Date(seconds * 1000).toISOString();

function task(id: string, fields: Partial<Task> & { phase?: string } = {}): Task {
  const { phase = "waiting", ...rest } = fields;
  return {
    sessionID: id, shortID: id, parentSessionID: "cli", parentMessageID: "", parentAgent: "", parentHost: "mailbox",
    host: "scripted", hostInstance: "", directory: "/", description: `task ${id}`, prompt: "", agent: "explore",
    status: "running", startedAt: at(0), batchId: "b", resumeCount: 0, isForked: false,
    progress: { toolCalls: 0, toolCallsByName: {}, lastTools: [], lastUpdate: at(0), phase },
    ...rest,
  } as Task;
}

const ended = (id: string, seconds: number, fields: Partial<Task> = {}) =>
  task(id, { status: "completed", completedAt: at(seconds), ...fields });
const snapshot = (tasks: Task[]) => ({ tasks, stats: {} as never, total: tasks.length });
const ids = (tasks: (Task | undefined)[]) => tasks.map((task) => task?.sessionID);

test("events come whole, however they are cut", () => {
  const text = 'event: task.updated\nid: 7\ndata: {"task":"ä"}\n\nevent: heartbeat\nid: 7\ndata: {}\n\n';
  const whole = new FrameParser().push(text);
  assert.deepEqual(whole.map(({ event, id }) => [event, id]), [["task.updated", "7"], ["heartbeat", "7"]]);
  const parser = new FrameParser();
  assert.deepEqual([...text].flatMap((c) => parser.push(c)), whole);
});

test("a task is in the group of what it needs", () => {
  const check = (fields: Parameters<typeof task>[1], group: string) => assert.equal(groupOf(task("a", fields)), group);
  check({ phase: "blocked" }, "input");
  check({ phase: "queued" }, "queued");
  for (const phase of ["starting", "waiting", "streaming", "tool", "retrying", "stalled"]) check({ phase }, "working");
  check({ phase: "tool", status: "resumed" }, "working");
  for (const status of ["completed", "error", "cancelled"]) check({ phase: "blocked", status }, "done");
});

test("a filter admits what fits all of its fields, and is the API's query", () => {
  const filter: Filter = { ...NO_FILTER, agent: "explore", search: "LOG in" };
  assert.equal(matches(filter, task("a", { description: "the log in page" })), true);
  assert.equal(matches(filter, task("a", { description: "the log in page", agent: "build" })), false);
  assert.equal(matches(filter, task("a", { description: "the page" })), false);
  assert.equal(matches({ ...NO_FILTER, host: "embedded" }, task("a")), false);
  assert.equal(queryOf(filter).toString(), "agent=explore&search=LOG+in");
});

test("the store keeps live tasks and moves them when they end or are resumed", () => {
  const store = new TaskStore();
  store.replace(snapshot([task("new", { startedAt: at(9) }), task("old", { startedAt: at(1) }), ended("done", 5)]));
  assert.deepEqual(ids(store.groups(NO_FILTER).working), ["new", "old"]);
  assert.equal(store.put(ended("old", 10))?.status, "running");
  assert.deepEqual([[...store.live.keys()], [...store.ended.keys()]], [["new"], ["done", "old"]]);
  store.put(task("done", { status: "resumed" }));
  assert.deepEqual([[...store.live.keys()], [...store.ended.keys()]], [["new", "done"], ["old"]]);
  assert.deepEqual(store.counts(NO_FILTER), { input: 0, working: 2, queued: 0 });
  store.replace(snapshot([ended("other", 1)]));
  assert.deepEqual([store.live.size, [...store.ended.keys()]], [0, ["other"]]);
});

test("who waits longest for an answer comes first", () => {
  const store = new TaskStore();
  store.put(task("late", { phase: "blocked", startedAt: at(9) }));
  store.put(task("early", { phase: "blocked", startedAt: at(1) }));
  assert.deepEqual(ids(store.groups(NO_FILTER).input), ["early", "late"]);
});

test("the store forgets the oldest ended tasks", () => {
  const store = new TaskStore();
  for (let n = 0; n < 2_500; n++) store.put(ended(`${n}`, n));
  assert.equal(store.ended.size, 2_000);
  assert.deepEqual([store.get("499"), store.get("500")?.sessionID], [undefined, "500"]);
});

/** A list over an API with so many ended tasks, newest first, and what it was asked for. */
function listOf(total: number, filter = NO_FILTER, live = 0) {
  const asked: number[] = [];
  const all = Array.from({ length: total }, (_, n) => ended(`${n}`, total - n));
  const load = async (_: Filter, offset: number, limit: number) => {
    asked.push(offset);
    return { tasks: all.slice(offset, offset + limit), total: all.length + live };
  };
  return { list: new EndedList(filter, load, () => live, () => {}), asked, all };
}

const settled = () => new Promise((resolve) => setTimeout(resolve));

test("pages of ended tasks are loaded where one looks, and once", async () => {
  const { list, asked } = listOf(1_000, NO_FILTER, 3);
  await list.refresh();
  assert.equal(list.length, 1_000);
  list.ensure(0, 20);
  list.ensure(630, 650);
  list.ensure(635, 655);
  await settled();
  assert.deepEqual(asked, [0, 600]);
  assert.deepEqual([list.at(5)?.sessionID, list.at(300), list.at(640)?.sessionID], ["5", undefined, "640"]);
});

test("what ends is put in front, what is resumed leaves, what changes stays in its place", async () => {
  const { list } = listOf(3);
  await list.refresh();
  list.take(ended("new", 99));
  list.take(task("1", { status: "resumed" }));
  list.take(ended("0", 3, { clearedAt: at(100) }));
  const rows = [0, 1, 2].map((n) => list.at(n));
  assert.deepEqual([ids(rows), list.length, rows[1]?.clearedAt], [["new", "0", "2"], 3, at(100)]);
  list.take(ended("2", 200));
  assert.deepEqual(ids([0, 1, 2].map((n) => list.at(n))), ["2", "new", "0"]);
});

test("a task that ended while a page was on its way is shown once", async () => {
  const { list, all } = listOf(PAGE * 2);
  await list.refresh();
  const first = ended("first", 9_999);
  list.take(first);
  all.unshift(first);
  list.ensure(PAGE, PAGE + 20);
  await settled();
  const shown = Array.from({ length: list.length }, (_, n) => list.at(n)?.sessionID).filter((id) => id !== undefined);
  assert.equal(new Set(shown).size, shown.length);
});

test("a filter keeps others out of the list of ended tasks", async () => {
  const { list } = listOf(0, { ...NO_FILTER, agent: "build" });
  await list.refresh();
  list.take(ended("a", 1));
  list.take(ended("b", 1, { agent: "build" }));
  assert.deepEqual([list.length, list.at(0)?.sessionID], [1, "b"]);
});

const RANGE = { from: 100_000, to: 200_000 };

test("bars are cut to the range and sorted by their start", () => {
  const tasks = [
    ended("inside", 180, { startedAt: at(150) }), ended("before", 120, { startedAt: at(50) }), task("live", { startedAt: at(160) }),
    ended("gone", 90, { startedAt: at(10) }), task("later", { startedAt: at(250) }),
  ];
  assert.deepEqual(bars(tasks, RANGE, 300_000).map(({ task, left, width }) => [task.sessionID, left, +width.toFixed(3)]), [
    ["before", 0, 0.2], ["inside", 0.5, 0.3], ["live", 0.6, 0.4],
  ]);
});

test("parallelism counts who worked at the same time, and not who waited", () => {
  const tasks = [
    ended("a", 149, { startedAt: at(100) }), ended("b", 199, { startedAt: at(125) }), task("live", { startedAt: at(175) }),
    task("queued", { phase: "queued", startedAt: at(100) }),
  ];
  assert.deepEqual(parallelism(tasks, RANGE, 300_000, 4), [1, 2, 1, 2]);
  assert.deepEqual(parallelism([], RANGE, 300_000, 2), [0, 0]);
  const oneAfterTheOther = Array.from({ length: 50 }, (_, n) => ended(`${n}`, 101 + n, { startedAt: at(100 + n) }));
  assert.deepEqual(parallelism(oneAfterTheOther, RANGE, 300_000, 2), [1, 0]);
});

test("what happened to a task is told in order, with how long it waited and worked", () => {
  const detail: Detail = {
    ...task("t", { status: "resumed", progress: { ...task("t").progress, lastUpdate: at(160), phase: "blocked" } }),
    events: [
      { at: at(100), run: 0, kind: "queued" }, { at: at(112), run: 0, kind: "started" },
      { at: at(115), run: 0, kind: "message", text: "only src" }, { at: at(120), run: 0, kind: "stalled" },
      { at: at(130), run: 0, kind: "completed" }, { at: at(130), run: 0, kind: "told" },
      { at: at(150), run: 1, kind: "queued" }, { at: at(150.2), run: 1, kind: "started" },
    ],
    answers: [{ id: "per_1", what: "bash ls", allowed: true, door: "dashboard", by: "cli", at: at(125) }],
    resultRetrievedAt: at(140),
  };
  const asks = [{ id: "per_2", sessionID: "t", shortID: "t", description: "", what: "bash rm", since: at(155) }];
  assert.deepEqual(eventsOf(detail, asks).map(({ at, text, what }) => [at / 1000, text, what]), [
    [100, "launched", undefined], [112, "started after 12 s", undefined], [115, "message sent", "only src"],
    [120, "stalled", undefined], [125, "approved (dashboard, cli)", "bash ls"], [130, "completed after 30 s", undefined],
    [130, "parent told", undefined], [140, "result retrieved", undefined], [150, "resumed", undefined],
    [150.2, "started", undefined], [155, "asks for permission", "bash rm"], [160, "last seen: blocked", undefined],
  ]);
});

test("ticks are at round times, in the user's time zone", () => {
  const found = ticks({ from: 3_601_000, to: 3_661_000 }, 600, 0);
  assert.deepEqual(found.map(({ at }) => at), [3_610_000, 3_620_000, 3_630_000, 3_640_000, 3_650_000, 3_660_000]);
  const [first] = ticks({ from: 0, to: 86_400_000 * 4 }, 400, 3_600_000);
  assert.equal((first!.at + 3_600_000) % 86_400_000, 0);
});

test("zooming keeps the point under the pointer and stays within bounds", () => {
  assert.deepEqual(zoom(RANGE, 0.5, 150_000), { from: 125_000, to: 175_000 });
  const { from, to } = zoom(RANGE, 1e-9, 150_000);
  assert.equal(to - from, 2_000);
  assert.equal(fit([], 0), undefined);
  const all = fit([ended("a", 200, { startedAt: at(100) })], 0)!;
  assert.ok(all.from < 100_000 && all.to > 200_000);
});

test("tool calls have the host's times, else those between messages", () => {
  const message = (created: number, completed: number | undefined, ...tools: object[]) =>
    ({ info: { role: "assistant", time: { created, completed } }, parts: tools.map((state) => ({ type: "tool", tool: "bash", state })) });
  const done = { status: "completed" };
  const check = (messages: unknown[], expected: [number, number, boolean][]) =>
    assert.deepEqual(segments(messages, 9_000).map(({ from, to, failed }) => [from, to, failed]), expected);
  check([message(1_000, 2_000, { ...done, time: { start: 1_200, end: 1_700 } })], [[1_200, 1_700, false]]);
  check([message(1_000, 2_000, done), message(5_000, 6_000)], [[2_000, 5_000, false]]);
  check([message(1_000, 2_000, { status: "error" }), message(2_001, 3_000)], [[1_000, 2_000, true]]);
  check([message(1_000, undefined, { status: "running" })], [[1_000, 9_000, false]]);
  check([{ info: {}, parts: [{ type: "tool" }] }, {}], []);
});

test("tool calls that would be drawn over each other are drawn as one", () => {
  const call = (from: number, to: number, tool = "read") => ({ tool, from, to, failed: false });
  assert.deepEqual(drawn([call(500, 600), call(0, 1), call(2, 3, "grep")], 0, 1_000, 0.01), [
    { left: 0, width: 0.003, tools: ["read", "grep"], failed: false }, { left: 0.5, width: 0.09999999999999998, tools: ["read"], failed: false },
  ]);
});

test("Markdown becomes blocks", () => {
  const kinds = (text: string) => parse(text).map(({ kind }) => kind);
  assert.deepEqual(kinds("# a\n\nb\nc\n\n- d\n  - e\n- f\n\n> g\n\n```rust\nfn\n```\n\n| h | i |\n|---|---|\n| j | k |\n\n---"),
    ["heading", "paragraph", "list", "quote", "code", "table", "rule"]);
  const [list] = parse("1. a\n2. b\n   - c");
  assert.ok(list?.kind === "list" && list.ordered && list.items.length === 2 && list.items[1]![1]?.kind === "list");
  const [code] = parse("```\n# not a heading\n");
  assert.deepEqual(code, { kind: "code", language: "", text: "# not a heading\n" });
});

test("Markdown's marks become emphasis where they mean it", () => {
  assert.deepEqual(inline("a **b** `c*` snake_case_name *d*"), [
    { kind: "text", text: "a " }, { kind: "strong", children: [{ kind: "text", text: "b" }] }, { kind: "text", text: " " },
    { kind: "code", text: "c*" }, { kind: "text", text: " snake_case_name " }, { kind: "em", children: [{ kind: "text", text: "d" }] },
  ]);
  assert.deepEqual(inline("2 * 3 * 4"), [{ kind: "text", text: "2 * 3 * 4" }]);
});

test("links lead to pages and mail, and nowhere else", () => {
  assert.equal(safeHref(" https://example.com/a?b "), "https://example.com/a?b");
  assert.equal(safeHref("mailto:a@b.example"), "mailto:a@b.example");
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:x", "data:text/html,x", "//evil.example", "vbscript:x", "#code=1", "/v1/tasks", ""]) {
    assert.equal(safeHref(bad), undefined, bad);
  }
  const link = { kind: "link", href: "https://a.example/i.png", children: [{ kind: "text", text: "i" }] };
  assert.deepEqual(inline("![i](https://a.example/i.png)"), [link]);
  assert.deepEqual(inline("[x](javascript:alert(1))"), [{ kind: "text", text: "[x](javascript:alert(1))" }]);
});

test("no text takes long, however it is made", () => {
  const began = performance.now();
  for (const evil of ["[", "*", "**a", "`", "_a ", ">", "- ", "  - ", "|", "![](", "[a](", "~~", "<", "\\", "# ", "a|b\n-|-\n"]) {
    parse(evil.repeat(30_000 / evil.length));
    parse(`${evil.repeat(300)}\n`.repeat(100));
  }
  highlight('"\\'.repeat(20_000), "rust");
  highlight("/*".repeat(20_000), "c");
  assert.ok(performance.now() - began < 10_000, `${performance.now() - began} ms`);
});

test("code is coloured without being changed", () => {
  const source = 'fn main() { // says "hi"\n  println!("x{}", 42); /* end */ }';
  const tokens = highlight(source, "rust");
  assert.equal(tokens.map(({ text }) => text).join(""), source);
  assert.deepEqual(tokens.filter(({ kind }) => kind !== "plain").map(({ kind, text }) => [kind, text]), [
    ["keyword", "fn"], ["comment", '// says "hi"'], ["string", '"x{}"'], ["number", "42"], ["comment", "/* end */"],
  ]);
  assert.deepEqual(highlight("+a\n-b\n c", "diff").map(({ kind }) => kind), ["added", "removed", "plain"]);
});

test("figures are as people read them", () => {
  assert.deepEqual([20, 1_500, 59_900, 61_000, 3_700_000, 200_000_000].map(duration), ["20 ms", "1.5 s", "1 m 00 s", "1 m 01 s", "1 h 01 m", "2 d 7 h"]);
  assert.deepEqual([0, 999, 1_200, 34_000, 999_999, 5_600_000].map(short), ["0", "999", "1.2k", "34k", "1M", "5.6M"]);
  assert.deepEqual([0, 0.004, 0.5, 12.345, 1_234.5].map(money), ["$0", "< 1¢", "$0.50", "$12.35", "$1,235"]);
  assert.deepEqual([0, 30, 90, 7_200].map((seconds) => ago(0, seconds * 1_000)), ["just now", "30 s ago", "1 min ago", "2 h ago"]);
});

test("headings and tables are read with and without what may end their lines", () => {
  const text = (text: string) => [{ kind: "text", text }];
  for (const [line, title] of [["# a", "a"], ["# a ##  ", "a"], ["# a#", "a#"], ["# ##", "##"], ["# a # b", "a # b"]] as const) {
    assert.deepEqual(parse(line), [{ kind: "heading", level: 1, children: text(title) }], line);
  }
  for (const divider of ["|-|-|", " :-: | --- ", "---"]) assert.equal(parse(`|a|b|\n${divider}\n|c|d|`)[0]!.kind, "table", divider);
  for (const other of ["|", "| |", "|-|x|", "    |-|-|", ""]) assert.notEqual(parse(`|a|b|\n${other}`)[0]!.kind, "table", other);
  assert.deepEqual(parse("# a\u2028b").map(({ kind }) => kind), ["heading", "paragraph"]);
});

test("no line takes long, up to the longest text that is read", () => {
  const long = (text: string) => text.repeat(Math.ceil(LONGEST / text.length)).slice(0, LONGEST - 10);
  const lines = {
    "heading of spaces": `# ${long(" ")}x`, "heading of marks": `# ${long(" #")}x`, "heading that ends in a separator": `# ${long(" ")}\u2028`,
    "separators": long("# a \u2028"), "item of spaces": `- ${long(" ")}\u2028x`, "spaces before": `${long(" ")}x`, "items": long("- "),
    "divider of spaces": `|\n|-${long(" ")}x`, "divider of cells": `|\n${long("|-")}x`, "rule of spaces": `-${long(" ")}x`,
    "brackets": long("["), "brackets before a link": `${long("[")}](x)`, "brackets before addresses": long(`${"[".repeat(2_000)}](${"x".repeat(1_900)})`),
    "links without an end": long("[a]("), "emphasis before its end": `${long("*a ")}*`, "ticks": long("`` ` "),
  };
  for (const [name, line] of Object.entries(lines)) {
    const start = performance.now();
    assert.ok(parse(line).length > 0, name);
    const took = performance.now() - start;
    assert.ok(took < 2_000, `${name} took ${took} ms`);
  }
});

test("the beginning of a result is one line without Markdown's marks", () => {
  assert.equal(gistOf("# Found\n\n- **a** in `b.rs`\n- c\u001b"), "Found · a in b.rs · c\\u{1b}");
});

test("what cannot be seen is made visible", () => {
  assert.equal(visible("a\u001b[2J\u202eb\nc\u0000"), "a\\u{1b}[2J\\u{202e}b⏎ c\\u{0}");
  const hidden = [0xad, 0x61c, 0x180e, 0x200b, 0x2028, 0x2066, 0x206a, 0x206f, 0xfeff, 0xfff9, 0xfffb, 0xe0000, 0xe007f];
  const shown = hidden.map((code) => `\\u{${code.toString(16)}}`);
  assert.deepEqual(hidden.map((code) => visible(String.fromCodePoint(code))), shown);
  assert.deepEqual(hidden.map((code) => visibleLines(String.fromCodePoint(code))), shown);
  assert.equal(visible("ä 😀 \u{e0080}"), "ä 😀 \u{e0080}");
  assert.equal(visibleLines("a\n\tb\u001b"), "a\n\tb\\u{1b}");
});
