// Background agents in OpenCode: registers the daemon's tools and forwards their calls, and lends
// the daemon this process's way into OpenCode, which needs no port. It has no tasks, no texts and no
// rules of its own; those are the daemon's. Built-ins only, so that nothing has to be installed, and
// one export only, since OpenCode calls whatever a plugin exports.

import { execFile } from "node:child_process"
import { request as send } from "node:http"

type Json = any

/** What `asyncagents opencode install` writes into the configuration. */
interface Options {
  /** The program; without it the one on the PATH is used. */
  program?: string
  /** How many milliseconds a daemon that does not answer may hold up what waits for it. */
  patience?: number
}

/** A tool as the daemon describes it. */
interface Tool {
  name: string
  description: string
  inputSchema: Json
  /** A call may take minutes. */
  waits?: boolean
}

const LONGEST_START = 10_000
const LONGEST_CALL = 60_000
/** A process that is still starting answers the daemon late, above all on a loaded machine. */
const LONGEST_NAMING = 30_000
/** No tool waits for longer. */
const LONGEST_WAIT = 600_000
const BETWEEN_TRIES = [200, 500, 1_000, 2_000, 5_000]

/** Spelled out, Bun would put in a word of its own. */
const MODE = "NODE_ENV"

const unreachable = (why: string) =>
  new Error(`asyncagents: the daemon cannot be reached (${why}); \`asyncagents doctor\` says more`)

/** Runs the program, which starts the daemon unless it runs, and says where it listens. */
function findDaemon(program: string, timeout: number): Promise<string> {
  return new Promise((found, failed) => {
    const options = { timeout, env: process.env }
    execFile(program, ["daemon", "start", "--json"], options, (error, stdout, stderr) => {
      if (error) {
        const missing = (error as NodeJS.ErrnoException).code === "ENOENT"
        const why = missing ? `no program \`${program}\`` : String(stderr).trim() || error.message
        return failed(unreachable(why))
      }
      try {
        found(JSON.parse(stdout).socket)
      } catch {
        failed(unreachable("its program answers with something else"))
      }
    })
  })
}

interface Call {
  socket: string
  method: string
  path: string
  body?: string | Uint8Array
  timeout: number
  abort?: AbortSignal
}

interface Answer {
  status: number
  text: string
}

/** One request over the daemon's socket. It always ends: by its answer, its time or its abort. */
function ask(call: Call): Promise<Answer> {
  return new Promise((answered, failed) => {
    const headers = { "content-type": "application/json", "content-length": length(call.body) }
    const { socket: socketPath, method, path } = call
    // Without one it would go to whoever listens on this machine.
    if (!socketPath) return failed(new Error("nobody knows where it listens"))
    const request = send({ socketPath, method, path, headers, agent: false }, (response) => {
      const pieces: Buffer[] = []
      response.on("data", (piece) => pieces.push(piece))
      response.on("error", stop)
      response.on("end", () => {
        done()
        answered({ status: response.statusCode ?? 0, text: Buffer.concat(pieces).toString() })
      })
    })
    const stop = (error: Error) => {
      done()
      request.destroy()
      failed(error)
    }
    const late = setTimeout(() => stop(new Error("it does not answer in time")), call.timeout)
    const cancelled = () => stop(new Error("cancelled"))
    const done = () => {
      clearTimeout(late)
      call.abort?.removeEventListener("abort", cancelled)
    }
    request.on("error", stop)
    if (call.abort?.aborted) return cancelled()
    call.abort?.addEventListener("abort", cancelled)
    request.end(call.body)
  })
}

function length(body?: string | Uint8Array): number {
  return body === undefined ? 0 : typeof body === "string" ? Buffer.byteLength(body) : body.length
}

/** A way into this OpenCode process, and the daemon that uses it. One for all directories. */
class Bridge {
  /** What the daemon calls this process; empty while it does not. */
  name = ""
  /** What it was called the last time. */
  private before = ""
  private socket = ""
  private streams = new Map<number, AbortController>()
  private named: (() => void)[] = []
  private client: Json
  private coming: Promise<void> | undefined
  private hurry = () => {}

  constructor(
    readonly program: string,
    readonly patience: number | undefined,
  ) {}

  /** The newest way in counts: those of directories that were closed no longer work. */
  use(client: Json) {
    this.client = client
    this.coming ??= this.stay()
  }

  /** The daemon's socket; it is started when it is not running. */
  async daemon(): Promise<string> {
    this.socket ||= await findDaemon(this.program, this.patience ?? LONGEST_START)
    return this.socket
  }

