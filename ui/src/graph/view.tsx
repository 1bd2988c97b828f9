import { Link, useNavigate } from "@tanstack/react-router";
import { select } from "d3-selection";
import { type D3ZoomEvent, type ZoomBehavior, zoom, zoomIdentity } from "d3-zoom";
import { type KeyboardEvent, memo, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { AssetGraph, AssetGraphNode } from "../api/types";
import { count, plural } from "../app/format";
import { useCommands } from "../app/keys";
import { Icon } from "../parts/icons";
import { Button, Problem, Shape, Skeleton } from "../parts/parts";
import type { Tone } from "../parts/status";
import css from "./graph.module.css";
import type { Layout } from "./layout";
import { useLayout } from "./uselayout";
import { inOrder, pathOf, step, type Way } from "./walk";

const width = 204;
const height = 70;
const furthest = 0.08; // a graph that would be smaller begins with a part of it, and only its button shows it as a whole
const nearest = 2;
const far = 0.7; // below this scale, a node shows namespace and name only, in larger letters
const thinnest = 1.3; // the least width of an edge, in pixels: it is greater at small scales
const furtherAway = 0.5; // below this scale, a node shows its name only
const small = 600; // the greatest width of a small screen, in pixels
const readable = 0.75;
const legible = 0.2; // below this scale, a graph on a small screen is a pattern without names
const largest = 30; // the greatest size of these letters, in pixels: a node has room for two lines

export const healthTone: Record<AssetGraphNode["health"], Tone> = {
  failed: "failed",
  stale: "stale",
  missing: "waiting",
  unknown: "waiting",
  fresh: "fresh",
};
const order = ["failed", "stale", "missing", "unknown", "fresh"] as const;

// state describes the health of a node in a few words.
function state(node: AssetGraphNode): string {
  if (node.kind === "group") {
    return order.flatMap((h) => (node.health_counts[h] ? `${count(node.health_counts[h])} ${h}` : [])).join(", ");
  }
  const p = node.partitions;
  if (!p || node.expected <= 1) return node.health;
  if (node.health === "fresh") return plural(node.expected, "partition");
  const parts = [
    [p.failed, "failed"],
    [p.stale, "stale"],
    [p.missing, "missing"],
  ] as const;
  return parts.flatMap(([n, word]) => (n ? `${count(n)} ${word}` : [])).join(", ");
}

// fittingScale returns the scale at which a frame has room for the whole graph.
const fittingScale = (frame: HTMLElement, graph: Layout) =>
  Math.min(1, frame.clientWidth / graph.width, frame.clientHeight / graph.height);

const keysOf: Record<string, Way> = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };

