import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useState } from "react";
import { gone } from "../api/client";
import { useAsset, useRuns } from "../api/queries";
import type { Asset } from "../api/types";
import { bytes, count, plural } from "../app/format";
import { useCommands } from "../app/keys";
import type { assetTabs } from "../app/router";
import { Badge, Button, Card, Empty, Problem, Skeleton, TabPanel, Tabs, Time } from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { highlight } from "../parts/sql";
import table from "../parts/table.module.css";
import css from "./asset.module.css";
import { Partitions } from "./assetpartitions";
import { health } from "./assets";
import page from "./page.module.css";
import { RunsTable } from "./runs";

// The code of these tabs is loaded when a person opens them.
const Data = lazy(() => import("./assetdata").then((m) => ({ default: m.Data })));
const Checks = lazy(() => import("./assetchecks").then((m) => ({ default: m.Checks })));
const Lineage = lazy(() => import("./assetgraph").then((m) => ({ default: m.Lineage })));

type Tab = (typeof assetTabs)[number];

export function AssetPage() {
  const { namespace, name } = useParams({ from: "/assets/$namespace/$name" });
  const key = `${namespace}/${name}`;
  const { data, error, refetch } = useAsset(key);
  if (error && (!data || gone(error))) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton lines={12} />;
  return <Loaded key={key} asset={data} />;
}

// tabSearch keeps the chosen partition for the tabs that show it.
function tabSearch(tab: Tab, partition: string | undefined) {
  const kept = partition !== undefined && (tab === "data" || tab === "partitions") ? { partition } : {};
  return tab === "partitions" ? kept : { ...kept, tab };
}

function AssetLink({ of }: { of: string }) {
  const [namespace = "", name = ""] = of.split("/");
  return (
    <Link to="/assets/$namespace/$name" params={{ namespace, name }}>
      <bdi>{of}</bdi>
    </Link>
  );
}

const list = (keys: string[]) => keys.map((key, i) => [i > 0 && ", ", <AssetLink key={key} of={key} />]);

// reason describes the state of the asset and its cause in one sentence.
export function reason(a: Asset): string {
  const { status } = a;
  if (a.problem) return a.problem;
  if (!status) return a.status_problem || "The status of the partitions is unknown.";
  const failure = a.failures[0];
  if (failure) {
    const what = a.partitions ? `${plural(status.failed, "partition")} failed` : "The newest task failed";
    return `${what}: ${failure.error}`;
  }
  if (!a.partitions) {
    if (status.missing) return "It has never been materialized.";
    return status.stale
      ? "Its inputs or its code have changed since it was made."
      : "It is up to date with its inputs and its code.";
  }
  const parts = [`${count(status.fresh)} of ${plural(a.expected, "partition")} fresh`];
  if (status.stale) parts.push(`${count(status.stale)} stale`);
  if (status.missing) parts.push(`${count(status.missing)} missing`);
  if (status.failed) parts.push(`${count(status.failed)} failed`);
  return `${parts.join(", ")}.`;
}

