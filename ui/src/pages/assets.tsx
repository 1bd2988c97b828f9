import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useMemo, useState } from "react";
import { useAssets } from "../api/queries";
import type { Asset } from "../api/types";
import { bytes, count, plural } from "../app/format";
import { useCommands } from "../app/keys";
import { assetFilters } from "../app/router";
import { Icon } from "../parts/icons";
import { Badge, Bar, Button, Card, Empty, inputClass, Problem, Segmented, Skeleton, Time } from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import type { Tone } from "../parts/status";
import table from "../parts/table.module.css";
import css from "./assets.module.css";
import page from "./page.module.css";

// The graph is loaded when a person asks for it.
const AssetsGraph = lazy(() => import("./assetgraph").then((m) => ({ default: m.AssetsGraph })));

const atOnce = 500; // the number of assets that are drawn, and that are added on demand: more would slow the page down

export interface Health {
  tone: Tone;
  text: string;
}

// health describes the state of an asset in a few words. Problems that need a person come first.
export function health(a: Asset): Health {
  const status = a.status;
  if (a.problem) return { tone: "failed", text: "has a problem" };
  if (!status) return { tone: "waiting", text: "status unknown" };
  if (status.failed > 0) return { tone: "failed", text: a.expected > 1 ? `${count(status.failed)} failed` : "failed" };
  if (status.fresh + status.stale === 0) return { tone: "waiting", text: "missing" };
  if (status.stale > 0) return { tone: "stale", text: a.expected > 1 ? `${count(status.stale)} stale` : "stale" };
  if (status.missing > 0) return { tone: "waiting", text: `${count(status.missing)} missing` };
  return { tone: "fresh", text: "fresh" };
}

export function matches(a: Asset, show: (typeof assetFilters)[number] | undefined, typed: string): boolean {
  const text = [a.asset_key, a.description, ...a.tags, ...a.owners].join(" ").toLowerCase();
  if (
    !typed
      .toLowerCase()
      .split(/\s+/)
      .every((word) => text.includes(word))
  )
    return false;
  switch (show) {
    case "failed":
      return (a.status?.failed ?? 0) > 0 || a.problem !== "";
    case "stale":
      return (a.status?.stale ?? 0) > 0;
    case "missing":
      return (a.status?.missing ?? 0) > 0;
    case "fresh":
      return health(a).tone === "fresh";
    default:
      return true;
  }
}