// GraphView draws a graph. Nodes are links in the order of the data flow, so that the graph is a list for a screen reader.
export function GraphView({
  graph,
  dimmed,
  centre,
  height: tall,
  onExpand,
  onFocus,
}: {
  graph: AssetGraph;
  dimmed?: (node: AssetGraphNode) => boolean;
  centre?: string;
  height: string;
  onExpand?: (id: string) => void;
  onFocus?: (id: string) => void;
}) {
  const sizes = useMemo(() => graph.nodes.map(({ id }) => ({ id, width, height })), [graph.nodes]);
  const { layout, error, again } = useLayout(graph.graph_hash, sizes, graph.edges);
  const frame = useRef<HTMLDivElement>(null);
  const plane = useRef<HTMLDivElement>(null);
  const zooming = useRef<ZoomBehavior<HTMLDivElement, unknown>>(undefined);
  const [selected, setSelected] = useState<string>();
  const [hovered, setHovered] = useState<string>();
  const navigate = useNavigate();

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const behavior = zoom<HTMLDivElement, unknown>()
      .scaleExtent([furthest, nearest])
      // The wheel scrolls the page. With Ctrl or Meta, the wheel zooms.
      .filter((event: Event) => {
        if (event instanceof WheelEvent) return event.ctrlKey || event.metaKey;
        return !(event instanceof MouseEvent) || event.button === 0;
      })
      .on("zoom", ({ transform }: D3ZoomEvent<HTMLDivElement, unknown>) => {
        if (plane.current)
          plane.current.style.transform = `translate(${transform.x}px,${transform.y}px) scale(${transform.k})`;
        element.dataset.far = transform.k < furtherAway ? "name" : String(transform.k < far);
        element.style.setProperty("--name", `${Math.min(largest, Math.round(11 / transform.k))}px`);
        element.style.setProperty("--line", `${Math.max(thinnest, Math.round(1.6 / transform.k) / 2)}px`);
      });
    zooming.current = behavior;
    select(element).call(behavior).on("dblclick.zoom", null);
    return () => void select(element).on(".zoom", null);
  }, []);

  const showAll = () => {
    const element = frame.current;
    if (!element || !layout || !zooming.current) return;
    const [w, h] = [element.clientWidth, element.clientHeight];
    const k = fittingScale(element, layout);
    zooming.current.scaleExtent([Math.min(furthest, k), nearest]);
    const to = zoomIdentity.translate((w - layout.width * k) / 2, (h - layout.height * k) / 2).scale(k);
    select(element).call(zooming.current.transform, to);
  };
  // showStart shows a part of a graph that is too large for the screen at a readable scale: the part around a node, or the
  // start of the graph if there is no node.
  const showStart = (node: { x: number; y: number } | undefined) => {
    const element = frame.current;
    if (!element || !layout || !zooming.current) return;
    const [w, h] = [element.clientWidth, element.clientHeight];
    const x = node ? w / 2 - node.x * readable : 0;
    const y = h / 2 - (node?.y ?? layout.height / 2) * readable;
    select(element).call(zooming.current.transform, zoomIdentity.translate(x, y).scale(readable));
  };
  const scaleBy = (factor: number) => {
    if (frame.current && zooming.current) select(frame.current).call(zooming.current.scaleBy, factor);
  };
  // reveal moves the graph until a node is inside the frame.
  const reveal = (id: string) => {
    const element = frame.current;
    const node = layout?.nodes.find((n) => n.id === id);
    if (!element || !node || !zooming.current) return;
    const now = (element as { __zoom?: { k: number; x: number; y: number } }).__zoom ?? zoomIdentity;
    const [x, y] = [node.x * now.k + now.x, node.y * now.k + now.y];
    const [mx, my] = [(width / 2) * now.k + 12, (height / 2) * now.k + 12];
    const dx = x < mx ? mx - x : x > element.clientWidth - mx ? element.clientWidth - mx - x : 0;
    const dy = y < my ? my - y : y > element.clientHeight - my ? element.clientHeight - my - y : 0;
    if (dx || dy) select(element).call(zooming.current.translateBy, dx / now.k, dy / now.k);
  };

  // After a new layout, the selected node keeps its place. If no node is selected, the view shows the whole graph.
  const before = useRef<Layout>(undefined);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only a new layout moves the view
  useLayoutEffect(() => {
    const element = frame.current;
    const old = before.current;
    before.current = layout;
    if (!element || !layout || !zooming.current || old === layout) return;
    const kept = selected ?? centre;
    const [from, to] = [old, layout].map((l) => l?.nodes.find((n) => n.id === kept));
    if (from && to) select(element).call(zooming.current.translateBy, from.x - to.x, from.y - to.y);
    else if (fittingScale(element, layout) < (element.clientWidth < small ? legible : furthest)) showStart(to);
    else showAll();
  }, [layout]);
  useCommands([
    { keys: "+", label: "Graph: zoom in", run: () => scaleBy(1.4) },
    { keys: "-", label: "Graph: zoom out", run: () => scaleBy(1 / 1.4) },
    { keys: "0", label: "Graph: show the whole graph", run: showAll },
    ...(onExpand ? [{ keys: "e", label: "Graph: open the group", run: () => selected && onExpand(selected) }] : []),
    ...(onFocus
      ? [{ keys: "f", label: "Graph: show only assets around this one", run: () => selected && onFocus(selected) }]
      : []),
  ]);

  const ids = useMemo(() => (layout ? inOrder(layout) : []), [layout]);
  const byId = useMemo(() => new Map(graph.nodes.map((n) => [n.id, n])), [graph.nodes]);
  const at = useMemo(() => new Map(layout?.nodes.map((n) => [n.id, n])), [layout]);
  const degree = useMemo(() => {
    const reads = new Map<string, number>();
    const readBy = new Map<string, number>();
    for (const e of graph.edges) {
      reads.set(e.to, (reads.get(e.to) ?? 0) + e.count);
      readBy.set(e.from, (readBy.get(e.from) ?? 0) + e.count);
    }
    return { reads, readBy };
  }, [graph.edges]);

  const onKeyDown = (event: KeyboardEvent) => {
    const way = keysOf[event.key];
    if (!way || !layout || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = step(layout, selected ?? ids[0] ?? "", way);
    if (next) document.getElementById(`node ${next}`)?.focus({ preventScroll: true });
  };
  const open = (node: AssetGraphNode) => {
    if (node.kind === "group") return onExpand?.(node.id);
    const [namespace = "", name = ""] = node.id.split("/");
    void navigate({ to: "/assets/$namespace/$name", params: { namespace, name } });
  };
  // The node under the pointer or with the focus, whose whole name is readable at any scale.
  const told = byId.get(hovered ?? "") ?? byId.get(selected ?? "");
  const tabbable = selected !== undefined && at.has(selected) ? selected : (centre ?? ids[0]);

  return (
    <div className={css.outer}>
      {error && <Problem error={error} retry={again} />}
      <div
        ref={frame}
        className={css.frame}
        style={{ height: tall }}
        onKeyDown={onKeyDown}
        onScroll={(event) => event.currentTarget.scrollTo(0, 0)}
      >
        {!layout && !error && <Skeleton />}
        <div ref={plane} className={css.plane}>
          {layout && (
            <>
              <Edges graph={graph} layout={layout} selected={selected} />
              <ul aria-label={`Graph of ${plural(graph.nodes.length, "node")}, in the order of the data flow`}>
                {ids.map((id) => {
                  const node = byId.get(id);
                  const place = at.get(id);
                  if (!node || !place) return null;
                  const reads = (degree.reads.get(id) ?? 0) + node.more_upstream;
                  const readBy = (degree.readBy.get(id) ?? 0) + node.more_downstream;
                  return (
                    <Node
                      key={id}
                      node={node}
                      x={place.x}
                      y={place.y}
                      centre={id === centre}
                      dim={dimmed?.(node) ?? false}
                      tabbable={id === tabbable}
                      reads={reads}
                      readBy={readBy}
                      onSelect={() => {
                        setSelected(id);
                        reveal(id);
                      }}
                      onHover={setHovered}
                      onOpen={() => open(node)}
                    />
                  );
                })}
              </ul>
            </>
          )}
        </div>
      </div>
      {told && (
        <div className={css.tip} aria-hidden="true">
          <Shape tone={healthTone[told.health]} />
          <bdi>{told.kind === "group" ? `${told.label}, ${plural(told.assets, "asset")}` : told.id}</bdi>
          <span>{state(told)}</span>
        </div>
      )}
      <div className={css.tools}>
        <Button kind="icon" icon="plus" aria-label="Closer" onClick={() => scaleBy(1.4)} />
        <Button kind="icon" icon="minus" aria-label="Further away" onClick={() => scaleBy(1 / 1.4)} />
        <Button kind="icon" icon="fit" aria-label="The whole graph" onClick={showAll} />
      </div>
    </div>
  );
}

