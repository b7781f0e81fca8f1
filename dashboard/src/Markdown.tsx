// Markdown as elements. Text only ever becomes text nodes; addresses were checked by the parser.

import { createMemo, For, type JSX } from "solid-js";

import { visible, visibleLines } from "./format";
import { highlight } from "./highlight";
import { parse, type Block, type Inline } from "./markdown";

export function Markdown(props: { text: string }): JSX.Element {
  const tree = createMemo(() => parse(props.text));
  return <div class="markdown"><Blocks blocks={tree()} /></div>;
}

export function Code(props: { text: string; language: string }): JSX.Element {
  const tokens = createMemo(() => highlight(visibleLines(props.text), props.language));
  return (
    <pre tabindex="0"><code><For each={tokens()}>{(token) =>
      token.kind === "plain" ? token.text : <span class={`code-${token.kind}`}>{token.text}</span>
    }</For></code></pre>
  );
}

function Blocks(props: { blocks: Block[] }): JSX.Element {
  return <For each={props.blocks}>{block}</For>;
}

function block(block: Block): JSX.Element {
  switch (block.kind) {
    // Below the headings of the page, whatever the agent chose.
    case "heading":
      return block.level < 3
        ? <h4><Inlines inlines={block.children} /></h4>
        : <h5><Inlines inlines={block.children} /></h5>;
    case "paragraph":
      return <p><Inlines inlines={block.children} /></p>;
    case "code":
      return <Code text={block.text} language={block.language} />;
    case "quote":
      return <blockquote><Blocks blocks={block.children} /></blockquote>;
    case "rule":
      return <hr />;
    case "list": {
      const items = <For each={block.items}>{(item) => <li>{listItem(item)}</li>}</For>;
      return block.ordered ? <ol start={block.start}>{items}</ol> : <ul>{items}</ul>;
    }
    case "table":
      return (
        <div class="scroll" tabindex="0"><table>
          <thead><tr><For each={block.head}>{(cell) => <th><Inlines inlines={cell} /></th>}</For></tr></thead>
          <tbody><For each={block.rows}>{(row) =>
            <tr><For each={row}>{(cell) => <td><Inlines inlines={cell} /></td>}</For></tr>
          }</For></tbody>
        </table></div>
      );
  }
}

/** The text of an item stands without a paragraph around it. */
function listItem(blocks: Block[]): JSX.Element {
  const [first, ...rest] = blocks;
  if (first?.kind !== "paragraph") return <Blocks blocks={blocks} />;
  return <><Inlines inlines={first.children} /><Blocks blocks={rest} /></>;
}

function Inlines(props: { inlines: Inline[] }): JSX.Element {
  return <For each={props.inlines}>{inline}</For>;
}

function inline(inline: Inline): JSX.Element {
  switch (inline.kind) {
    case "text":
      return visibleLines(inline.text);
    case "code":
      return <code>{visibleLines(inline.text)}</code>;
    case "strong":
      return <strong><Inlines inlines={inline.children} /></strong>;
    case "em":
      return <em><Inlines inlines={inline.children} /></em>;
    case "strike":
      return <s><Inlines inlines={inline.children} /></s>;
    case "link":
      return (
        <a href={inline.href} title={visible(inline.href)} target="_blank" rel="noreferrer noopener nofollow">
          <Inlines inlines={inline.children} />
        </a>
      );
  }
}
