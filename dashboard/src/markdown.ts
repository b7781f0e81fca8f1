// Markdown as a tree of plain values, which `Markdown.tsx` turns into elements: what agents write never becomes HTML.
// The common subset that models write: headings, lists, quotes, tables, code, emphasis, links. Everything is read in
// one pass, and nesting is bounded, so that no text can take long.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em" | "strike"; children: Inline[] }
  | { kind: "link"; href: string; children: Inline[] };

export type Block =
  | { kind: "heading"; level: number; children: Inline[] }
  | { kind: "paragraph"; children: Inline[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; children: Block[] }
  | { kind: "list"; ordered: boolean; start: number; items: Block[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

const DEEPEST = 8;
const LONGEST_LINK = 4_000;
export const LONGEST = 200_000;

export function parse(text: string): Block[] {
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}\n\n[…]` : text;
  return blocks(cut.replace(/\r\n?/g, "\n").split(/[\n\u2028\u2029]/), 0);
}

// Each of them fails or matches in one pass over a line: `.` meets no end of a line within it, and no two repetitions
// of the same character stand next to each other before an end.
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;

function blocks(lines: string[], depth: number): Block[] {
  const found: Block[] = [];
  let n = 0;
  while (n < lines.length) {
    const line = lines[n]!;
    if (line.trim() === "") {
      n += 1;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      const mark = fence[1]!;
      let end = n + 1;
      while (end < lines.length && !closes(lines[end]!, mark)) end += 1;
      found.push({ kind: "code", language: fence[2]!.toLowerCase(), text: lines.slice(n + 1, end).join("\n") });
      n = end + 1;
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      found.push({ kind: "heading", level: heading[1]!.length, children: inline(unclosed(heading[2]!)) });
      n += 1;
      continue;
    }
    if (RULE.test(line)) {
      found.push({ kind: "rule" });
      n += 1;
      continue;
    }
    if (line.startsWith(">") && depth < DEEPEST) {
      let end = n;
      while (end < lines.length && lines[end]!.startsWith(">")) end += 1;
      const inner = lines.slice(n, end).map((line) => line.replace(/^> ?/, ""));
      found.push({ kind: "quote", children: blocks(inner, depth + 1) });
      n = end;
      continue;
    }
    if (line.includes("|") && isDivider(lines[n + 1] ?? "")) {
      let end = n + 2;
      while (end < lines.length && lines[end]!.includes("|")) end += 1;
      found.push({ kind: "table", head: cells(line), rows: lines.slice(n + 2, end).map(cells) });
      n = end;
      continue;
    }
    if (ITEM.test(line) && depth < DEEPEST) {
      const [list, end] = listFrom(lines, n, depth);
      found.push(list);
      n = end;
      continue;
    }
    let end = n + 1;
    while (end < lines.length && !interrupts(lines[end]!)) end += 1;
    found.push({ kind: "paragraph", children: inline(lines.slice(n, end).join("\n")) });
    n = end;
  }
  return found;
}

/** A heading without the `##` that may stand at its end, too. */
function unclosed(heading: string): string {
  const text = heading.trimEnd();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return text[end - 1] === " " ? text.slice(0, end).trimEnd() : text;
}

/** The line between the head of a table and its rows. */
function isDivider(line: string): boolean {
  const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|");
  return leading(line) < 4 && cells.every((cell) => /^:?-+:?$/.test(cell.trim()));
}

function closes(line: string, mark: string): boolean {
  const trimmed = line.trim();
  return trimmed.length >= mark.length && trimmed === mark[0]!.repeat(trimmed.length);
}

function interrupts(line: string): boolean {
  return line.trim() === "" || FENCE.test(line) || HEADING.test(line) || line.startsWith(">") || ITEM.test(line);
}

function listFrom(lines: string[], from: number, depth: number): [Block, number] {
  const first = ITEM.exec(lines[from]!)!;
  const indent = first[1]!.length;
  const ordered = /\d/.test(first[2]!);
  const items: string[][] = [];
  let n = from;
  while (n < lines.length) {
    const line = lines[n]!;
    const item = ITEM.exec(line);
    const isSame = item !== null && /\d/.test(item[2]!) === ordered;
    if (isSame && item[1]!.length <= indent + 1 && item[1]!.length >= indent) {
      items.push([item[3]!]);
    } else if (line.trim() === "") {
      // An empty line belongs to the list only if it goes on after it.
      const next = lines[n + 1] ?? "";
      if (!(ITEM.test(next) || /^ {2,}\S/.test(next))) break;
      items.at(-1)!.push("");
    } else if (leading(line) > indent) {
      items.at(-1)!.push(line.slice(Math.min(leading(line), indent + 2)));
    } else {
      break;
    }
    n += 1;
  }
  const children = items.map((item) => blocks(item, depth + 1));
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2]!, 10) : 1, items: children }, n];
}