const Edges = memo(function Edges({
  graph,
  layout,
  selected,
}: {
  graph: AssetGraph;
  layout: Layout;
  selected: string | undefined;
}) {
  const counts = new Map(graph.edges.map((e) => [`${e.from} ${e.to}`, e]));
  return (
    <svg className={css.edges} width={layout.width} height={layout.height} aria-hidden="true">
      <defs>
        <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
          <path d="M1 1l6 3-6 3" fill="none" stroke="context-stroke" strokeWidth="1.4" />
        </marker>
      </defs>
      {layout.edges.map((e) => {
        const edge = counts.get(`${e.from} ${e.to}`);
        const middle = e.points[Math.floor(e.points.length / 2)];
        const previous = e.points[Math.floor(e.points.length / 2) - 1];
        const bound = e.from === selected || e.to === selected;
        return (
          <g key={`${e.from} ${e.to}`} className={bound ? css.bound : undefined}>
            <path d={pathOf(e.points)} className={edge?.back ? css.back : undefined} markerEnd="url(#arrow)" />
            {edge && edge.count > 1 && middle && previous && (
              <text x={(middle[0] + previous[0]) / 2} y={(middle[1] + previous[1]) / 2 - 5}>
                {count(edge.count)}
              </text>
            )}
          </g>
        );
      })}
    </svg>
  );
});

