// A newer build of the server has files with other names, so a page of an earlier build may ask for a file that is gone.
import { options } from "../api/ask";

const own = new URL(import.meta.url).pathname;

// renew loads the page of the newer build, if the server has one. If the server does not answer, the page stays.
export async function renew() {
  try {
    const answer = await fetch(window.location.href, options);
    if (answer.ok && !(await answer.text()).includes(own)) window.location.reload();
  } catch {
    // The screen shows the error.
  }
}

// lacksFile reports whether an error means that a file of the page could not be loaded.
export const lacksFile = (error: unknown) =>
  error instanceof Error && /dynamically imported module|preload CSS|module script failed/i.test(error.message);