  /** Asks the daemon; when nobody listens any more, it is started and asked again. */
  async ask(call: Omit<Call, "socket">): Promise<Answer> {
    try {
      return await ask({ ...call, socket: await this.daemon() })
    } catch (error) {
      if (call.abort?.aborted || !isGone(error)) throw error
      this.socket = ""
      return ask({ ...call, socket: await this.daemon() })
    }
  }

  /** Says that nobody waits for a call any more. */
  take_back(path: string, caller: Json, key: string) {
    const body = JSON.stringify({ caller, key })
    const timeout = this.patience ?? LONGEST_CALL
    void this.ask({ method: "POST", path: `${path}/abort`, body, timeout }).catch(() => {})
  }

  /** Resolves when the daemon has a name for this process, or after a while anyway. */
  async settled(longest: number): Promise<void> {
    if (this.name) return
    // It may have been stopped: whoever calls a tool wants it started.
    const path = "/v1/health"
    await this.ask({ method: "GET", path, timeout: this.patience ?? LONGEST_START })
    this.hurry()
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, longest)
      this.named.push(() => {
        clearTimeout(late)
        resolve()
      })
    })
  }

  private async stay() {
    // A daemon that was stopped on purpose is started by the next tool, not by us.
    let meant = false
    for (let tries = 0; ; tries++) {
      try {
        const socket = meant && this.socket ? this.socket : await this.daemon()
        meant = await this.hold(socket, () => (tries = 0))
      } catch {
        // Whoever calls a tool is told; here it is tried again.
      }
      this.name = ""
      this.streams.forEach((stream) => stream.abort())
      if (!meant) this.socket = ""
      const time = BETWEEN_TRIES[Math.min(tries, BETWEEN_TRIES.length - 1)]
      await new Promise<void>((resolve) => {
        this.hurry = resolve
        setTimeout(resolve, time)
      })
    }
  }

  /** Takes calls until the stream ends; says whether that was meant. */
  private hold(socketPath: string, taken: () => void): Promise<boolean> {
    return new Promise((ended, failed) => {
      let id = 0
      let meant = false
      let rest = ""
      const about = { pid: process.pid, directory: process.cwd(), name: this.before }
      const hello = JSON.stringify(about)
      const headers = { "content-type": "application/json", "content-length": length(hello) }
      const path = "/v1/bridge"
      const request = send({ socketPath, method: "POST", path, headers, agent: false }, (lines) => {
        lines.setEncoding("utf8")
        lines.on("data", (text: string) => {
          rest += text
          try {
            for (let end; (end = rest.indexOf("\n")) >= 0; rest = rest.slice(end + 1)) {
              const line = JSON.parse(rest.slice(0, end))
              if (line === "bye") meant = true
              else if (line.bridge !== undefined) id = line.bridge
              else if (line.name !== undefined) this.call_me(line.name, taken)
              else if (line.call !== undefined) void this.carry(socketPath, id, line.call)
              else if (line.drop !== undefined) this.streams.get(line.drop)?.abort()
            }
          } catch (error) {
            // Whoever speaks like this is not our daemon; OpenCode must not suffer from it.
            request.destroy()
            failed(error)
          }
        })
        lines.on("error", failed)
        lines.on("close", () => ended(meant))
        lines.on("end", () => ended(meant))
      })
      request.on("error", failed)
      request.end(hello)
    })
  }

  private call_me(name: string, taken: () => void) {
    taken()
    this.name = name
    this.before = name
    this.named.splice(0).forEach((resolve) => resolve())
  }

  /** Makes one call of the daemon in this process and posts the answer. */
  private async carry(socket: string, bridge: number, call: Json) {
    const stop = new AbortController()
    this.streams.set(call.id, stop)
    const path = `/v1/bridge/${bridge}/${call.id}`
    try {
      const response = await this.fetch(call, stop.signal)
      if (call.stream) {
        await this.pass_on(socket, `${path}/piece`, response, stop)
      } else {
        const json = (response.headers.get("content-type") ?? "").startsWith("application/json")
        const body = new Uint8Array(await response.arrayBuffer())
        await this.post(socket, `${path}/answer?status=${response.status}&json=${json}`, body)
      }
    } catch (error) {
      const why = String(error)
      const [end, body] = call.stream ? ["piece", ""] : ["answer?status=502&json=false", why]
      await this.post(socket, `${path}/${end}`, body).catch(() => {})
    } finally {
      stop.abort()
      if (this.streams.get(call.id) === stop) this.streams.delete(call.id)
    }
  }

  private fetch(call: Json, signal: AbortSignal): Promise<Response> {
    const config = this.client._client.getConfig()
    const headers: Record<string, string> = { "content-type": "application/json" }
    const given = new Headers(config.headers as any).get("authorization")
    if (given) headers.authorization = given
    const { method, body } = call
    return config.fetch(new Request(config.baseUrl + call.path, { method, headers, body, signal }))
  }

  /** What comes while a piece is on its way goes with the next one. */
  private async pass_on(
    socket: string,
    path: string,
    response: Response,
    stop: AbortController,
  ) {
    const reader = response.body!.getReader()
    let waiting: Uint8Array[] = []
    let over = false
    let wake = () => {}
    const reading = (async () => {
      for (;;) {
        const { done, value } = await reader.read()
        if (done) break
        waiting.push(value)
        wake()
      }
    })().finally(() => {
      over = true
      wake()
    })
    reading.catch(() => {})
    stop.signal.addEventListener("abort", () => void reader.cancel().catch(() => {}))
    while (!over || waiting.length > 0) {
      if (waiting.length === 0) await new Promise<void>((resolve) => (wake = resolve))
      if (waiting.length === 0) continue
      const piece = Buffer.concat(waiting.splice(0))
      if ((await this.post(socket, path, piece)).status >= 400) return
    }
    await reading.catch(() => {})
    await this.post(socket, path, "")
  }

  private post(socket: string, path: string, body: string | Uint8Array): Promise<Answer> {
    const timeout = this.patience ?? LONGEST_CALL
    return ask({ socket, method: "POST", path, body, timeout })
  }
}

