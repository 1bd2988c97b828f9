// The server's clock. The times of runs come from the server, and the clock of the browser may be wrong.

let ahead = 0; // milliseconds by which the server's clock is ahead

// The header Date has whole seconds, and an answer takes a moment. Smaller differences are no reason to change.
const tolerance = 2000;

// hear takes the header Date of an answer that has just arrived.
export function hear(date: string | null) {
  const differs = Date.parse(date ?? "") - Date.now();
  if (Math.abs(differs - ahead) > tolerance) ahead = Math.abs(differs) > tolerance ? differs : 0;
}

// serverTime returns the time by the server's clock.
export const serverTime = () => Date.now() + ahead;
