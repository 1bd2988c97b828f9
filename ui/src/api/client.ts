// The client of the API: JSON over fetch. An answer that is not a success becomes a Failure.
import { answered, options } from "./ask";
import { hear } from "./clock";
import type { RunState } from "./types";

export class Failure extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
  ) {
    super(detail || title);
  }
}

type Params = Record<string, string | number | readonly string[] | undefined>;

// path joins segments, each of which may contain any character, and adds parameters and a verb.
export function path(segments: string[], params: Params = {}, verb = ""): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return `/v1/${segments.map(encodeURIComponent).join("/")}${verb && `:${verb}`}${text && `?${text}`}`;
}

export async function call(url: string, init: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await (answered(url) ?? fetch(url, { ...init, ...options }));
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Failure(0, "No answer", "The server does not answer. Is `servo dev` still running?");
  }
  hear(answer.headers.get("Date"));
  if (answer.ok) return answer;
  const body = await answer.text();
  try {
    const problem = JSON.parse(body) as { title?: string; detail?: string };
    throw new Failure(answer.status, problem.title ?? answer.statusText, problem.detail ?? "");
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure(answer.status, answer.statusText, body.slice(0, 500));
  }
}

export async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  const answer = await call(url, signal ? { signal } : {});
  return (await answer.json()) as T;
}

export async function post<T>(url: string, body: unknown): Promise<T> {
  const answer = await call(url, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await answer.json()) as T;
}

export const liveStates: RunState[] = ["PENDING", "RUNNING", "PAUSED", "CANCELLING"];

// The calls that the page sends before its own script has been read: see early.ts.
export const first = {
  live: path(["runs"], { state: liveStates, page_size: 20 }),
  attention: path(["attention"]),
  assets: path(["assets"], { page_size: 10_000 }),
};
