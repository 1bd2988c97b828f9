// The page sends its first calls before its own script has been read: see early.ts. This module keeps their answers
// until a component takes them.

export const options: RequestInit = { credentials: "same-origin", cache: "no-store", redirect: "error" };

const asked = new Map<string, Promise<Response>>();

// ask sends a call early, and keeps its answer.
export function ask(url: string) {
  const answer = fetch(url, options);
  answer.catch(() => {}); // the caller that takes the answer reports the error
  asked.set(url, answer);
}

// answered returns the answer to a call that was sent early, and forgets the answer, so that a repeated call is sent
// to the server.
export function answered(url: string): Promise<Response> | undefined {
  const answer = asked.get(url);
  asked.delete(url);
  return answer;
}

// asks reports whether a call was sent early and its answer has not been taken.
export const asks = (url: string) => asked.has(url);
