import { useEffect, useRef } from "react";

// Keyboard commands of the page and of its views.

export interface Command {
  keys: string; // "g r", "j", "Ctrl k"
  label: string;
  run: () => void;
}

const stack: { commands: Command[] }[] = [];
let pending = "";
let since = 0;

// The active commands. The commands of the newest view come first.
export function active(): Command[] {
  const all = [...stack].reverse().flatMap((entry) => entry.commands);
  return all.filter((c, i) => all.findIndex((d) => d.keys === c.keys) === i);
}

// typing reports whether a key is typed into a text field. It also looks into shadow roots, because the editor of the
// SQL console is in a shadow root.
function typing(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0] ?? null;
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export function handle(event: KeyboardEvent) {
  const ctrl = event.ctrlKey || event.metaKey;
  if (event.altKey || event.isComposing) return;
  const name = ctrl ? `Ctrl ${event.key.toLowerCase()}` : event.key;
  if (!ctrl && (typing(event) || document.querySelector("dialog[open]"))) return;
  const now = event.timeStamp;
  const combined = pending && now - since < 1500 ? `${pending} ${name}` : name;
  const commands = active();
  const found = commands.find((c) => c.keys === combined) ?? commands.find((c) => c.keys === name);
  if (found) {
    pending = "";
    event.preventDefault();
    found.run();
    return;
  }
  pending = commands.some((c) => c.keys.startsWith(`${name} `)) ? name : "";
  since = now;
}

// useCommands adds commands while a component is shown.
export function useCommands(commands: Command[]) {
  const entry = useRef({ commands });
  entry.current.commands = commands;
  useEffect(() => {
    const mine = entry.current;
    stack.push(mine);
    return () => {
      stack.splice(stack.indexOf(mine), 1);
    };
  }, []);
}

// move focuses the next or previous row of the view.
export function move(by: 1 | -1) {
  const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")].filter(
    (row) => row.offsetParent !== null,
  );
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
  const row = rows[next];
  row?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}
