import { expect, test } from "vitest";
import { readOn } from "../src/parts/logreader";

test("a log is read to its end, part by part", async () => {
  let log = "abcdefgh";
  let complete = false;
  const shown: [string, boolean][] = [];
  const read = async (at: number) => {
    const text = log.slice(at, at + 3);
    return { text, next_offset: at + text.length, complete: complete && at + text.length === log.length };
  };
  const pause = async () => {
    log += "ij";
    complete = true;
  };
  await readOn(2, read, (text, live) => void shown.push([text, live]), pause);
  expect(shown).toEqual([
    ["cde", true],
    ["fgh", true],
    ["", true],
    ["ij", false],
  ]);
});
