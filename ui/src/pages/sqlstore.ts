import { useSyncExternalStore } from "react";
import { serverTime } from "../api/clock";
import { query, type Result } from "../api/sql";

// Shown is what the SQL console shows, with the statement that is running. It is kept when the person opens another
// screen, so that the result is still there when the person returns.
export interface Shown {
  text: string; // the text in the editor
  ran?: string; // the statement of the result or of the error
  result?: Result;
  rows: number; // the number of rows so far: the result's list of rows grows in place
  error?: unknown;
  busy: boolean;
  started: number;
}

export interface Past {
  sql: string;
  at: number;
  rows?: number;
  error?: string;
}

const most = 50;
const longest = 10_000; // the greatest number of characters of a remembered statement

// What is in the editor outlives a reload of the tab.
const draftKey = "servo.sql.draft";
const longestDraft = 200_000; // characters

interface Draft {
  text: string;
  opened: string | undefined; // the entry of the browser's history whose statement was put into the editor
}

function readDraft(): Draft {
  try {
    const { text, opened } = JSON.parse(sessionStorage.getItem(draftKey) ?? "{}") as Partial<Draft>;
    return { text: typeof text === "string" ? text : "", opened: typeof opened === "string" ? opened : undefined };
  } catch {
    return { text: "", opened: undefined };
  }
}

const draft = readDraft();
let opened = draft.opened;
let shown: Shown = { text: draft.text, rows: 0, busy: false, started: 0 };
let controller: AbortController | undefined;
const listeners = new Set<() => void>();

function set(to: Partial<Shown>) {
  shown = { ...shown, ...to };
  for (const tell of listeners) tell();
}

const subscribe = (tell: () => void) => {
  listeners.add(tell);
  return () => listeners.delete(tell);
};

export const useShown = () => useSyncExternalStore(subscribe, () => shown);

export function edit(text: string) {
  set({ text });
  try {
    if (text.length <= longestDraft) sessionStorage.setItem(draftKey, JSON.stringify({ text, opened }));
    else sessionStorage.removeItem(draftKey);
  } catch {
    // The browser has no storage, or its storage is full.
  }
}

const settling = 1000; // milliseconds

// open puts the statement of an address into the editor. A person who comes back to the same entry of the browser's
// history finds the statement as they left it. A statement that has just been started gets its address while the
// person may be typing the next one.
export function open(entry: string, sql: string) {
  if (entry === opened) return;
  opened = entry;
  if (shown.ran === sql && serverTime() - shown.started < settling) return;
  edit(sql);
}

export function cancel() {
  controller?.abort();
}

// start runs a statement, and shows its rows while they arrive.
export async function start(sql: string, asOf: string, limit: number, project: string) {
  controller?.abort();
  const mine = new AbortController();
  controller = mine;
  const { result: _, error: __, ...rest } = shown;
  shown = { ...rest, ran: sql, rows: 0, busy: true, started: serverTime() };
  set({});
  let drawn = 0;
  try {
    const result = await query({ sql, row_limit: limit, ...(asOf ? { as_of: asOf } : {}) }, mine.signal, (partial) => {
      if (controller !== mine || Date.now() - drawn < 100) return;
      drawn = Date.now();
      set({ result: partial, rows: partial.rows.length });
    });
    if (controller !== mine) return;
    set({ result, rows: result.rows.length, busy: false });
    remember(project, {
      sql,
      at: serverTime(),
      rows: result.rows.length,
      ...(result.error ? { error: result.error } : {}),
    });
  } catch (error) {
    if (controller !== mine) return;
    const cancelled = mine.signal.aborted;
    set({
      busy: false,
      error: cancelled
        ? new Error(shown.rows > 0 ? "Cancelled. The rows that had arrived are below." : "Cancelled.")
        : error,
    });
    if (!cancelled) {
      remember(project, { sql, at: serverTime(), error: error instanceof Error ? error.message : String(error) });
    }
  }
}

// The statements of a project that this browser has run, newest first. They do not leave the browser.
const key = (project: string) => `servo.sql.${project}`;
let cached: { of: string; text: string | null; list: Past[] } | undefined;

function pastOf(project: string): Past[] {
  let stored: string | null = null;
  try {
    stored = localStorage.getItem(key(project));
  } catch {
    // A browser without storage forgets the statements.
  }
  if (cached?.of === project && cached.text === stored) return cached.list;
  let list: Past[] = [];
  try {
    const read: unknown = JSON.parse(stored ?? "[]");
    if (Array.isArray(read)) {
      list = read.filter((p): p is Past => typeof p?.sql === "string" && typeof p?.at === "number");
    }
  } catch {
    // Another program has stored something else under this key.
  }
  cached = { of: project, text: stored, list };
  return list;
}

export const usePast = (project: string) => useSyncExternalStore(subscribe, () => pastOf(project));

function store(project: string, list: Past[]) {
  try {
    localStorage.setItem(key(project), JSON.stringify(list));
  } catch {
    // The browser has no storage, or its storage is full.
  }
  set({});
}

function remember(project: string, past: Past) {
  if (past.sql.length > longest) return;
  store(project, [past, ...pastOf(project).filter((p) => p.sql !== past.sql)].slice(0, most));
}

export const forget = (project: string) => store(project, []);
