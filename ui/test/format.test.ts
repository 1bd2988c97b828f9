import { describe, expect, it } from "vitest";
import { ago, bytes, momentOf, plural, shortID, span, splitTimes, stamp } from "../src/app/format";

describe("format", () => {
  it("formats durations with at most two units", () => {
    const texts = [0, 0.0004, 0.25, 1.24, 9.96, 59.4, 60, 61, 3599, 3600, 3661, 86_400, 90_000];
    expect(texts.map(span)).toEqual([
      "0 ms",
      "0 ms",
      "250 ms",
      "1.2 s",
      "10.0 s",
      "59 s",
      "1 min",
      "1 min 1 s",
      "59 min 59 s",
      "1 h",
      "1 h 1 min",
      "1 d",
      "1 d 1 h",
    ]);
    expect(span(Number.NaN)).toBe("0 ms");
    expect(span(-1)).toBe("0 ms");
  });

  it("formats relative times in both directions", () => {
    const now = Date.parse("2025-01-15T12:00:00Z");
    const at = (seconds: number) => ago(now + seconds * 1000, now);
    expect([at(0), at(-30), at(-600), at(-7200), at(-260_000), at(30), at(4)]).toEqual([
      "just now",
      "30 s ago",
      "10 min ago",
      "2 h ago",
      "3 d ago",
      "in 30 s",
      "now",
    ]);
  });

  it("reads a typed time in the zone of the page", () => {
    const local = new Date(2025, 6, 1, 12, 30).toISOString();
    expect(momentOf("2025-07-01 12:30", false)).toBe(`${local.slice(0, 19)}Z`);
    expect(momentOf("2025-07-01T12:30:05", true)).toBe("2025-07-01T12:30:05Z");
    expect(momentOf("2025-07-01", true)).toBe("2025-07-01T00:00:00Z");
    for (const text of [
      "402",
      "",
      "2025-02-30",
      "2025-13-01",
      "2025-07-01 24:00",
      "2025-07-01T12:30:05+02:00",
      "noon",
    ]) {
      expect(momentOf(text, true)).toBe(text);
    }
  });

  it("formats bytes and numbers", () => {
    expect([bytes(0), bytes(999), bytes(1500), bytes(123_456), bytes(2e15)]).toEqual([
      "0 B",
      "999 B",
      "1.5 KB",
      "123 KB",
      "2.0 PB",
    ]);
    expect([plural(1, "run"), plural(2, "run"), plural(1000, "run")]).toEqual(["1 run", "2 runs", "1,000 runs"]);
    expect(shortID("01M8B2R59V39KW6Q5X2QN49K5H")).toBe("N49K5H");
  });

  it("formats UTC independent of the browser's zone", () => {
    expect(stamp(new Date("2025-03-30T01:30:05Z"), true)).toBe("2025-03-30 01:30:05");
    expect(stamp(new Date("x"), true)).toBe("");
  });

  it("finds the known times in a sentence", () => {
    const text = "ana marked it as stale at 2025-01-15T14:03:07Z: wrong since 2025-01-14T00:00:00Z";
    expect(splitTimes(text, [undefined, "2025-01-15T14:03:07.250Z"])).toEqual([
      "ana marked it as stale at ",
      "2025-01-15T14:03:07Z",
      ": wrong since 2025-01-14T00:00:00Z",
    ]);
    expect(splitTimes(text, [])).toEqual([text]);
    expect(splitTimes(text, ["2025-01-15T14:03:08Z"])).toEqual([text]);
  });
});
