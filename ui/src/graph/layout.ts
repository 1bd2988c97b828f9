// Places the nodes of a graph. It is pure, and runs in a web worker: see worker.ts.
import dagre from "@dagrejs/dagre";

export interface Size {
  id: string;
  width: number;
  height: number;
}

export interface Arrow {
  from: string;
  to: string;
  back: boolean;
}

export interface Layout {
  width: number;
  height: number;
  // The centre of each node.
  nodes: { id: string; x: number; y: number }[];
  // The corners of each edge, from its first node to its second one.
  edges: { from: string; to: string; points: [number, number][] }[];
}

// layOut returns places in whole numbers that depend only on the graph. Edges that close a cycle are drawn, but do
// not influence the places of nodes.
export function layOut(nodes: Size[], edges: Arrow[]): Layout {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 64, marginx: 24, marginy: 24, ranker: "tight-tree" });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id, width, height } of nodes) graph.setNode(id, { width, height });
  for (const { from, to, back } of edges) if (!back) graph.setEdge(from, to);
  dagre.layout(graph);
  const placed = nodes.map(({ id }) => {
    const { x = 0, y = 0 } = graph.node(id) as { x?: number; y?: number };
    return { id, x: Math.round(x), y: Math.round(y) };
  });
  const at = new Map(placed.map((n) => [n.id, n]));
  const sizes = new Map(nodes.map((n) => [n.id, n]));
  const label = graph.graph() as { width?: number; height?: number };
  return {
    width: Math.ceil(label.width ?? 0),
    height: Math.ceil(label.height ?? 0),
    nodes: placed,
    edges: edges.map(({ from, to, back }) => {
      const [a, b] = [at.get(from), at.get(to)];
      const [left, right] = [(sizes.get(from)?.width ?? 0) / 2, (sizes.get(to)?.width ?? 0) / 2];
      const start: [number, number] = [(a?.x ?? 0) + left, a?.y ?? 0];
      const end: [number, number] = [(b?.x ?? 0) - right, b?.y ?? 0];
      const between = back
        ? []
        : ((graph.edge(from, to) as { points?: { x: number; y: number }[] }).points ?? [])
            .slice(1, -1)
            .map((p): [number, number] => [Math.round(p.x), Math.round(p.y)]);
      return { from, to, points: [start, ...between, end] };
    }),
  };
}
