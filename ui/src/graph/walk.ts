// Moves the selection through a graph with the arrow keys.
import type { Layout } from "./layout";

export type Way = "left" | "right" | "up" | "down";

// step returns the node that an arrow key selects. Left and right follow edges, and lead to the nearest of several
// nodes. From a node without edges, they lead to the next such node. Up and down lead to the nearest node above or
// below.
export function step(layout: Layout, from: string, way: Way): string | undefined {
  const at = new Map(layout.nodes.map((n) => [n.id, n]));
  const here = at.get(from);
  if (!here) return layout.nodes[0]?.id;
  const near = (ids: string[], distance: (n: { x: number; y: number }) => number) =>
    ids.flatMap((id) => at.get(id) ?? []).sort((a, b) => distance(a) - distance(b) || (a.id < b.id ? -1 : 1))[0]?.id;
  const bound = new Set(layout.edges.flatMap((e) => [e.from, e.to]));
  if (!bound.has(from) && (way === "left" || way === "right")) {
    const sign = way === "left" ? -1 : 1;
    return near(
      layout.nodes.filter((n) => n.y === here.y && (n.x - here.x) * sign > 0 && !bound.has(n.id)).map((n) => n.id),
      (n) => Math.abs(n.x - here.x),
    );
  }
  switch (way) {
    case "left":
      return near(
        layout.edges.filter((e) => e.to === from).map((e) => e.from),
        (n) => Math.abs(n.y - here.y),
      );
    case "right":
      return near(
        layout.edges.filter((e) => e.from === from).map((e) => e.to),
        (n) => Math.abs(n.y - here.y),
      );
    default: {
      const sign = way === "up" ? -1 : 1;
      return near(
        layout.nodes.filter((n) => (n.y - here.y) * sign > 0).map((n) => n.id),
        (n) => Math.abs(n.y - here.y) + 4 * Math.abs(n.x - here.x),
      );
    }
  }
}

// inOrder returns the ids from left to right and from top to bottom: upstream comes first.
export function inOrder(layout: Layout): string[] {
  return [...layout.nodes].sort((a, b) => a.x - b.x || a.y - b.y || (a.id < b.id ? -1 : 1)).map((n) => n.id);
}

// pathOf draws an edge as a curve through its corners.
export function pathOf(points: [number, number][]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first[0]},${first[1]}`;
  let [x, y] = first;
  for (const [nx, ny] of rest) {
    const half = (nx - x) / 2;
    path += `C${x + half},${y} ${nx - half},${ny} ${nx},${ny}`;
    [x, y] = [nx, ny];
  }
  return path;
}
