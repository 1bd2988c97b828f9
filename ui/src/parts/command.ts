// The partitions that a run materializes, and the command that starts the run.

export const needs = [
  { id: "stale", label: "missing and stale partitions" },
  { id: "missing", label: "missing partitions" },
  { id: "failed", label: "failed partitions" },
  { id: "", label: "all partitions, or those below" },
] as const;

export type Need = (typeof needs)[number]["id"];

const flags = { stale: "--stale", missing: "--missing-only", failed: "--failed-only" };

// quote returns a word of a command as a shell reads it.
export const quote = (text: string) => (/^[\w./=:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// commandLine returns the command that starts the same run.
export function commandLine(assets: string[], need: Need, upstream: boolean, partitions: string[]): string {
  const words = ["servo run"];
  if (assets.length === 0 && need === "") words.push("--all");
  words.push(...assets.map(quote));
  if (need) words.push(flags[need]);
  if (upstream && assets.length > 0) words.push("--upstream");
  for (const partition of partitions) words.push("-p", quote(partition));
  return words.join(" ");
}

// joinWords joins words to a text that splitWords splits into the same words.
export const joinWords = (words: string[]) => words.map(quote).join(" ");

// splitWords splits a text at its spaces. As in a shell, quotes keep the spaces of a word. A quote without its pair is
// part of a word.
export function splitWords(text: string): string[] {
  const words = text.match(/(?:\\.|'[^']*'|"[^"]*"|\S)+/g) ?? [];
  return words.map((word) =>
    word.replace(/\\(.)|'([^']*)'|"([^"]*)"/g, (_, plain, single, double) => plain ?? single ?? double ?? ""),
  );
}

// valuesOf returns the value of each dimension of a partition key.
export function valuesOf(key: string): Record<string, string> {
  try {
    return JSON.parse(key) as Record<string, string>;
  } catch {
    return {};
  }
}

// selectionOf returns the selection of one partition. An asset without partitions has no selection.
export function selectionOf(key: string): string[] {
  const conditions = Object.entries(valuesOf(key)).map(([dimension, value]) => `${dimension}=${value}`);
  return conditions.length > 0 ? [conditions.sort().join(";")] : [];
}
