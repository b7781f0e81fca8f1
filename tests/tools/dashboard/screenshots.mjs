// Takes pictures of the dashboard. Without an argument those of the README: agents that explore this project with the
// offline model, beside scripted ones that wait for a permission or are at work.

import { mkdir } from "node:fs/promises";
import { resolve } from "node:path";

import { browse, crowd, Daemon, until } from "./stage.mjs";

const WORK = [
  ["Where is the login handled?", "explore"], ["How are retries bounded?", "explore"], ["Find unused configuration keys", "explore"],
  ["What writes to the database?", "explore"], ["List the public HTTP routes", "explore"], ["Where are tokens compared?", "explore"],
];
const SCRIPTED = [
  ["Upgrade the lock file", "build", '@tool read {"path":"Cargo.toml"}\n@slow-tool bash 900\n@tool edit {"path":"Cargo.toml"}\n@spend 18400 0.11\n@ask bash cargo update --workspace\n@say done'],
  ["Write tests for the parser", "build", '@tool read {"path":"src/parser.rs"}\n@slow-tool bash 2500\n@tool write {"path":"tests/parser.rs"}\n@spend 31200 0.24\n@slow-tool bash 600000\n@hang'],
  ["Explain the flaky test", "general", '@tool grep {"pattern":"sleep"}\n@slow-tool bash 1500\n@spend 9100 0.05\n@stream 400 1000\n@hang'],
  ["Migrate the old settings", "build", "@slow-tool bash 700\n@spend 4000 0.02\n@fail the model is overloaded"],
  ["Review the release notes", "general", '@tool read {"path":"CHANGELOG.md"}\n@slow-tool bash 1200\n@spend 12800 0.07\n@say **Ready.** The section on limits lacks the default.'],
];
const OFFLINE = { ASYNCAGENTS_MODEL: "offline/explorer" };

async function fleet() {
  const daemon = await Daemon.start(OFFLINE);
  daemon.directory = process.cwd();
  const explorers = [];
  for (const [description, agent] of WORK) {
    explorers.push(await daemon.launch(description, description, "--agent", agent, "--batch", "explore", "--host", "embedded"));
  }
  await daemon.run("wait", ...explorers.map((task) => task.sessionID)).catch(() => {});
  const scripted = [];
  for (const [description, agent, prompt] of SCRIPTED) {
    scripted.push(await daemon.launch(description, prompt, "--agent", agent, "--batch", "release"));
  }
  await until("one asks", async () => (await daemon.get("/v1/permissions")).permissions.length === 1);
  await until("two have ended", async () => (await daemon.get("/v1/stats")).activeTasks === 3);
  return { daemon, explorers, scripted };
}

const browser = await browse();

async function picture(daemon, path, view, { width, height, colorScheme }, prepare = async () => {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  await page.goto(await daemon.address());
  await page.getByRole("button", { name: "Launch…" }).waitFor();
  await page.goto(`${daemon.url}/${view}`);
  await page.locator("h1").first().waitFor({ state: "attached" });
  await until("it is loaded", async () => (await page.getByText("Loading…").count()) === 0);
  await prepare(page);
  // Two frames after the last change.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  await page.screenshot({ path });
  await context.close();
}

const [, , directory] = process.argv;
if (directory === undefined) {
  const { daemon } = await fleet();
  const wide = { width: 1200, height: 680, colorScheme: "light" };
  await mkdir("docs", { recursive: true });
  await picture(daemon, resolve("docs/dashboard-agents.png"), "#/agents", wide, (page) => page.getByRole("button", { name: "Approve" }).waitFor());
  await picture(daemon, resolve("docs/dashboard-timeline.png"), "#/timeline", { ...wide, height: 520, colorScheme: "dark" }, async (page) => {
    await page.getByRole("button", { name: "Fit" }).click();
    await page.locator(".span .call").first().waitFor();
  });
} else {
  await mkdir(directory, { recursive: true });
  const stages = [
    ["0", async () => ({ daemon: await Daemon.start() })], ["5", fleet], ["10000", async () => ({ daemon: await crowd(10_000) })],
  ].filter(([name]) => !process.env.ONLY || process.env.ONLY.split(",").includes(name));
  for (const [name, start] of stages) {
    const { daemon, explorers = [], scripted = [] } = await start();
    const shown = [explorers[0], ...scripted.slice(0, 1), ...(await daemon.get("/v1/tasks?limit=1")).tasks].filter(Boolean);
    const tasks = shown.slice(0, 2).map((task, n) => [`task${n}`, `#/task/${task.sessionID}`]);
    const batches = shown.slice(-1).map((task) => ["batch", `#/batch/${encodeURIComponent(task.batchId)}`]);
    const views = [["agents", "#/agents"], ["timeline", "#/timeline"], ["batches", "#/batches"], ["stats", "#/stats"], ...tasks, ...batches];
    for (const [width, height] of [[1440, 900], [1024, 768], [390, 844]]) {
      for (const colorScheme of ["light", "dark"]) {
        for (const [view, address] of views) {
          const path = resolve(directory, `${name}-${view}-${width}-${colorScheme}.png`);
          await picture(daemon, path, address, { width, height, colorScheme }, () => new Promise((done) => setTimeout(done, 400)));
        }
      }
    }
    daemon.end();
  }
}
await browser.close();
process.exit(0);
