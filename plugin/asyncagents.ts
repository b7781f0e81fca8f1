// The OpenCode plugin: registers the daemon's tools and forwards their calls, and opens a bridge, a
// reverse connection over which the daemon calls OpenCode's API inside this process, which needs no
// port. It has no tasks, no texts and no rules of its own; those are the daemon's. Built-ins only, so
// that nothing has to be installed, and one export only, since OpenCode calls whatever a plugin exports.
//
// What can go wrong: the daemon is not running (it is started), was stopped on purpose (it is started
// by the next tool call only), is restarted (the bridge reconnects under its old name, and takes over
// its tasks), or does not answer (every wait has a timeout, so that OpenCode never hangs on it).

import { execFile } from "node:child_process"
import { request as send } from "node:http"

type Json = any

/** What `asyncagents opencode install` writes into the configuration. */
interface Options {
  /** The program; without it the one on the PATH is used. */
  program?: string
  /** Replaces the timeouts of calls to the daemon, in milliseconds. */
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

/** Timeouts in milliseconds: of starting the daemon, and of a call. */
const LONGEST_START = 10_000
const LONGEST_CALL = 60_000
/** The daemon names this process after it has called it; one that is still starting answers late. */
const LONGEST_NAMING = 30_000
/** The longest a tool waits; added to the timeout of those that do. */
const LONGEST_WAIT = 600_000
/** Back-off between attempts to open the bridge, in milliseconds. */
const BETWEEN_TRIES = [200, 500, 1_000, 2_000, 5_000]

/** Not `process.env.NODE_ENV`: Bun replaces that by a constant when it loads the file. */
const MODE = "NODE_ENV"

const unreachable = (why: string) =>
  new Error(`asyncagents: the daemon cannot be reached (${why}); \`asyncagents doctor\` shows more`)

/** The daemon, as the program finds it. */
interface Daemon {
  /** The path of its socket. */
  socket: string
  /** What this process's environment says of models and keys: the daemon was started from another one. */
  handOver?: Json
}

/** Runs the program, which starts the daemon if it is not running. */
function findDaemon(program: string, timeout: number): Promise<Daemon> {
  return new Promise((found, failed) => {
    const options = { timeout, env: process.env }
    const start = ["daemon", "start", "--json", "--hand-over"]
    execFile(program, start, options, (error, stdout, stderr) => {
      if (error) {
        const missing = (error as NodeJS.ErrnoException).code === "ENOENT"
        const why = missing ? `no program \`${program}\`` : String(stderr).trim() || error.message
        return failed(unreachable(why))
      }
      try {
        found(JSON.parse(stdout))
      } catch {
        failed(unreachable(`\`${program} daemon start --json\` did not print JSON`))
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

/** One request over the daemon's socket. It always ends: by its answer, its timeout or its abort. */
function ask(call: Call): Promise<Answer> {
  return new Promise((answered, failed) => {
    const headers = { "content-type": "application/json", "content-length": length(call.body) }
    const { socket: socketPath, method, path } = call
    // Without a path, Node would connect to localhost by TCP instead, whoever listens there.
    if (!socketPath) return failed(new Error("the path of its socket is not known"))
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

/** The connection of this OpenCode process with the daemon. One for all directories. */
class Bridge {
  /** The name that the daemon has given this process; empty while the bridge is not open. */
  name = ""
  /** The name of the last bridge: the daemon gives it again, so that tasks find their process. */
  private before = ""
  /** The path of the daemon's socket; empty when it has to be looked up again. */
  private socket = ""
  /** Sent with every tool call, and kept in memory only. */
  handOver: Json
  /** Calls under way, by id, so that the daemon can drop one. */
  private streams = new Map<number, AbortController>()
  /** Tool calls that wait for the name. */
  private named: (() => void)[] = []
  private client: Json
  private loop: Promise<void> | undefined
  /** Ends the pause before the next attempt. */
  private hurry = () => {}

  constructor(
    readonly program: string,
    readonly patience: number | undefined,
  ) {}

  /** Takes the newest client: those of directories that were closed no longer work. */
  use(client: Json) {
    this.client = client
    this.loop ??= this.keepOpen()
  }

  /** The daemon's socket; it is started when it is not running. */
  async daemon(): Promise<string> {
    if (this.socket) return this.socket
    const daemon = await findDaemon(this.program, this.patience ?? LONGEST_START)
    this.handOver = daemon.handOver
    this.socket = daemon.socket
    return this.socket
  }

  /**
   * Makes a request. When the daemon has gone away, it is started and the request is repeated once;
   * launches carry an idempotency key, so that a repeat launches nothing twice.
   */
  async ask(call: Omit<Call, "socket">): Promise<Answer> {
    try {
      return await ask({ ...call, socket: await this.daemon() })
    } catch (error) {
      if (call.abort?.aborted || !isGone(error)) throw error
      this.socket = ""
      return ask({ ...call, socket: await this.daemon() })
    }
  }

  /** Tells the daemon that a tool call was cancelled. Best effort: nobody waits for it. */
  abort(path: string, caller: Json, key: string) {
    const body = JSON.stringify({ caller, key })
    const timeout = this.patience ?? LONGEST_CALL
    void this.ask({ method: "POST", path: `${path}/abort`, body, timeout }).catch(() => {})
  }

  /**
   * Resolves when the bridge is open, or after a while anyway. A tool call from before that carries no
   * name, so that the daemon cannot tell which process its caller is in.
   */
  async ready(longest: number): Promise<void> {
    if (this.name) return
    // The daemon may have been stopped on purpose. The loop does not start it then, but a tool call does.
    const path = "/v1/health"
    await this.ask({ method: "GET", path, timeout: this.patience ?? LONGEST_START })
    // The name may have come meanwhile, and nobody would resolve the promise below.
    if (this.name) return
    this.hurry()
    await new Promise<void>((resolve) => {
      const late = setTimeout(resolve, longest)
      this.named.push(() => {
        clearTimeout(late)
        resolve()
      })
    })
  }

  /** Opens the bridge again and again, for as long as this process lives. */
  private async keepOpen() {
    // Whether the daemon was stopped on purpose. Then only its known socket is tried: to look it up
    // would start the daemon.
    let stoppedOnPurpose = false
    for (let tries = 0; ; tries++) {
      try {
        const socket = stoppedOnPurpose && this.socket ? this.socket : await this.daemon()
        stoppedOnPurpose = await this.open(socket, () => (tries = 0))
      } catch {
        // Not reported here: the next tool call fails with the same reason, where the user sees it.
      }
      this.name = ""
      this.streams.forEach((stream) => stream.abort())
      if (!stoppedOnPurpose) this.socket = ""
      const time = BETWEEN_TRIES[Math.min(tries, BETWEEN_TRIES.length - 1)]
      await new Promise<void>((resolve) => {
        this.hurry = resolve
        setTimeout(resolve, time)
      })
    }
  }

  /**
   * Opens the bridge and carries out the daemon's calls until the stream ends. Returns whether the
   * daemon said `bye`: it was stopped on purpose.
   */
  private open(socketPath: string, opened: () => void): Promise<boolean> {
    return new Promise((ended, failed) => {
      let id = 0
      let stoppedOnPurpose = false
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
              if (line === "bye") stoppedOnPurpose = true
              else if (line.bridge !== undefined) id = line.bridge
              else if (line.name !== undefined) this.setName(line.name, opened)
              else if (line.call !== undefined) void this.carryOut(socketPath, id, line.call)
              else if (line.drop !== undefined) this.streams.get(line.drop)?.abort()
            }
          } catch (error) {
            // Not our protocol. Thrown out of an event handler, the error would be OpenCode's problem.
            request.destroy()
            failed(error)
          }
        })
        lines.on("error", failed)
        lines.on("close", () => ended(stoppedOnPurpose))
        lines.on("end", () => ended(stoppedOnPurpose))
      })
      request.on("error", failed)
      request.end(hello)
    })
  }

  private setName(name: string, opened: () => void) {
    opened()
    this.name = name
    this.before = name
    this.named.splice(0).forEach((resolve) => resolve())
  }

  /**
   * Makes one call of the daemon to OpenCode's API and posts the answer; for a stream, its pieces. A
   * failure is posted as well, as status 502 or the end of the stream: the daemon must not wait for it.
   */
  private async carryOut(socket: string, bridge: number, call: Json) {
    const stop = new AbortController()
    this.streams.set(call.id, stop)
    const path = `/v1/bridge/${bridge}/${call.id}`
    try {
      const response = await this.fetch(call, stop.signal)
      if (call.stream) {
        await this.forwardStream(socket, `${path}/piece`, response, stop)
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

  /** Through the client's own `fetch`, which calls OpenCode's server in this process without a port. */
  private fetch(call: Json, signal: AbortSignal): Promise<Response> {
    const config = this.client._client.getConfig()
    const headers: Record<string, string> = { "content-type": "application/json" }
    const given = new Headers(config.headers as any).get("authorization")
    if (given) headers.authorization = given
    const { method, body } = call
    return config.fetch(new Request(config.baseUrl + call.path, { method, headers, body, signal }))
  }

  /**
   * Posts a streamed answer in pieces. Reading and posting run concurrently: what is read while a
   * piece is being posted goes with the next one, so that many small events need few requests. An
   * empty piece is the end.
   */
  private async forwardStream(
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
      // 410: nobody reads the stream any more. Returning aborts it, in `carryOut`.
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

/** Whether an error means that no daemon listens on the socket any more. The last code is Bun's. */
function isGone(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException)?.code ?? ""
  return ["ECONNREFUSED", "ENOENT", "ECONNRESET", "EPIPE", "FailedToOpenSocket"].includes(code)
}

/**
 * The bridge of this process. OpenCode may load this file several times, for every directory it has
 * open, so the bridge is kept in a global under a registered symbol.
 */
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
        await bridge.ready(bridge.patience ?? LONGEST_NAMING).catch(unreached)
        const caller = {
          sessionID: context.sessionID,
          messageID: context.messageID,
          agent: context.agent,
          directory: context.directory,
          host: "opencode",
          instance: bridge.name,
          handOver: bridge.handOver,
          development: process.env[MODE] === "development",
        }
        // The idempotency key. With the message id in it, because some providers number their calls from
        // zero in every message: without it, a second launch would return the first one's task.
        const key = `${context.sessionID}-${context.messageID}-${context.callID}`
        const body = JSON.stringify({ caller, arguments: args, key })
        const path = `/v1/tools/${name}`
        // A tool with a `block` argument waits only if that is true.
        const long = waits && (args?.block ?? !inputSchema.properties?.block)
        const timeout = (bridge.patience ?? LONGEST_CALL) + (long ? LONGEST_WAIT : 0)
        const answer = await bridge
          .ask({ method: "POST", path, body, timeout, abort: context.abort })
          .catch((error) => {
            // The user cancelled the call. The daemon decides what that means: a blocking `Task` is
            // stopped, everything else goes on.
            if (context.abort?.aborted) bridge.abort(path, caller, key)
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
    throw unreachable("its answer is not JSON")
  }
}

export default async ({ client }: Json, options: Options = {}) => {
  const way = bridge(options)
  way.use(client)
  const list = await way
    .ask({ method: "GET", path: "/v1/tools", timeout: options.patience ?? LONGEST_START })
    .then((answer) => [...(read(answer).tools as Tool[])])
    .catch(async (error) => {
      // Without a daemon there are no tools, but OpenCode has to start all the same: the reason is shown
      // as a toast and written to OpenCode's log.
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
    // OpenCode makes all arguments required that are given as plain schemas, so the whole schema, with
    // its `required`, replaces what it has derived.
    "tool.definition": async ({ toolID }: Json, output: Json) => {
      if (schemas.has(toolID)) output.jsonSchema = schemas.get(toolID)
    },
  }
}