interface NodeProps {
  node: AssetGraphNode;
  x: number;
  y: number;
  centre: boolean;
  dim: boolean;
  tabbable: boolean;
  reads: number;
  readBy: number;
  onSelect: () => void;
  onHover: (id: string | undefined) => void;
  onOpen: () => void;
}

const same = (a: NodeProps, b: NodeProps) =>
  a.node === b.node &&
  a.x === b.x &&
  a.y === b.y &&
  a.centre === b.centre &&
  a.dim === b.dim &&
  a.tabbable === b.tabbable &&
  a.reads === b.reads &&
  a.readBy === b.readBy;

const Node = memo(function Node({
  node,
  x,
  y,
  centre,
  dim,
  tabbable,
  reads,
  readBy,
  onSelect,
  onHover,
  onOpen,
}: NodeProps) {
  const text = state(node);
  const group = node.kind === "group";
  const [namespace = "", name = ""] = group ? ["", node.label] : node.id.split("/");
  // The name for screen readers begins with the visible text, so that people can say the visible text to control the
  // page.
  const second = plural(node.assets, "asset");
  const label = [
    group ? `${name} ${second} ${text}` : `${namespace}/ ${name} ${text}`,
    ...(text === node.health || group ? [] : [node.health]),
    ...(group ? ["group"] : []),
    `reads ${reads}`,
    `read by ${readBy}`,
  ].join(", ");
  const content = (
    <>
      {!group && (
        <>
          <span className={css.space}>
            <bdi>{namespace}/</bdi>
          </span>{" "}
        </>
      )}
      <span className={css.name}>
        <Shape tone={healthTone[node.health]} />
        <bdi>{name}</bdi>
      </span>{" "}
      <span className={css.state}>
        {group && <bdi>{second}</bdi>} <span style={{ color: `var(--${healthTone[node.health]})` }}>{text}</span>
      </span>
    </>
  );
  const shared = {
    id: `node ${node.id}`,
    className: [css.node, group && css.group, centre && css.centre, dim && css.dim].filter(Boolean).join(" "),
    "aria-label": label,
    tabIndex: tabbable ? 0 : -1,
    onFocus: onSelect,
    onPointerEnter: () => onHover(node.id),
    onPointerLeave: () => onHover(undefined),
    style: { borderInlineStartColor: `var(--${healthTone[node.health]})` },
  };
  return (
    <li style={{ left: x - width / 2, top: y - height / 2 }}>
      {node.more_upstream > 0 && (
        <small
          className={css.upstream}
          title={`reads ${plural(node.more_upstream, "asset")} that the graph does not show`}
        >
          +{node.more_upstream}
        </small>
      )}
      {group ? (
        <button type="button" {...shared} title={`Open ${node.label}`} onClick={onOpen}>
          {content}
          <Icon name="plus" size={13} />
        </button>
      ) : (
        <Link
          to="/assets/$namespace/$name"
          params={{ namespace, name }}
          preload={false}
          draggable={false}
          title={node.id}
          {...shared}
        >
          {content}
        </Link>
      )}
      {node.more_downstream > 0 && (
        <small
          className={css.downstream}
          title={`read by ${plural(node.more_downstream, "asset")} that the graph does not show`}
        >
          +{node.more_downstream}
        </small>
      )}
    </li>
  );
}, same);
