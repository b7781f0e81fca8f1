// Server-sent events from pieces of text. The browser's own EventSource can neither send a token nor say why a
// connection failed, so the stream is read with `fetch`.

export interface Frame {
  event: string;
  id: string;
  data: string;
}

export class FrameParser {
  // Pieces of a line that has not ended: a snapshot is one line of megabytes, and joining it anew with every
  // piece would take quadratic time.
  #rest: string[] = [];
  #frame: Frame = { event: "", id: "", data: "" };

  push(text: string): Frame[] {
    const frames: Frame[] = [];
    this.#rest.push(text);
    if (!text.includes("\n")) return frames;
    const lines = this.#rest.join("").split("\n");
    this.#rest = [lines.pop() ?? ""];
    for (const line of lines) {
      if (line === "") {
        if (this.#frame.event) frames.push(this.#frame);
        this.#frame = { event: "", id: "", data: "" };
        continue;
      }
      const colon = line.indexOf(":");
      const name = line.slice(0, colon);
      const value = line.slice(colon + 1).replace(/^ /, "");
      if (name === "event" || name === "id" || name === "data") this.#frame[name] = value;
    }
    return frames;
  }
}
