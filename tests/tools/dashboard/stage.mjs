// A daemon of its own with a browser in front of it: what the test, the pictures and the benchmark share.

import { execFile, execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { mkdtemp, readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const require = createRequire(join(process.env.PLAYWRIGHT, "stage.js"));
export const { chromium } = require("playwright-core");
export const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

const execute = promisify(execFile);

export class Daemon {
  /** `environment` on top of a clean one; the scripted host unless it says otherwise. */
  static async start(environment = {}) {
    const daemon = new Daemon();
    daemon.place = await mkdtemp(join(tmpdir(), "aat."));
    daemon.environment = {
      PATH: process.env.PATH, HOME: daemon.place, ASYNCAGENTS_HOME: join(daemon.place, "home"),
      // The same port after a restart, as with the usual one: the page knows no other.
      ASYNCAGENTS_API_PORT: `${await freePort()}`, ASYNCAGENTS_HOST: "scripted", ...environment,
    };
    await daemon.run("daemon", "start");
    await daemon.find();
    // Also when the script fails, or takes too long.
    process.on("exit", () => daemon.end());
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => process.exit(1));
    return daemon;
  }

  async find() {
    const server = JSON.parse(await readFile(join(this.place, "home/server.json"), "utf8"));
    Object.assign(this, { url: server.url, pid: server.pid });
  }

  async run(...words) {
    const { stdout } = await execute(process.env.PROGRAM, words, {
      env: this.environment, cwd: this.directory ?? this.place, timeout: 60_000, maxBuffer: 1 << 28,
    });
    return stdout.trim();
  }

  async launch(description, prompt, ...more) {
    return JSON.parse(await this.run("run", "--json", "--description", description, ...more, prompt));
  }

  async get(path) {
    return (await fetch(`${this.url}${path}`)).json();
  }

  /** The address with a new one-time code. */
  async address() {
    this.codes = (this.codes ?? 0) + 1;
    return this.run("dash", "--print");
  }

  kill() {
    process.kill(this.pid, "SIGKILL");
  }

  end() {
    try {
      execFileSync(process.env.PROGRAM, ["daemon", "stop"], { env: this.environment, stdio: "ignore", timeout: 20_000 });
    } catch {
      // It was not running.
    }
    rmSync(this.place, { recursive: true, force: true });
  }
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

export function browse() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync",
    ],
  });
}

/** Waits for a condition, never for time. */
export async function until(what, is, patience = 30_000) {
  const end = Date.now() + patience;
  for (;;) {
    const value = await is();
    if (value) return value;
    if (Date.now() > end) throw new Error(`never came true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Starts a daemon and launches so many tasks over HTTP: a shell command takes longer than its task. */
export async function crowd(tasks) {
  const daemon = await Daemon.start();
  const kinds = ["@say done", '@tool read {"path":"a"}\n@spend 5000 0.03\n@say found it', "@fail overloaded", "@think 50\n@say slow"];
  const launch = await launcher(daemon, kinds);
  for (let n = 0; n < tasks; n += 20) await Promise.all(Array.from({ length: 20 }, (_, k) => launch(n + k)));
  await until("they have ended", async () => (await daemon.get("/v1/stats")).activeTasks === 0, 300_000);
  return daemon;
}

/** A function that launches the n-th task, with one of these prompts. */
export async function launcher(daemon, prompts) {
  const token = (await readFile(join(daemon.place, "home/token"), "utf8")).trim();
  const agents = ["explore", "build", "general"];
  return async (n) => {
    const response = await fetch(`${daemon.url}/v1/tasks`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
      body: JSON.stringify({
        caller: { sessionID: `caller-${n % 50}`, directory: daemon.place },
        arguments: { description: `Task ${n} of many`, prompt: prompts[n % prompts.length], agent: agents[n % agents.length] },
      }),
    });
    if (!response.ok) throw new Error(`a launch was refused: ${await response.text()}`);
  };
}
