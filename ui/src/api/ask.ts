// Answers to the first calls of the page, which were sent before anything waited for them.

export const options: RequestInit = { credentials: "same-origin", cache: "no-store", redirect: "error" };

const asked = new Map<string, Promise<Response>>();

// ask sends a call whose answer the page will want.
export function ask(url: string) {
  const answer = fetch(url, options);
  answer.catch(() => {}); // the caller that takes the answer reports the error
  asked.set(url, answer);
}

// answered returns the answer to a call that was sent early, once: the next call gets a new answer.
export function answered(url: string): Promise<Response> | undefined {
  const answer = asked.get(url);
  asked.delete(url);
  return answer;
}

// asks reports whether a call was sent early, and nobody has taken its answer.
export const asks = (url: string) => asked.has(url);
