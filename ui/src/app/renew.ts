// A newer build of the server has files with other names, so a page of an earlier build may ask for a file that is gone.
import { options } from "../api/ask";

const own = new URL(import.meta.url).pathname;
const storeKey = "servo.reloads";

let asked: Promise<void> | undefined;

// renew loads the page of the newer build, if the server has one. If the server does not answer, the page stays. Several
// files may be gone, so calls at the same time share one question.
export function renew() {
  asked ??= ask().finally(() => {
    asked = undefined;
  });
  return asked;
}

async function ask() {
  try {
    const answer = await fetch(window.location.href, options);
    const newer = answer.ok && !(await answer.text()).includes(own);
    if (newer && mayReload(sessionStorage, Date.now())) window.location.reload();
  } catch {
    // The screen shows the error.
  }
}

// mayReload reports whether this tab may load the page again, and remembers that it does so. During an upgrade, servers
// of both builds may answer in turn, and a reload does not help until all servers have the same build. So a tab loads
// the page at most ten times in a minute.
export function mayReload(store: Pick<Storage, "getItem" | "setItem">, now: number) {
  const times = (store.getItem(storeKey) ?? "").split(" ").map(Number);
  const recent = times.filter((time) => time > now - 60_000 && time <= now);
  if (recent.length >= 10) return false;
  store.setItem(storeKey, [...recent, now].join(" "));
  return true;
}

// lacksFile reports whether an error means that a file of the page could not be loaded.
export const lacksFile = (error: unknown) =>
  error instanceof Error && /dynamically imported module|preload CSS|module script failed/i.test(error.message);