function Loaded({ asset }: { asset: Asset }) {
  const search = useSearch({ from: "/assets/$namespace/$name" });
  const navigate = useNavigate({ from: "/assets/$namespace/$name" });
  const [starting, setStarting] = useState(false);
  const { tone, text } = health(asset);
  const tab: Tab = search.tab ?? "partitions";
  useCommands([
    {
      keys: "Escape",
      label: "Close the partition",
      run: () => void navigate({ search: ({ partition: _, ...rest }) => rest, replace: true }),
    },
  ]);
  const labels: Record<Tab, string> = {
    partitions: asset.partitions ? "Partitions" : "Output",
    data: "Data",
    lineage: "Lineage",
    runs: "Runs",
    checks: `Checks ${asset.checks.length || ""}`,
    schema: "Schema",
    code: "Code",
  };
  return (
    <>
      <div className={page.head}>
        <h1>
          <bdi>{asset.asset_key}</bdi>
        </h1>
        <Badge tone={tone}>{text}</Badge>
        <div className={page.spacer} />
        <Button kind="primary" icon="runs" onClick={() => setStarting(true)}>
          Run
        </Button>
      </div>
      <p className={css.reason}>{reason(asset)}</p>
      {asset.description && <p style={{ marginBottom: 12 }}>{asset.description}</p>}
      <div className={css.lineage}>
        {asset.depends_on.length > 0 && <span>reads {list(asset.depends_on)}</span>}
        {asset.read_by.length > 0 && <span>read by {list(asset.read_by)}</span>}
        <span>
          <code>{asset.file}</code>
        </span>
        {asset.row_count > 0 && (
          <span>
            {plural(asset.row_count, "row")}, {bytes(asset.byte_size)}
          </span>
        )}
        {asset.owners.length > 0 && <span>owned by {asset.owners.join(", ")}</span>}
        {asset.tags.length > 0 && <span>{asset.tags.map((tag) => `#${tag}`).join(" ")}</span>}
        {asset.last_materialized_at && (
          <span>
            made <Time at={asset.last_materialized_at} />
          </span>
        )}
      </div>
      <Card>
        <Tabs
          label="About the asset"
          value={tab}
          items={(Object.keys(labels) as Tab[]).map((id) => ({ id, label: labels[id] }))}
          onChange={(id) => void navigate({ search: tabSearch(id as Tab, search.partition), replace: true })}
        />
        <TabPanel id={tab}>
          {tab === "partitions" && <Partitions asset={asset} />}
          <Suspense fallback={<Skeleton />}>
            {tab === "data" && <Data asset={asset} partition={search.partition} />}
            {tab === "lineage" && <Lineage asset={asset.asset_key} />}
            {tab === "checks" && <Checks asset={asset} />}
          </Suspense>
          {tab === "runs" && <AssetRuns asset={asset.asset_key} />}
          {tab === "schema" && <Schema asset={asset} />}
          {tab === "code" && <Code asset={asset} />}
        </TabPanel>
      </Card>
      {starting && (
        <RunDialog
          onClose={() => setStarting(false)}
          assets={[asset.asset_key]}
          need={(asset.status?.failed ?? 0) > 0 ? "failed" : "stale"}
        />
      )}
    </>
  );
}

function AssetRuns({ asset }: { asset: string }) {
  const { data, error, refetch } = useRuns({ asset, page_size: 50 });
  if (error) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  if (data.runs.length === 0) {
    return (
      <Empty title="No run has selected this asset by name">
        <p>Runs of all assets, and runs that include this asset as an upstream, are in the list of all runs.</p>
        <Link to="/runs">All runs</Link>
      </Empty>
    );
  }
  return <RunsTable runs={data.runs} />;
}

function Schema({ asset }: { asset: Asset }) {
  if (asset.columns.length === 0) {
    return (
      <Empty title="The columns are not known">
        <p>They come from the newest output. Only an output that is a table has columns.</p>
      </Empty>
    );
  }
  return (
    <div className={table.wrap}>
      {asset.schemas > 1 && (
        <p className={page.pad}>The partitions have {asset.schemas} different schemas. This is the newest one.</p>
      )}
      <table className={table.table}>
        <thead>
          <tr>
            <th scope="col">Column</th>
            <th scope="col">Type</th>
          </tr>
        </thead>
        <tbody>
          {asset.columns.map((column) => (
            <tr key={column.name}>
              <td>
                <bdi>{column.name}</bdi>
              </td>
              <td>
                <code>{column.type}</code>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Code({ asset }: { asset: Asset }) {
  if (!asset.code) return <Empty title="The asset has no code" />;
  const sql = asset.kind === "sql";
  return (
    <>
      <p className={css.codeHead}>
        <span>{sql ? "Query in SQL" : "Command, one argument per line"}</span>
        <code>{asset.file}</code>
        <span>{plural(asset.code.trimEnd().split("\n").length, "line")}</span>
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard */}
      <pre className={css.code} tabIndex={0}>
        <code>
          {sql
            ? highlight(asset.code).map((token, i) => (
                <span key={i} className={token.kind ? css[token.kind] : undefined}>
                  {token.text}
                </span>
              ))
            : asset.code}
        </code>
      </pre>
    </>
  );
}