function leading(line: string): number {
  return line.length - line.trimStart().length;
}

function cells(line: string): Inline[][] {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => inline(cell.trim().replace(/\\\|/g, "|")));
}

/** Only addresses that open a page or a mail; anything else stays text. */
export function safeHref(address: string): string | undefined {
  const trimmed = address.trim();
  return /^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(trimmed) ? trimmed : undefined;
}

export function inline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let plain = "";
  const flush = () => {
    if (plain) found.push({ kind: "text", text: plain });
    plain = "";
  };
  let n = 0;
  // The next place of a mark is looked for once and not again: otherwise many marks before a far partner, or without
  // one, take quadratic time.
  const places = new Map<string, { from: number; at: number }>();
  const partner = (mark: string, from: number): number => {
    const known = places.get(mark);
    if (known && known.from <= from && (known.at < 0 || from <= known.at)) return known.at;
    const at = text.indexOf(mark, from);
    places.set(mark, { from, at });
    return at;
  };
  /** Where an address begins that is none; others may stand before it. */
  let refused = -1;
  while (n < text.length) {
    const c = text[n]!;
    if (c === "\\" && /[\\`*_{}[\]()#+.!|~>-]/.test(text[n + 1] ?? "")) {
      plain += text[n + 1];
      n += 2;
      continue;
    }
    if (c === "`") {
      const mark = /^`+/.exec(text.slice(n, n + 16))![0];
      const end = partner(mark, n + mark.length);
      if (end > 0) {
        flush();
        found.push({ kind: "code", text: text.slice(n + mark.length, end).replace(/^ (.*) $/s, "$1") });
        n = end + mark.length;
        continue;
      }
      plain += mark;
      n += mark.length;
      continue;
    }
    const emphasis = depth < DEEPEST ? emphasisAt(text, n, partner) : undefined;
    if (emphasis) {
      flush();
      found.push({ kind: emphasis.kind, children: inline(text.slice(emphasis.from, emphasis.to), depth + 1) });
      n = emphasis.end;
      continue;
    }
    if (c === "[" && depth < DEEPEST) {
      const middle = partner("](", n);
      const end = middle < 0 || middle === refused ? -1 : partner(")", middle);
      const isNear = end >= 0 && end - n <= LONGEST_LINK;
      const href = isNear ? safeHref(text.slice(middle + 2, end)) : undefined;
      if (isNear && href === undefined) refused = middle;
      if (href !== undefined) {
        // A picture would be loaded from elsewhere; it is shown as a link to it.
        plain = plain.replace(/!$/, "");
        flush();
        found.push({ kind: "link", href, children: inline(text.slice(n + 1, middle), depth + 1) });
        n = end + 1;
        continue;
      }
    }
    plain += c;
    n += 1;
  }
  flush();
  return found;
}

function emphasisAt(
  text: string, n: number, partner: (mark: string, from: number) => number,
): { kind: "strong" | "em" | "strike"; from: number; to: number; end: number } | undefined {
  const kinds = [["**", "strong"], ["__", "strong"], ["~~", "strike"], ["*", "em"], ["_", "em"]] as const;
  for (const [mark, kind] of kinds) {
    if (!text.startsWith(mark, n)) continue;
    const from = n + mark.length;
    if (/\s/.test(text[from] ?? " ")) return undefined;
    // `snake_case_names` are no emphasis.
    if (mark[0] === "_" && /\w/.test(text[n - 1] ?? " ")) return undefined;
    const to = partner(mark, from + 1);
    if (to < 0 || /\s/.test(text[to - 1]!)) return undefined;
    if (mark[0] === "_" && /\w/.test(text[to + mark.length] ?? " ")) return undefined;
    return { kind, from, to, end: to + mark.length };
  }
  return undefined;
}
