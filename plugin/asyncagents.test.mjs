// The plugin against a daemon of the tests: a program that says where it listens, and a socket.
// PLUGIN is the compiled plugin; `tests/tools/plugin.sh` makes it.

import assert from "node:assert/strict"
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import http from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterEach, beforeEach, test } from "node:test"

const { default: plugin, ...others } = await import(process.env.PLUGIN)

const TOOL = {
  name: "asyncagents_task",
  description: "Launches an agent",
  inputSchema: {
    type: "object",
    properties: { prompt: { type: "string" }, fork: { type: "boolean" } },
    required: ["prompt"],
    additionalProperties: false,
  },
}

let place, daemon

/** A daemon whose answers are a table from `METHOD /path` to a handler. */
class Daemon {
  constructor(socket) {
    this.socket = socket
    this.requests = []
    this.bridges = []
    this.routes = {
      "GET /v1/health": (answer) => answer(200, { status: "ok" }),
      "GET /v1/tools": (answer) => answer(200, { tools: [TOOL] }),
      "POST /v1/bridge": (_, response) => {
        response.writeHead(200)
        this.bridges.push(response)
        this.say({ bridge: 7 })
        this.say({ name: "plugin-test" })
      },
    }
  }
  say(line) {
    this.bridges.at(-1).write(JSON.stringify(line) + "\n")
  }
  async start() {
    this.server = http.createServer(async (request, response) => {
      const pieces = []
      for await (const piece of request) pieces.push(piece)
      const text = Buffer.concat(pieces).toString()
      this.requests.push({ method: request.method, url: request.url, text })
      const route = this.routes[`${request.method} ${request.url.split("?")[0]}`]
      const answer = (status, value) => {
        response.writeHead(status)
        response.end(typeof value === "string" ? value : JSON.stringify(value))
      }
      if (route) route(answer, response, text && JSON.parse(text))
      else answer(204, "")
    })
    await new Promise((ready) => this.server.listen(this.socket, ready))
  }
  async stop() {
    this.server.closeAllConnections()
    await new Promise((closed) => this.server.close(closed))
  }
  async until(what, holds) {
    for (let n = 0; n < 1000; n++) {
      const found = this.requests.find(holds)
      if (found) return found
      await new Promise((later) => setTimeout(later, 5))
    }
    assert.fail(`waited in vain until ${what}: ${JSON.stringify(this.requests)}`)
  }
}

/** OpenCode's client, as far as the plugin uses it. */
function client(fetch) {
  const shown = []
  const config = {
    baseUrl: "http://inside",
    headers: { authorization: "Basic secret", "x-opencode-directory": "/elsewhere" },
    fetch,
  }
  return {
    shown,
    _client: { getConfig: () => config },
    app: { log: async () => {} },
    tui: { showToast: async ({ body }) => shown.push(body.message) },
  }
}

const context = (more) => ({
  sessionID: "ses_1",
  messageID: "msg_1",
  callID: "call_1",
  agent: "build",
  directory: "/project",
  abort: new AbortController().signal,
  ...more,
})

/** The plugin, loaded as OpenCode does it. */
const load = (way, options) => plugin({ client: way }, { program: join(place, "program"), ...options })

beforeEach(async () => {
  place = mkdtempSync(join(tmpdir(), "aap-"))
  daemon = new Daemon(join(place, "socket"))
  const script = `#!/bin/sh\necho '{"socket":"${daemon.socket}"}'\n`
  writeFileSync(join(place, "program"), script, { mode: 0o755 })
  await daemon.start()
  delete globalThis[Symbol.for("asyncagents.bridge")]
})

afterEach(async () => {
  // The bridge of a test would go on knocking.
  writeFileSync(join(place, "program"), "#!/bin/sh\nsleep 1000000\n", { mode: 0o755 })
  await daemon.stop()
  rmSync(place, { recursive: true, force: true })
})

test("only one thing is exported, because OpenCode calls whatever a plugin exports", () => {
  assert.deepEqual(Object.keys(others), [])
})

