import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useState } from "react";
import { useAsset, usePartition, usePartitions, useRuns, useStrip } from "../api/queries";
import type { Asset, PartitionSummaryBucket } from "../api/types";
import { bytes, count, plural, shortID } from "../app/format";
import { useCommands } from "../app/keys";
import type { assetTabs } from "../app/router";
import { StripLegend, StripView } from "../canvas/strip";
import type { Need } from "../parts/command";
import {
  Badge,
  Button,
  Card,
  Command,
  Empty,
  Problem,
  Segmented,
  Skeleton,
  TabPanel,
  Tabs,
  Time,
} from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { highlight } from "../parts/sql";
import type { Tone } from "../parts/status";
import table from "../parts/table.module.css";
import css from "./asset.module.css";
import { health } from "./assets";
import page from "./page.module.css";
import { RunsTable } from "./runs";

// What these tabs need is loaded when a person opens them.
const Data = lazy(() => import("./assetdata").then((m) => ({ default: m.Data })));
const Lineage = lazy(() => import("./assetgraph").then((m) => ({ default: m.Lineage })));

type Tab = (typeof assetTabs)[number];

export const partitionTone: Record<string, Tone> = { fresh: "fresh", stale: "stale", missing: "waiting" };

export function AssetPage() {
  const { namespace, name } = useParams({ from: "/assets/$namespace/$name" });
  const key = `${namespace}/${name}`;
  const { data, error, refetch } = useAsset(key);
  if (error && !data) return <Problem error={error} retry={() => void refetch()} />;
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

// reason says in one sentence how the asset is, and why.
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
          {(tab === "data" || tab === "lineage") && (
            <Suspense fallback={<Skeleton />}>
              {tab === "data" ? (
                <Data asset={asset} partition={search.partition} />
              ) : (
                <Lineage asset={asset.asset_key} />
              )}
            </Suspense>
          )}
          {tab === "runs" && <AssetRuns asset={asset.asset_key} />}
          {tab === "checks" && <Checks asset={asset} />}
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

function Partitions({ asset }: { asset: Asset }) {
  const search = useSearch({ from: "/assets/$namespace/$name" });
  const navigate = useNavigate({ from: "/assets/$namespace/$name" });
  const { data, error, refetch } = usePartitions(asset.asset_key, search.status, search.page);
  const chosen = search.partition === undefined ? undefined : values(search.partition);
  const only = asset.dimensions.length === 1 ? asset.dimensions[0] : undefined;
  const select = (bucket: PartitionSummaryBucket) => {
    if (only === undefined || bucket.from !== bucket.to) return;
    const partition = JSON.stringify({ [only]: bucket.from });
    void navigate({ search: (old) => ({ ...old, partition }), replace: true });
  };
  return (
    <>
      {asset.dimensions.map((dimension) => (
        <DimensionStrip
          key={dimension}
          asset={asset.asset_key}
          dimension={dimension}
          selected={chosen?.[dimension]}
          onSelect={select}
        />
      ))}
      {asset.dimensions.length > 0 && <StripLegend />}
      {(search.partition !== undefined || !asset.partitions) && (
        <Detail asset={asset.asset_key} partition={search.partition ?? ""} />
      )}
      {asset.failures.length > 0 && (
        <div className={page.pad}>
          <h2>Failed</h2>
          <ul className={css.failures}>
            {asset.failures.slice(0, 8).map((f) => (
              <li key={f.partition_key}>
                <Link to="/runs/$run" params={{ run: f.run_id }} search={{ task: f.task_key }} data-row>
                  <bdi>{f.task_key}</bdi>
                </Link>
                <span>{f.error}</span>
                <Time at={f.at} />
              </li>
            ))}
          </ul>
        </div>
      )}
      {asset.partitions && (
        <>
          <div className={page.pad} style={{ paddingBottom: 4 }}>
            <Segmented
              label="Show partitions"
              value={search.status ?? ""}
              items={[
                { id: "", label: "All" },
                { id: "fresh", label: "Fresh" },
                { id: "stale", label: "Stale" },
                { id: "missing", label: "Missing" },
              ]}
              onChange={(id) =>
                void navigate({
                  search: ({ status: _, page: __, ...rest }) => (id ? { ...rest, status: id as "fresh" } : rest),
                  replace: true,
                })
              }
            />
          </div>
          {error && <Problem error={error} retry={() => void refetch()} />}
          {!data && !error && <Skeleton />}
          {data?.partitions.length === 0 && (
            <Empty title={search.status ? `No partition is ${search.status}` : "No partition is expected yet"} />
          )}
          {data && data.partitions.length > 0 && (
            <div className={table.wrap}>
              <table className={table.table}>
                <thead>
                  <tr>
                    <th scope="col">Partition</th>
                    <th scope="col">State</th>
                    <th scope="col" className={table.num}>
                      Rows
                    </th>
                    <th scope="col" className={table.num}>
                      Size
                    </th>
                    <th scope="col">Run</th>
                    <th scope="col" className={table.num}>
                      Made
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {data.partitions.map((p) => (
                    <tr key={p.partition_key} data-selected={p.partition_key === search.partition}>
                      <td>
                        <Link
                          to="/assets/$namespace/$name"
                          params={(old) => ({ namespace: old.namespace ?? "", name: old.name ?? "" })}
                          search={{ ...search, partition: p.partition_key }}
                          className={table.cover}
                          replace
                          data-row
                        >
                          <bdi>{p.partition}</bdi>
                        </Link>
                      </td>
                      <td>
                        <Badge tone={partitionTone[p.status] ?? "waiting"} bare>
                          {p.status}
                        </Badge>
                      </td>
                      <td className={table.num}>{p.output ? count(p.output.row_count) : ""}</td>
                      <td className={table.num}>{p.output ? bytes(p.output.byte_size) : ""}</td>
                      <td>
                        {p.output && (
                          <Link
                            to="/runs/$run"
                            params={{ run: p.output.run_id }}
                            search={{ task: p.output.task_key }}
                            className={table.above}
                          >
                            {shortID(p.output.run_id)}
                          </Link>
                        )}
                      </td>
                      <td className={table.num}>{p.output ? <Time at={p.output.at} /> : ""}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
              <div className={table.more}>
                {search.page && (
                  <Link to="." search={({ page: _, ...rest }) => rest}>
                    First partitions
                  </Link>
                )}
                {data.next_page_token && (
                  <Link to="." search={(old) => ({ ...old, page: data.next_page_token })}>
                    More partitions
                  </Link>
                )}
              </div>
            </div>
          )}
        </>
      )}
    </>
  );
}

// values returns the value of each dimension of a partition key.
export function values(key: string): Record<string, string> {
  try {
    return JSON.parse(key) as Record<string, string>;
  } catch {
    return {};
  }
}

function DimensionStrip({
  asset,
  dimension,
  selected,
  onSelect,
}: {
  asset: string;
  dimension: string;
  selected: string | undefined;
  onSelect: (bucket: PartitionSummaryBucket) => void;
}) {
  const { data, error } = useStrip(asset, dimension);
  if (error) return <Problem error={error} />;
  if (!data) return <Skeleton lines={2} />;
  return <StripView summary={data} selected={selected} onSelect={onSelect} />;
}

// Detail explains a partition: what it holds, and why it is missing, fresh or stale.
function Detail({ asset, partition }: { asset: string; partition: string }) {
  const { data, error } = usePartition(asset, partition);
  const [need, setNeed] = useState<Need>();
  if (error) return <Problem error={error} />;
  if (!data) return <Skeleton lines={2} />;
  const reasons = [...data.newer, ...data.pending];
  return (
    <div className={css.detail}>
      <div>
        <Badge tone={partitionTone[data.status] ?? "waiting"}>{data.status}</Badge>
        <strong>
          <bdi>{data.partition}</bdi>
        </strong>
        <span>{data.headline}</span>
      </div>
      {reasons.length > 0 && (
        <ul>
          {reasons.map((up) => (
            <li key={up.partition}>
              <bdi>{up.partition}</bdi> is {data.newer.includes(up) ? "newer" : up.status}
              {up.more > 0 && `, and ${count(up.more)} more like it`}
            </li>
          ))}
        </ul>
      )}
      <div>
        {data.holds && (
          <span>
            holds {plural(data.holds.row_count, "row")}, made <Time at={data.holds.at} /> by{" "}
            <Link
              className={css.inText}
              to="/runs/$run"
              params={{ run: data.holds.run_id }}
              search={{ task: data.holds.task_key }}
            >
              run {shortID(data.holds.run_id)}
            </Link>
          </span>
        )}
        <Button icon="runs" onClick={() => setNeed("")}>
          Run this partition
        </Button>
        <Command text={`servo explain '${data.partition}'`} />
      </div>
      {need !== undefined && (
        <RunDialog
          onClose={() => setNeed(undefined)}
          assets={[asset]}
          need={need}
          partitions={selections(data.partition)}
        />
      )}
    </div>
  );
}

// selections returns the selection of a partition, as a run takes it: one for each dimension.
export function selections(task: string): string[] {
  const inside = /\[(.*)\]$/.exec(task)?.[1];
  return inside ? inside.split(/[;,]/).map(decodeURIComponent) : [];
}

function AssetRuns({ asset }: { asset: string }) {
  const { data, error, refetch } = useRuns({ asset, page_size: 50 });
  if (error) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  if (data.runs.length === 0) {
    return (
      <Empty title="No run has named this asset">
        <p>Runs of all assets, and runs that reach it as a dependency, are in the list of all runs.</p>
        <Link to="/runs">All runs</Link>
      </Empty>
    );
  }
  return <RunsTable runs={data.runs} />;
}

function Checks({ asset }: { asset: Asset }) {
  if (asset.checks.length === 0) {
    return (
      <Empty title="The asset has no checks">
        <p>
          Declare <code>checks</code> in its file: they decide whether an output is published.
        </p>
      </Empty>
    );
  }
  const sorted = [...asset.checks].sort((a, b) => Number(b.last === "failed") - Number(a.last === "failed"));
  return (
    <div className={table.wrap}>
      <table className={table.table}>
        <thead>
          <tr>
            <th scope="col">Last</th>
            <th scope="col">Check</th>
            <th scope="col">Severity</th>
            <th scope="col" className={table.num}>
              Passed
            </th>
            <th scope="col" className={table.num}>
              Failed
            </th>
            <th scope="col" className={table.num}>
              When
            </th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((c) => (
            <tr key={c.check}>
              <td>
                <Badge tone={c.last === "failed" ? "failed" : c.last === "passed" ? "fresh" : "waiting"}>
                  {c.last || "no result yet"}
                </Badge>
              </td>
              <td className={table.wide}>
                <strong>{c.check}</strong>
                {c.message && <div className={table.muted}>{c.message}</div>}
              </td>
              <td>{c.severity.toLowerCase()}</td>
              <td className={table.num}>{count(c.passed)}</td>
              <td className={table.num}>{count(c.failed)}</td>
              <td className={table.num}>{c.last_at ? <Time at={c.last_at} /> : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Schema({ asset }: { asset: Asset }) {
  if (asset.columns.length === 0) {
    return (
      <Empty title="The columns are not known">
        <p>The newest output tells them. An output that is not a table has none.</p>
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
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
    <pre className={css.code} tabIndex={0}>
      <code>
        {asset.kind === "sql"
          ? highlight(asset.code).map((token, i) => (
              <span key={i} className={token.kind ? css[token.kind] : undefined}>
                {token.text}
              </span>
            ))
          : asset.code}
      </code>
    </pre>
  );
}
