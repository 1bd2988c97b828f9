import { expect, test } from "vitest";
import { mayReload } from "../src/app/renew";

test("a tab loads the page of a newer build at most ten times in a minute", () => {
  const kept = new Map<string, string>();
  const store = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, text: string) => void kept.set(key, text),
  };
  const now = Date.UTC(2025, 0, 15);
  for (let i = 0; i < 10; i++) expect(mayReload(store, now + i)).toBe(true);
  expect(mayReload(store, now + 10)).toBe(false);
  expect(mayReload(store, now + 59_999)).toBe(false);
  expect(mayReload(store, now + 60_001)).toBe(true); // the first one is more than a minute ago
  expect(mayReload(store, now - 86_400_000)).toBe(true); // the clock was set back
});
