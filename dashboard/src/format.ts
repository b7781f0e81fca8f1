// Figures and times as people read them. Pure, so that tests need no browser.

export function duration(milliseconds: number): string {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 0.95) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} m`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

export function ago(then: number, now: number): string {
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

/** A number in four characters or so: 950, 1.2k, 34k, 5.6M. */
export function short(n: number): string {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]] as const) {
    if (n >= size * 0.9995) {
      const value = n / size;
      return `${value < 9.95 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)}${unit}`;
    }
  }
  return `${Math.round(n)}`;
}

export function money(dollars: number): string {
  if (dollars === 0) return "$0";
  if (dollars < 0.01) return "< 1¢";
  return dollars < 100 ? `$${dollars.toFixed(2)}` : `$${count(Math.round(dollars))}`;
}

export function plural(n: number, one: string, several = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : several}`;
}

export function clockTime(at: number, withDate = false): string {
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB");
  return withDate ? `${date.toLocaleDateString("en-CA")} ${time}` : time;
}

/** The beginning of a longer text in one line, without the marks of Markdown. */
export function gistOf(text: string): string {
  const beginning = text.slice(0, 600).replace(/```\w*|[*`]+|^#+ |\|/gm, "").replace(/\s*\n\s*(?:[-•] )?/g, " · ");
  return visible(beginning.trim()).slice(0, 300);
}

/** What `is_hidden` in `src/quote.rs` names. */
const HIDDEN =
  /[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const escaped = (c: string) => `\\u{${c.codePointAt(0)!.toString(16)}}`;

/**
 * Text of agents on one line, with what cannot be seen made visible: control characters, and the marks that turn
 * the direction of writing around, which could make one command look like another.
 */
export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => (c === "\n" ? "⏎ " : c === "\t" ? " " : escaped(c)));
}

/** The same over several lines. */
export function visibleLines(text: string): string {
  return text.replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : escaped(c)));
}

function pad(n: number): string {
  return String(n).padStart(2, "0");
}