function isGone(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException)?.code ?? ""
  return ["ECONNREFUSED", "ENOENT", "ECONNRESET", "EPIPE", "FailedToOpenSocket"].includes(code)
}

/** One per process, however many directories it has open and however often this file is loaded. */
function bridge(options: Options): Bridge {
  const here = globalThis as Json
  const key = Symbol.for("asyncagents.bridge")
  here[key] ??= new Bridge(options.program ?? "asyncagents", options.patience)
  return here[key]
}

/** The tools as OpenCode takes them, each a call of the daemon. */
function tools(list: Tool[], bridge: Bridge): Record<string, Json> {
  const entry = ({ name, description, inputSchema, waits }: Tool) => [
    name,
    {
      description,
      args: inputSchema.properties ?? {},
      async execute(args: Json, context: Json): Promise<string> {
        const unreached = (error: Error) => {
          throw String(error).includes("asyncagents:") ? error : unreachable(error.message)
        }
        await bridge.settled(bridge.patience ?? LONGEST_NAMING).catch(unreached)
        const caller = {
          sessionID: context.sessionID,
          messageID: context.messageID,
          agent: context.agent,
          directory: context.directory,
          host: "opencode",
          instance: bridge.name,
          development: process.env[MODE] === "development",
        }
        // Some providers count their call ids anew in every message.
        const key = `${context.sessionID}-${context.messageID}-${context.callID}`
        const body = JSON.stringify({ caller, arguments: args, key })
        const path = `/v1/tools/${name}`
        // One that can be told to block waits only then.
        const long = waits && (args?.block ?? !inputSchema.properties?.block)
        const timeout = (bridge.patience ?? LONGEST_CALL) + (long ? LONGEST_WAIT : 0)
        const answer = await bridge
          .ask({ method: "POST", path, body, timeout, abort: context.abort })
          .catch((error) => {
            // Nobody waits for it any more; what that means, the daemon knows.
            if (context.abort?.aborted) bridge.take_back(path, caller, key)
            return unreached(error)
          })
        const said = read(answer)
        if (answer.status !== 200 || said.isError) throw new Error(said.text ?? said.error)
        return said.text
      },
    },
  ]
  return Object.fromEntries(list.map(entry))
}

function read(answer: Answer): Json {
  try {
    return JSON.parse(answer.text)
  } catch {
    throw unreachable("its answer cannot be read")
  }
}

export default async ({ client }: Json, options: Options = {}) => {
  const way = bridge(options)
  way.use(client)
  const list = await way
    .ask({ method: "GET", path: "/v1/tools", timeout: options.patience ?? LONGEST_START })
    .then((answer) => [...(read(answer).tools as Tool[])])
    .catch(async (error) => {
      // Without a daemon there are no tools; the reason is shown, and is in OpenCode's log.
      const message = String(error.message)
      const shown = { body: { message, variant: "error", duration: 10_000 } }
      void client.tui?.showToast?.(shown)?.catch?.(() => {})
      const entry = { body: { service: "asyncagents", level: "error", message } }
      void client.app?.log?.(entry)?.catch?.(() => {})
      return [] as Tool[]
    })
  const schemas = new Map(list.map((tool) => [tool.name, tool.inputSchema]))
  return {
    tool: tools(list, way),
    // Arguments that are plain schemas would all be required.
    "tool.definition": async ({ toolID }: Json, output: Json) => {
      if (schemas.has(toolID)) output.jsonSchema = schemas.get(toolID)
    },
  }
}
