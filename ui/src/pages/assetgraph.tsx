import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { gone } from "../api/client";
import { useGraph } from "../api/queries";
import type { GetAssetGraphRequest } from "../api/types";
import { count, plural } from "../app/format";
import type { graphDepths, graphWays } from "../app/router";
import { GraphView } from "../graph/view";
import { Badge, Button, Card, Empty, Problem, Segmented, Skeleton } from "../parts/parts";
import css from "./assetgraph.module.css";

type Way = (typeof graphWays)[number];
type Depth = (typeof graphDepths)[number];

const between = ","; // keys and groups contain no comma

function WayAndDepth({
  way,
  depth,
  onWay,
  onDepth,
}: {
  way: Way | undefined;
  depth: Depth;
  onWay: (way: Way | undefined) => void;
  onDepth: (depth: Depth) => void;
}) {
  return (
    <>
      <Segmented
        label="Direction"
        value={way ?? ""}
        items={[
          { id: "upstream", label: "Upstream" },
          { id: "", label: "Both" },
          { id: "downstream", label: "Downstream" },
        ]}
        onChange={(id) => onWay(id ? (id as Way) : undefined)}
      />
      <Segmented
        label="Steps"
        value={depth}
        items={[
          { id: "1", label: "1 step" },
          { id: "2", label: "2" },
          { id: "3", label: "3" },
          { id: "100", label: "All" },
        ]}
        onChange={(id) => onDepth(id as Depth)}
      />
    </>
  );
}

function Legend() {
  return (
    <div className={css.legend}>
      <Badge tone="fresh" bare>
        fresh
      </Badge>
      <Badge tone="stale" bare>
        stale
      </Badge>
      <Badge tone="waiting" bare>
        missing
      </Badge>
      <Badge tone="failed" bare>
        failed
      </Badge>
      <span className={css.help}>
        Data flows from left to right. Drag to move, Ctrl and the wheel to zoom, arrow keys to follow edges.
      </span>
    </div>
  );
}

// AssetsGraph shows all assets as a graph, or only the assets around one of them. Assets that the set shown does
// not contain are pale.
export function AssetsGraph({ shown }: { shown: Set<string> | undefined }) {
  const search = useSearch({ from: "/assets" });
  const navigate = useNavigate({ from: "/assets" });
  const open = search.open?.split(between) ?? [];
  const request: GetAssetGraphRequest = search.focus
    ? {
        focus: search.focus,
        depth: Number(search.depth ?? "1"),
        ...(search.way ? { direction: search.way } : {}),
      }
    : { level: search.level === "groups" ? 2 : search.level === "assets" ? 1 : 0, expand: open };
  const { data, error, refetch } = useGraph(request);
  const all = (
    <Button onClick={() => void navigate({ search: ({ focus: _, way: __, depth: ___, ...old }) => old })}>
      Show all assets
    </Button>
  );
  if (error && (!data || gone(error))) {
    return (
      <Card>
        {search.focus && <div className={css.bar}>{all}</div>}
        <Problem error={error} retry={() => void refetch()} />
      </Card>
    );
  }
  if (!data) return <Skeleton lines={10} />;
  const expand = (id: string) => {
    if (!data.nodes.some((n) => n.id === id && n.kind === "group") || open.includes(id)) return;
    void navigate({ search: (old) => ({ ...old, level: "groups", open: [...open, id].join(between) }) });
  };
  const focus = (id: string) => {
    if (data.nodes.some((n) => n.id === id && n.kind === "asset"))
      void navigate({ search: (old) => ({ ...old, focus: id }) });
  };
  return (
    <Card className={css.card}>
      <div className={css.bar}>
        {search.focus ? (
          <>
            <span>
              Around <strong>{search.focus}</strong>
            </span>
            <WayAndDepth
              way={search.way}
              depth={search.depth ?? "1"}
              onWay={(way) => void navigate({ search: ({ way: _, ...old }) => (way ? { ...old, way } : old) })}
              onDepth={(depth) => void navigate({ search: (old) => ({ ...old, depth }) })}
            />
            {all}
          </>
        ) : (
          <>
            <Segmented
              label="Level of detail"
              value={String(data.level)}
              items={[
                { id: "2", label: "Groups" },
                { id: "1", label: "Assets" },
              ]}
              onChange={(id) =>
                void navigate({
                  search: ({ open: _, ...old }) => ({ ...old, level: id === "2" ? "groups" : "assets" }),
                })
              }
            />
            {open.length > 0 && (
              <Button onClick={() => void navigate({ search: ({ open: _, ...old }) => old })}>Close all groups</Button>
            )}
          </>
        )}
        <span className={css.facts}>
          {data.nodes.length === data.assets_total
            ? ""
            : `${search.focus ? count(data.nodes.length) : plural(data.nodes.length, "node")} of ${plural(data.assets_total, "asset")}`}
        </span>
      </div>
      {data.clipped && (
        <p className={css.clipped} role="status">
          {search.focus
            ? "There are more assets at this distance than a graph can show. Choose fewer steps."
            : `A graph shows at most 400 nodes and 1,200 edges, so it shows groups. The project has ${count(data.assets_total)} assets: open a group.`}
        </p>
      )}
      {data.nodes.length === 0 ? (
        <Empty title="The project has no assets yet" />
      ) : (
        <GraphView
          graph={data}
          height="max(360px, calc(100vh - 300px))"
          {...(shown ? { dimmed: (node) => node.kind === "asset" && !shown.has(node.id) } : {})}
          {...(search.focus ? { centre: search.focus } : {})}
          onExpand={expand}
          onFocus={focus}
        />
      )}
      <Legend />
    </Card>
  );
}

// Lineage shows the assets that an asset reads, and the assets that read it.
export function Lineage({ asset }: { asset: string }) {
  const search = useSearch({ from: "/assets/$namespace/$name" });
  const navigate = useNavigate({ from: "/assets/$namespace/$name" });
  const depth = search.depth ?? "2";
  const { data, error, refetch } = useGraph({
    focus: asset,
    depth: Number(depth),
    ...(search.way ? { direction: search.way } : {}),
  });
  if (error && (!data || gone(error))) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton lines={8} />;
  return (
    <>
      <div className={css.bar}>
        <WayAndDepth
          way={search.way}
          depth={depth}
          onWay={(way) =>
            void navigate({ search: ({ way: _, ...old }) => (way ? { ...old, way } : old), replace: true })
          }
          onDepth={(to) => void navigate({ search: (old) => ({ ...old, depth: to }), replace: true })}
        />
        <span className={css.facts}>
          <Link to="/assets" search={{ view: "graph" }}>
            Graph of all assets
          </Link>
        </span>
      </div>
      {data.clipped && (
        <p className={css.clipped} role="status">
          There are more assets at this distance than a graph can show. Choose fewer steps.
        </p>
      )}
      <GraphView graph={data} centre={asset} height="clamp(260px, 50vh, 520px)" />
      <Legend />
    </>
  );
}
