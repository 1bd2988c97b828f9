import { describe, expect, it } from "vitest";
import { keyOf, path, settled } from "../src/api/client";
import { concurrency, covers, ticks, union, within, zoom } from "../src/canvas/time";
import { ansi } from "../src/parts/ansi";
import { commandLine, joinWords, selectionOf, splitWords } from "../src/parts/command";
import { highlight } from "../src/parts/sql";

describe("path", () => {
  it("encodes segments and drops empty parameters", () => {
    expect(path(["runs", "a/b", "tasks", "x[d=1]"], { state: "", after: undefined, limit: 5 })).toBe(
      "/v1/runs/a%2Fb/tasks/x%5Bd%3D1%5D?limit=5",
    );
  });
});

describe("keyOf", () => {
  it("keeps the key of a request until its outcome is known", () => {
    const key = keyOf("run a", 0);
    expect(key).toMatch(/^[0-9a-f]{32}$/);
    expect(keyOf("run a", 1000)).toBe(key);
    expect(keyOf("run b", 1000)).not.toBe(key);
    expect(keyOf("run a", 3_600_000)).not.toBe(key);
    const later = keyOf("run a", 3_600_001);
    settled("run a");
    expect(keyOf("run a", 3_600_002)).not.toBe(later);
  });
});

describe("ansi", () => {
  it("turns colours into classes and drops other sequences", () => {
    expect(ansi("\x1b[31mred\x1b[0m plain \x1b[1;32mbold\x1b[2J\x1b]0;title\x07!")).toEqual([
      { text: "red", style: "red" },
      { text: " plain ", style: "" },
      { text: "bold", style: "bold green" },
      { text: "!", style: "bold green" },
    ]);
  });

  it("keeps every printable character", () => {
    const hostile = '<img src=x onerror="hacked=1"> \u202Ereversed';
    expect(ansi(hostile)).toEqual([{ text: hostile, style: "" }]);
    expect(
      ansi("a\x00b\x1b[")
        .map((p) => p.text)
        .join(""),
    ).toContain("ab");
  });
});

describe("highlight", () => {
  it("splits SQL without losing a character", () => {
    const sql = "-- why\nSELECT 'it''s', 1.5 /* x */ FROM raw.selected WHERE a = 'SELECT'";
    const tokens = highlight(sql);
    expect(tokens.map((t) => t.text).join("")).toBe(sql);
    expect(tokens.filter((t) => t.kind === "keyword").map((t) => t.text)).toEqual(["SELECT", "FROM", "WHERE"]);
    expect(tokens.filter((t) => t.kind === "string").map((t) => t.text)).toEqual(["'it''s'", "'SELECT'"]);
  });
});

describe("time", () => {
  it("joins intervals that overlap or touch", () => {
    const mixed = [
      { from: 20, to: 30 },
      { from: 0, to: 10 },
      { from: 5, to: 7 },
      { from: 10, to: 15 },
    ];
    expect(union(mixed)).toEqual([
      { from: 0, to: 15 },
      { from: 20, to: 30 },
    ]);
    expect(mixed[1]).toEqual({ from: 0, to: 10 });
    expect(union([])).toEqual([]);
  });

  it("reports whether a range is the whole of a growing chart", () => {
    const bounds = { from: 1000, to: 2000 };
    expect(covers(zoom(zoom(bounds, 0.5, 1500, bounds), 2, 1500, bounds), bounds)).toBe(true);
    expect(covers(zoom(bounds, 0.5, 1500, bounds), bounds)).toBe(false);
    expect(covers({ from: 1000, to: 2000 }, { from: 1000, to: 2500 })).toBe(false);
  });

  it("counts intervals that overlap", () => {
    const two = [
      { from: 0, to: 50 },
      { from: 25, to: 100 },
    ];
    expect(concurrency(two, { from: 0, to: 100 }, 4)).toEqual([1, 2, 1, 1]);
    expect(concurrency([], { from: 0, to: 1 }, 2)).toEqual([0, 0]);
    expect(
      concurrency(
        [
          { from: 0, to: 10 },
          { from: 10, to: 20 },
        ],
        { from: 0, to: 20 },
        1,
      ),
    ).toEqual([1]);
  });

  it("zooms around a fixed point and stays within bounds", () => {
    const bounds = { from: 0, to: 1000 };
    expect(zoom(bounds, 0.5, 500, bounds)).toEqual({ from: 250, to: 750 });
    expect(zoom({ from: 0, to: 100 }, 100, 50, bounds)).toEqual(bounds);
    expect(within({ from: -50, to: 50 }, bounds)).toEqual({ from: 0, to: 100 });
    expect(within({ from: 950, to: 1050 }, bounds)).toEqual({ from: 900, to: 1000 });
  });

  it("labels an axis with round steps", () => {
    expect(ticks({ from: 1000, to: 3000 }, 1000, 4)).toEqual([0, 500, 1000, 1500, 2000]);
    expect(ticks({ from: 0, to: 0 }, 0, 4).length).toBeLessThanOrEqual(4);
  });
});

describe("commandLine", () => {
  it("is the command that starts the same run", () => {
    expect(commandLine([], "", false, [])).toBe("servo run --all");
    expect(commandLine([], "stale", true, [])).toBe("servo run --stale");
    expect(commandLine(["raw/a", "raw/* and tag:x"], "failed", true, [])).toBe(
      "servo run raw/a 'raw/* and tag:x' --failed-only --upstream",
    );
    expect(commandLine(["raw/a"], "", false, ["date=2025-01-01..2025-01-31"])).toBe(
      "servo run raw/a -p date=2025-01-01..2025-01-31",
    );
    expect(commandLine(["it's"], "missing", false, [])).toBe("servo run 'it'\\''s' --missing-only");
  });

  it("selects one partition by all of its dimensions", () => {
    expect(selectionOf('{"date":"2025-01-15","region":"a b"}')).toEqual(["date=2025-01-15;region=a b"]);
    expect(selectionOf('{"who":"q?#%2F"}')).toEqual(["who=q?#%2F"]);
    expect(selectionOf("")).toEqual([]);
  });

  it("keeps words with spaces and quotes", () => {
    for (const words of [["raw/a"], ["who=it's", "raw/* and tag:x"], ["date=2025-01-15;region=a b"], ["a\\b", 'x"y']]) {
      expect(splitWords(joinWords(words))).toEqual(words);
    }
    expect(splitWords(`  raw/a "raw/* and tag:x"  date=1..2 `)).toEqual(["raw/a", "raw/* and tag:x", "date=1..2"]);
    expect(splitWords("who=it's b")).toEqual(["who=it's", "b"]);
    expect(splitWords(" ")).toEqual([]);
  });
});
