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

// gone reports whether an error means that the object no longer exists. After other errors, a page keeps what it shows.
export const gone = (error: unknown) => error instanceof Failure && (error.status === 404 || error.status === 410);

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

// The keys of requests whose outcome is not known, because the answer was lost. A repetition with the same key has the
// effect of one request.
const unknown = new Map<string, { key: string; since: number }>();
const remembered = 10 * 60_000; // a later request is meant to have an effect of its own

const newKey = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (n) => n.toString(16).padStart(2, "0")).join("");

// keyOf returns the key of a request.
export function keyOf(request: string, now: number): string {
  const known = unknown.get(request);
  if (known && now - known.since < remembered) return known.key;
  const key = newKey();
  unknown.set(request, { key, since: now });
  return key;
}

// settled forgets the key of a request whose outcome is known.
export const settled = (request: string) => unknown.delete(request);

// post changes something. A request that is sent again after its answer was lost has no second effect.
export async function post<T>(url: string, body: unknown): Promise<T> {
  const text = JSON.stringify(body);
  const request = `${url} ${text}`;
  try {
    const answer = await call(url, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": keyOf(request, Date.now()) },
      body: text,
    });
    const result = (await answer.json()) as T;
    settled(request);
    return result;
  } catch (error) {
    if (error instanceof Failure && error.status >= 400 && error.status < 500) settled(request);
    throw error;
  }
}

export const liveStates: RunState[] = ["PENDING", "RUNNING", "PAUSED", "CANCELLING"];

// The calls that the page sends before its own script has been read: see early.ts.
export const first = {
  live: path(["runs"], { state: liveStates, page_size: 20 }),
  attention: path(["attention"]),
  assets: path(["assets"], { page_size: 10_000 }),
};
