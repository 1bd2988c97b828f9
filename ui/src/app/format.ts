// Numbers and times as text.

const units = ["B", "KB", "MB", "GB", "TB", "PB"];

export function bytes(n: number): string {
  let value = n;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit++;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export function count(n: number): string {
  return n.toLocaleString("en");
}

export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

// span formats a duration in seconds.
export function span(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
  ];
  if (days > 0) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours > 0) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
}

// ago formats a time relative to another.
export function ago(at: number, now: number): string {
  const seconds = (now - at) / 1000;
  const text = coarse(Math.abs(seconds));
  if (text === "") return seconds < 0 ? "now" : "just now";
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

function coarse(seconds: number): string {
  if (seconds < 5) return "";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const pad = (n: number) => String(n).padStart(2, "0");

// stamp formats a time in the browser's zone or in UTC: "2025-01-15 14:03:07".
export function stamp(at: Date, utc: boolean): string {
  if (Number.isNaN(at.getTime())) return "";
  if (utc) return at.toISOString().slice(0, 19).replace("T", " ");
  const date = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${date} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

const withoutZone = /^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d))?)?$/;

// momentOf returns a typed time in UTC, as the server reads it. A time without a zone is in the browser's zone or, if
// the page shows its times in UTC, in UTC. Other texts stay as they are: revisions, times with a zone, and mistakes.
export function momentOf(text: string, utc: boolean): string {
  const found = withoutZone.exec(text);
  if (!found) return text;
  const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = found.slice(1).map((n) => Number(n ?? 0));
  const given = new Date(Date.UTC(year, month - 1, day, hour, minute, second));
  if (given.getUTCMonth() !== month - 1 || given.getUTCDate() !== day) return text; // the server rejects it
  const at = utc ? given : new Date(year, month - 1, day, hour, minute, second);
  return `${at.toISOString().slice(0, 19)}Z`;
}

// splitTimes splits a sentence of the server, which contains times as "2025-01-15T14:03:07Z", at the given times. Every
// second part of the result is a time. Other times stay as they are, because a person may have written them.
export function splitTimes(text: string, times: (string | undefined)[]): string[] {
  const written = times.flatMap((at) => (at ? [`${new Date(at).toISOString().slice(0, 19)}Z`] : []));
  return written.length === 0 ? [text] : text.split(new RegExp(`(${written.join("|")})`));
}

export function zoneName(utc: boolean): string {
  return utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
}

// shortID returns the end of a run's id, which every command accepts instead of the id.
export function shortID(id: string): string {
  return id.slice(-6);
}

// firstLine shortens a text to its first line.
export function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}
