// Keyboard shortcuts: single keys, outside of fields and dialogs.

export const SHORTCUTS: [string, string][] = [
  ["j  k", "next and previous task"],
  ["Enter", "open the task"],
  ["/", "search"],
  ["a  d", "approve or deny what the task asks for"],
  ["x", "cancel the task"],
  ["s", "send a message, or resume"],
  ["n", "launch an agent"],
  ["1 … 4", "Agents, Timeline, Batches, Stats"],
  ["Esc", "back to the agents"],
  ["?", "this help"],
];

type Keys = Record<string, () => unknown>;

/** Listens until the returned function is called. */
export function onKeys(keys: Keys): () => void {
  const pressed = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    // A dialog that was closed has the focus until the next frame.
    const dialog = target.closest("dialog");
    if (dialog ? dialog.open : target.closest("input, textarea, select")) return;
    // Enter on a link or button is that link's or button's.
    if (event.key === "Enter" && target.closest("a, button, summary")) return;
    const act = Object.hasOwn(keys, event.key) ? keys[event.key] : undefined;
    if (!act) return;
    event.preventDefault();
    act();
  };
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}
