// Code in colours: comments, strings, numbers and keywords of the usual languages, in one pass. Not a parser: good
// enough to read by, and small.

export interface Token {
  kind: "plain" | "comment" | "string" | "number" | "keyword" | "added" | "removed" | "meta";
  text: string;
}

const LONGEST = 60_000;

const WORDS =
  "abstract and as assert async await bool boolean break case catch char class const continue crate def default " +
  "defer del delete do double dyn elif else enum except export extends extern false final finally float fn for " +
  "from func function go if impl implements import in instanceof int interface is lambda let long loop match mod " +
  "move mut new nil none not null or package pass pub public private protected raise ref return self static " +
  "string struct super switch this throw trait true try type typeof undefined union unsafe use using var void " +
  "where while with yield None True False echo exit fi done then local set select insert update table create";
const KEYWORDS = new Set(WORDS.split(" "));

const HASH = new Set(["sh", "bash", "shell", "zsh", "py", "python", "rb", "ruby", "yaml", "yml", "toml", "make", "dockerfile", "console"]);
const DASHES = new Set(["sql", "lua", "haskell"]);

export function highlight(text: string, language: string): Token[] {
  if (text.length > LONGEST || language === "text" || language === "markdown") return [{ kind: "plain", text }];
  if (language === "diff" || language === "patch") return diff(text);
  const comment = HASH.has(language) ? "#[^\\n]*" : DASHES.has(language) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)";
  const pattern = new RegExp(
    `(${comment})|("(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\`?)|\\b(\\d[\\w.]*)\\b|([A-Za-z_]\\w*)`,
    "g",
  );
  const tokens: Token[] = [];
  const push = (kind: Token["kind"], text: string) => {
    const last = tokens.at(-1);
    if (last?.kind === kind) last.text += text;
    else if (text) tokens.push({ kind, text });
  };
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    push("plain", text.slice(end, match.index));
    const [whole, comment, string, number] = match;
    if (comment !== undefined) push("comment", whole);
    else if (string !== undefined) push("string", whole);
    else if (number !== undefined) push("number", whole);
    else push(KEYWORDS.has(whole) ? "keyword" : "plain", whole);
    end = match.index + whole.length;
  }
  push("plain", text.slice(end));
  return tokens;
}

function diff(text: string): Token[] {
  return text.split("\n").map((line, n, all) => {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "meta" : "plain";
    return { kind, text: n < all.length - 1 ? `${line}\n` : line };
  });
}
