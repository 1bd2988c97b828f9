// The partitions that a run materializes, and the command that starts the run.

export const needs = [
  { id: "stale", label: "missing and stale partitions" },
  { id: "missing", label: "missing partitions" },
  { id: "failed", label: "failed partitions" },
  { id: "", label: "all partitions, or those below" },
] as const;

export type Need = (typeof needs)[number]["id"];

const flags = { stale: "--stale", missing: "--missing-only", failed: "--failed-only" };

const quote = (text: string) => (/^[\w./=:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

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

export const splitWords = (text: string) => text.split(/\s+/).filter(Boolean);
