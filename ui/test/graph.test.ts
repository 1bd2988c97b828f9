import { expect, test } from "vitest";
import { type Arrow, layOut, type Size } from "../src/graph/layout";
import { inOrder, pathOf, step } from "../src/graph/walk";

const nodes = (ids: string[]): Size[] => ids.map((id) => ({ id, width: 190, height: 52 }));
const edges = (...pairs: string[]): Arrow[] =>
  pairs.map((pair) => ({ from: pair[0] ?? "", to: pair[1] ?? "", back: pair[2] === "!" }));

// random returns a graph in which each node reads others before it, with about as many edges as asked for.
function random(count: number, wanted: number): { nodes: Size[]; edges: Arrow[] } {
  let seed = 7;
  const next = (n: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed % n;
  };
  const found = new Map<string, Arrow>();
  while (found.size < wanted) {
    const to = 1 + next(count - 1);
    const from = Math.max(0, to - 1 - next(40));
    found.set(`${from} ${to}`, { from: `n${from}`, to: `n${to}`, back: false });
  }
  return { nodes: nodes(Array.from({ length: count }, (_, i) => `n${i}`)), edges: [...found.values()] };
}

test("edges lead to the right, nodes do not overlap, and equal graphs look equal", () => {
  const graph = random(120, 200);
  const layout = layOut(graph.nodes, graph.edges);
  expect(layOut(graph.nodes, graph.edges)).toEqual(layout);
  const at = new Map(layout.nodes.map((n) => [n.id, n]));
  for (const e of graph.edges) expect(at.get(e.to)?.x).toBeGreaterThan(at.get(e.from)?.x ?? 0);
  for (const a of layout.nodes) {
    for (const b of layout.nodes) {
      if (a.id < b.id) expect(Math.abs(a.x - b.x) >= 190 || Math.abs(a.y - b.y) >= 52).toBe(true);
    }
    expect(Number.isInteger(a.x) && Number.isInteger(a.y)).toBe(true);
    expect(a.x >= 95 && a.x <= layout.width && a.y >= 26 && a.y <= layout.height).toBe(true);
  }
});

test("an edge that closes a cycle moves no node", () => {
  const with_ = layOut(nodes(["a", "b"]), edges("ab", "ba!"));
  expect(with_.nodes).toEqual(layOut(nodes(["a", "b"]), edges("ab")).nodes);
  expect(with_.edges).toHaveLength(2);
  expect(pathOf(with_.edges[1]?.points ?? [])).toMatch(/^M\d+,\d+C/);
});

test("nodes without edges fill a rectangle below the others", () => {
  const inside = (layout: ReturnType<typeof layOut>) => {
    for (const a of layout.nodes) {
      expect(a.x >= 95 && a.x <= layout.width - 95 && a.y >= 26 && a.y <= layout.height - 26).toBe(true);
      for (const b of layout.nodes) {
        if (a.id < b.id) expect(Math.abs(a.x - b.x) >= 190 || Math.abs(a.y - b.y) >= 52).toBe(true);
      }
    }
  };
  const many = layOut(nodes(Array.from({ length: 120 }, (_, i) => `n${i}`)), []);
  inside(many);
  expect(many.width / many.height).toBeGreaterThan(1);
  expect(many.width / many.height).toBeLessThan(3);
  expect(layOut(nodes(["a"]), []).nodes).toHaveLength(1);
  const mixed = layOut(nodes(["a", "b", "c", "d"]), edges("bc"));
  inside(mixed);
  const y = (id: string) => mixed.nodes.find((n) => n.id === id)?.y ?? 0;
  expect(y("a")).toBeGreaterThan(y("b"));
  expect(y("d")).toBe(y("a"));
  expect(mixed.edges).toHaveLength(1);
});

test("arrow keys reach every node without edges", () => {
  for (const layout of [
    layOut(nodes(["a", "b", "c", "d", "e", "f"]), edges("bc")),
    layOut(nodes(Array.from({ length: 50 }, (_, i) => `n${i}`)), []),
  ]) {
    const reached = new Set([layout.nodes[0]?.id ?? ""]);
    for (const id of reached) {
      for (const way of ["left", "right", "up", "down"] as const) {
        const next = step(layout, id, way);
        if (next !== undefined) reached.add(next);
      }
    }
    expect(reached.size).toBe(layout.nodes.length);
  }
});

test("arrow keys follow edges and reach siblings", () => {
  const layout = layOut(nodes(["a", "b", "c", "d"]), edges("ab", "ac", "bd", "cd"));
  expect(step(layout, "d", "right")).toBeUndefined();
  const up = layout.nodes.find((n) => n.id === "b")?.y ?? 0;
  const down = layout.nodes.find((n) => n.id === "c")?.y ?? 0;
  expect(step(layout, "b", up < down ? "down" : "up")).toBe("c");
  expect(step(layout, "b", "left")).toBe("a");
  expect(["b", "c"]).toContain(step(layout, "d", "left"));
  expect(inOrder(layout)[0]).toBe("a");
  expect(inOrder(layout).at(-1)).toBe("d");
  expect(layOut([], []).nodes).toEqual([]);
});