export function Assets() {
  const { data, error, refetch } = useAssets();
  const search = useSearch({ from: "/assets" });
  const navigate = useNavigate({ from: "/assets" });
  const [starting, setStarting] = useState(false);
  const typed = search.q ?? "";
  const setView = (id: string) =>
    void navigate({ search: ({ view: _, ...rest }) => (id ? { ...rest, view: "graph" } : rest), replace: true });
  useCommands([{ keys: "v", label: "List or graph", run: () => setView(search.view ? "" : "graph") }]);
  const shown = useMemo(
    () => (data?.assets ?? []).filter((a) => matches(a, search.show, typed)),
    [data, search.show, typed],
  );
  const [drawn, setDrawn] = useState(atOnce);
  const groups = useMemo(() => {
    const by = new Map<string, { total: number; assets: Asset[] }>();
    shown.forEach((asset, i) => {
      const namespace = asset.asset_key.split("/")[0] ?? "";
      const group = by.get(namespace) ?? { total: 0, assets: [] };
      group.total++;
      if (i < drawn) group.assets.push(asset);
      by.set(namespace, group);
    });
    return [...by].filter(([, group]) => group.assets.length > 0);
  }, [shown, drawn]);
  return (
    <>
      <div className={page.head}>
        <h1>Assets</h1>
        {data && <span className={page.sub}>{plural(data.assets.length, "asset")}</span>}
        <div className={page.spacer} />
        <Segmented
          label="View"
          value={search.view ?? ""}
          items={[
            { id: "", label: "List", icon: "table" },
            { id: "graph", label: "Graph", icon: "graph" },
          ]}
          onChange={setView}
        />
        <Button kind="primary" icon="runs" onClick={() => setStarting(true)}>
          Run stale assets
        </Button>
      </div>
      <div className={page.filters}>
        <input
          type="search"
          data-search
          className={`${inputClass} ${page.search}`}
          placeholder="Search by key, tag or owner"
          aria-label="Search assets by key, tag or owner"
          value={typed}
          onChange={(event) => {
            const q = event.target.value;
            void navigate({ search: ({ q: _, ...rest }) => (q ? { ...rest, q } : rest), replace: true });
          }}
          onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
        />
        <Segmented
          label="Show assets"
          value={search.show ?? ""}
          items={[
            { id: "", label: "All" },
            ...assetFilters.map((id) => ({ id, label: id.charAt(0).toUpperCase() + id.slice(1) })),
          ]}
          onChange={(id) =>
            void navigate({
              search: ({ show: _, ...rest }) => (id ? { ...rest, show: id as (typeof assetFilters)[number] } : rest),
              replace: true,
            })
          }
        />
      </div>
      {error && <Problem error={error} retry={() => void refetch()} />}
      {search.view === "graph" && (
        <Suspense fallback={<Skeleton lines={10} />}>
          <AssetsGraph shown={search.show || typed ? new Set(shown.map((a) => a.asset_key)) : undefined} />
        </Suspense>
      )}
      <Card className={search.view === "graph" ? css.hidden : undefined}>
        {!data && !error && <Skeleton lines={10} />}
        {data && shown.length === 0 && (
          <Empty title={data.assets.length > 0 ? "No asset matches" : "The project has no assets yet"}>
            {data.assets.length > 0 ? (
              <Link to="/assets">Show all assets</Link>
            ) : (
              <p>
                Write the first asset, a query or a command, into a file in <code>assets/</code>.
              </p>
            )}
          </Empty>
        )}
        {shown.length > 0 && (
          <div className={`${css.item} ${css.headings}`} aria-hidden="true">
            <span>Asset</span>
            <span>Partitions</span>
            <span>State</span>
            <span className={css.right}>Rows</span>
            <span className={css.right}>Made</span>
          </div>
        )}
        {groups.map(([namespace, { total, assets }]) => (
          <details key={namespace} className={css.group} open>
            <summary>
              <Icon name="right" size={13} />
              <bdi>{namespace}</bdi> <small>{plural(total, "asset")}</small>
            </summary>
            <ul>
              {assets.map((asset) => (
                <Item key={asset.asset_key} asset={asset} />
              ))}
            </ul>
          </details>
        ))}
        {shown.length > drawn && (
          <p className={page.pad}>
            <Button data-row onClick={() => setDrawn(drawn + atOnce)}>
              Show more of {plural(shown.length - drawn, "other asset")}
            </Button>
          </p>
        )}
      </Card>
      {starting && <RunDialog onClose={() => setStarting(false)} need="stale" />}
    </>
  );
}

function Item({ asset }: { asset: Asset }) {
  const [namespace = "", name = ""] = asset.asset_key.split("/");
  const { tone, text } = health(asset);
  const status = asset.status;
  const counts = status
    ? `${count(status.fresh)} fresh, ${count(status.stale)} stale, ${count(status.missing)} missing, ${count(status.failed)} failed`
    : `${count(asset.materialized)} materialized`;
  return (
    <li className={css.item}>
      <span className={css.name}>
        <Link to="/assets/$namespace/$name" params={{ namespace, name }} className={table.cover} data-row>
          <bdi>{name}</bdi>
        </Link>
        <small>{asset.description || asset.kind}</small>
      </span>
      <span>
        {asset.partitions && status ? (
          <>
            <Bar
              label={counts}
              parts={[
                { tone: "fresh", count: status.fresh },
                { tone: "stale", count: status.stale },
                { tone: "waiting", count: status.missing },
                { tone: "failed", count: status.failed },
              ]}
            />
            <span className={table.muted}>
              {count(status.fresh)} of {count(asset.expected)} fresh
            </span>
          </>
        ) : (
          <span className={table.muted}>{asset.partitions ? counts : "no partitions"}</span>
        )}
      </span>
      <span>
        <Badge tone={tone}>{text}</Badge>
      </span>
      <span className={css.right} data-label="Rows" title={asset.byte_size ? bytes(asset.byte_size) : ""}>
        {asset.row_count ? count(asset.row_count) : ""}
      </span>
      <span className={css.right} data-label="Made">
        {asset.last_materialized_at ? <Time at={asset.last_materialized_at} /> : ""}
      </span>
    </li>
  );
}