test("the tools are the daemon's, word for word, with its optional arguments", async () => {
  const hooks = await load(client())
  const tool = hooks.tool.asyncagents_task
  assert.equal(tool.description, TOOL.description)
  assert.deepEqual(tool.args, TOOL.inputSchema.properties)
  const output = {}
  await hooks["tool.definition"]({ toolID: "asyncagents_task" }, output)
  assert.deepEqual(output.jsonSchema, TOOL.inputSchema)
  const other = {}
  await hooks["tool.definition"]({ toolID: "bash" }, other)
  assert.deepEqual(other, {})
})

test("a call is forwarded with who calls and from where, and answered in the daemon's words", async () => {
  let got
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer, _, body) => {
    got = body
    answer(200, { text: "launched", isError: false })
  }
  const hooks = await load(client())
  const text = await hooks.tool.asyncagents_task.execute({ prompt: "look" }, context())
  assert.equal(text, "launched")
  assert.deepEqual(got, {
    caller: {
      sessionID: "ses_1",
      messageID: "msg_1",
      agent: "build",
      directory: "/project",
      host: "opencode",
      instance: "plugin-test",
      development: false,
    },
    arguments: { prompt: "look" },
    key: "ses_1-msg_1-call_1",
  })
})

test("a call carries what this process's environment says of models and keys, as the program reads it", async () => {
  const handOver = { model: "openai/x", providers: { openai: { key: "sk-of-this-process" } } }
  const found = JSON.stringify({ socket: daemon.socket, handOver })
  const only = `[ "$*" = "daemon start --json --hand-over" ] && echo '${found}'`
  writeFileSync(join(place, "program"), `#!/bin/sh\n${only}\n`, { mode: 0o755 })
  const callers = []
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer, _, body) => {
    callers.push(body.caller.handOver)
    answer(200, { text: "launched", isError: false })
  }
  const hooks = await load(client())
  await hooks.tool.asyncagents_task.execute({ prompt: "look" }, context())
  assert.deepEqual(callers, [handOver])
})

test("the same call id in another message is another launch, because some providers number calls from the start in every message", async () => {
  const keys = []
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer, _, body) => {
    keys.push(body.key)
    answer(200, { text: "launched", isError: false })
  }
  const hooks = await load(client())
  for (const messageID of ["msg_1", "msg_2", "msg_1"])
    await hooks.tool.asyncagents_task.execute({ prompt: "look" }, context({ messageID }))
  assert.deepEqual(keys, ["ses_1-msg_1-call_1", "ses_1-msg_2-call_1", "ses_1-msg_1-call_1"])
})

test("an error of the daemon is an error of the tool, with its text", async () => {
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer) =>
    answer(200, { text: "Agent \"x\" not found.", isError: true })
  const hooks = await load(client())
  const call = hooks.tool.asyncagents_task.execute({}, context())
  await assert.rejects(call, { message: "Agent \"x\" not found." })
})

test("an aborted call ends at once", async () => {
  daemon.routes["POST /v1/tools/asyncagents_task"] = () => {}
  const hooks = await load(client())
  const stop = new AbortController()
  const call = hooks.tool.asyncagents_task.execute({}, context({ abort: stop.signal }))
  await daemon.until("it is asked", ({ url }) => url === "/v1/tools/asyncagents_task")
  stop.abort()
  await assert.rejects(call, /cancelled/)
})

test("a daemon that never answers holds nothing up for longer than its time", async () => {
  daemon.routes["GET /v1/tools"] = () => {}
  const way = client()
  const hooks = await load(way, { patience: 100 })
  assert.deepEqual(hooks.tool, {})
  assert.match(way.shown[0], /it does not answer in time/)
})

test("a tool call that is never answered ends with a clear error", async () => {
  daemon.routes["POST /v1/tools/asyncagents_task"] = () => {}
  const hooks = await load(client(), { patience: 100 })
  const call = hooks.tool.asyncagents_task.execute({}, context())
  await assert.rejects(call, /the daemon cannot be reached \(it does not answer in time\)/)
})

test("a daemon that talks nonsense is an error, not the end of OpenCode", async () => {
  daemon.routes["POST /v1/bridge"] = (_, response) => {
    response.writeHead(200)
    response.write("nonsense\n")
  }
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer) => answer(200, "<html>")
  const hooks = await load(client(), { patience: 100 })
  const call = hooks.tool.asyncagents_task.execute({}, context())
  await assert.rejects(call, /its answer is not JSON/)
})

