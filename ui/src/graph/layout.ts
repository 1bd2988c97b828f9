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

const margin = 24;
const gap = 18;

// inRows places nodes without edges into rows below a graph of the given size. The rows are as wide as the graph, and
// wider if they would be higher than wide.
function inRows(nodes: Size[], below: { width: number; height: number }): Layout {
  const width = Math.max(0, ...nodes.map((n) => n.width)) + gap;
  const height = Math.max(0, ...nodes.map((n) => n.height)) + gap;
  const widest = Math.max(below.width - 2 * margin, Math.sqrt(2 * nodes.length * width * height));
  const columns = Math.max(1, Math.floor((widest + gap) / width));
  const top = below.height > 0 ? below.height - margin + 2 * gap : margin;
  return {
    width: 2 * margin + Math.min(columns, nodes.length) * width - gap,
    height: top + Math.ceil(nodes.length / columns) * height - gap + margin,
    nodes: nodes.map(({ id }, i) => ({
      id,
      x: Math.round(margin + (i % columns) * width + (width - gap) / 2),
      y: Math.round(top + Math.floor(i / columns) * height + (height - gap) / 2),
    })),
    edges: [],
  };
}

// layOut returns places in whole numbers that depend only on the graph. Edges that close a cycle are drawn, but do
// not influence the places of nodes.
export function layOut(nodes: Size[], edges: Arrow[]): Layout {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    rankdir: "LR",
    nodesep: gap,
    ranksep: 64,
    marginx: margin,
    marginy: margin,
    ranker: "tight-tree",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  const bound = new Set(edges.flatMap(({ from, to }) => [from, to]));
  for (const { id, width, height } of nodes) if (bound.has(id)) graph.setNode(id, { width, height });
  for (const { from, to, back } of edges) if (!back) graph.setEdge(from, to);
  if (bound.size > 0) dagre.layout(graph);
  const label = graph.graph() as { width?: number; height?: number };
  const size = bound.size > 0 ? { width: label.width ?? 0, height: label.height ?? 0 } : { width: 0, height: 0 };
  const alone = nodes.filter(({ id }) => !bound.has(id));
  const rest = alone.length > 0 ? inRows(alone, size) : { ...size, nodes: [] };
  const below = new Map(rest.nodes.map((n) => [n.id, n]));
  const placed = nodes.map(({ id }) => {
    const { x = 0, y = 0 } = below.get(id) ?? (graph.node(id) as { x?: number; y?: number });
    return { id, x: Math.round(x), y: Math.round(y) };
  });
  const at = new Map(placed.map((n) => [n.id, n]));
  const sizes = new Map(nodes.map((n) => [n.id, n]));
  return {
    width: Math.ceil(Math.max(size.width, rest.width)),
    height: Math.ceil(rest.height),
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