test("without the program it says so", async () => {
  const way = client()
  const hooks = await load(way, { program: join(place, "nowhere") })
  assert.deepEqual(hooks.tool, {})
  assert.match(way.shown[0], /no program/)
})

test("a daemon that was killed is started again by the next call", async () => {
  const hooks = await load(client())
  await daemon.stop()
  daemon = new Daemon(join(place, "socket2"))
  const script = `#!/bin/sh\necho '{"socket":"${daemon.socket}"}'\n`
  writeFileSync(join(place, "program"), script, { mode: 0o755 })
  daemon.routes["POST /v1/tools/asyncagents_task"] = (answer) =>
    answer(200, { text: "again", isError: false })
  await daemon.start()
  assert.equal(await hooks.tool.asyncagents_task.execute({}, context()), "again")
})

test("a daemon that was stopped on purpose is not started again by itself", async () => {
  const hooks = await load(client())
  await daemon.until("there is a bridge", ({ url }) => url === "/v1/bridge")
  writeFileSync(join(place, "program"), `#!/bin/sh\ntouch "${join(place, "started")}"\nexit 1\n`)
  daemon.say("bye")
  daemon.bridges.at(-1).end()
  await daemon.stop()
  // Long enough for several tries.
  await new Promise((later) => setTimeout(later, 1_500))
  assert.equal(existsSync(join(place, "started")), false)
  await assert.rejects(hooks.tool.asyncagents_task.execute({}, context()), /cannot be reached/)
  assert.equal(existsSync(join(place, "started")), true)
  await daemon.start()
})

test("a call of the daemon is made in this process, with its login and without its directory", async () => {
  const made = []
  const fetch = async (request) => {
    made.push([request.method, request.url, Object.fromEntries(request.headers), await request.text()])
    return new Response("[1]", { status: 201, headers: { "content-type": "application/json" } })
  }
  await load(client(fetch))
  await daemon.until("there is a bridge", ({ url }) => url === "/v1/bridge")
  daemon.say({ call: { id: 3, method: "POST", path: "/session?directory=%2Fp", body: "{}", stream: false } })
  const answer = await daemon.until("it is answered", ({ url }) => url.startsWith("/v1/bridge/7/3/"))
  assert.equal(answer.url, "/v1/bridge/7/3/answer?status=201&json=true")
  assert.equal(answer.text, "[1]")
  const headers = { "content-type": "application/json", authorization: "Basic secret" }
  assert.deepEqual(made, [["POST", "http://inside/session?directory=%2Fp", headers, "{}"]])
})

test("a call that fails in this process is answered, too", async () => {
  await load(client(async () => Promise.reject(new Error("closed"))))
  await daemon.until("there is a bridge", ({ url }) => url === "/v1/bridge")
  daemon.say({ call: { id: 4, method: "GET", path: "/path", stream: false } })
  const answer = await daemon.until("it is answered", ({ url }) => url.startsWith("/v1/bridge/7/4/"))
  assert.equal(answer.url, "/v1/bridge/7/4/answer?status=502&json=false")
})

test("a stream is passed on as it comes, and dropped when nobody wants it", async () => {
  let stream
  let dropped
  const gone = new Promise((resolve) => (dropped = resolve))
  const body = new ReadableStream({ start: (s) => (stream = s), cancel: () => dropped() })
  await load(client(async () => new Response(body)))
  await daemon.until("there is a bridge", ({ url }) => url === "/v1/bridge")
  daemon.say({ call: { id: 5, method: "GET", path: "/global/event", stream: true } })
  const piece = ({ url, text }) => url === "/v1/bridge/7/5/piece" && text.includes("data: 1")
  await daemon.until("it is asked for", ({ url }) => url === "/v1/bridge")
  while (!stream) await new Promise((later) => setTimeout(later, 1))
  stream.enqueue(new TextEncoder().encode("data: 1\n\n"))
  await daemon.until("a piece comes", piece)
  daemon.say({ drop: 5 })
  await gone
})

process.on("unhandledRejection", (error) => {
  console.error("unhandled:", error)
  process.exit(1)
})
// Bridges of tests that are over never end by themselves.
process.on("beforeExit", () => process.exit())
