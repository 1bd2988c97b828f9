import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { usePartition, usePartitions, useStrip } from "../api/queries";
import type { Asset, PartitionSummaryBucket } from "../api/types";
import { bytes, count, plural, shortID } from "../app/format";
import { partitionFilters } from "../app/router";
import { StripLegend, StripView } from "../canvas/strip";
import { type Need, quote, selectionOf, valuesOf } from "../parts/command";
import { Decision } from "../parts/decision";
import { Badge, Button, Command, Empty, Problem, Segmented, Sentence, Skeleton, Time } from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import type { Tone } from "../parts/status";
import table from "../parts/table.module.css";
import css from "./asset.module.css";
import page from "./page.module.css";

export const partitionTone: Record<string, Tone> = {
  fresh: "fresh",
  stale: "stale",
  missing: "waiting",
  failed: "failed",
};

export function Partitions({ asset }: { asset: Asset }) {
  const search = useSearch({ from: "/assets/$namespace/$name" });
  const navigate = useNavigate({ from: "/assets/$namespace/$name" });
  const { data, error, refetch } = usePartitions(asset.asset_key, search.status, search.page);
  const chosen = search.partition === undefined ? undefined : valuesOf(search.partition);
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
                  <bdi>{asset.partitions ? Object.values(valuesOf(f.partition_key)).join(", ") : f.task_key}</bdi>
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
                ...partitionFilters.map((id) => ({ id, label: id.charAt(0).toUpperCase() + id.slice(1) })),
              ]}
              onChange={(id) =>
                void navigate({
                  search: ({ status: _, page: __, ...rest }) =>
                    id ? { ...rest, status: id as (typeof partitionFilters)[number] } : rest,
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
                      <td className={table.num} data-label="Rows">
                        {p.output ? count(p.output.row_count) : ""}
                      </td>
                      <td className={table.num} data-label="Size">
                        {p.output ? bytes(p.output.byte_size) : ""}
                      </td>
                      <td data-label="Run">
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
                      <td className={table.num} data-label="Made">
                        {p.output ? <Time at={p.output.at} /> : ""}
                      </td>
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

// Detail explains a partition: what it holds, and why it is missing, fresh, stale or failed.
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
        <span>
          <Sentence text={data.headline} times={[data.mark?.at, data.quarantine?.at]} />
        </span>
      </div>
      {data.status !== "fresh" && <Decision of={data.quarantine} />}
      {reasons.length > 0 && (
        <ul>
          {reasons.map((up) => (
            <li key={up.partition}>
              <bdi>{up.partition}</bdi> is {data.newer.includes(up) ? "newer" : up.status}
              {up.more > 0 && `, as are ${count(up.more)} more`}
            </li>
          ))}
        </ul>
      )}
      <div>
        {data.failure && (
          <Link
            className={css.inText}
            to="/runs/$run"
            params={{ run: data.failure.run_id }}
            search={{ task: data.failure.task_key }}
          >
            Failed task in run {shortID(data.failure.run_id)}
          </Link>
        )}
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
        <Command text={`servo explain ${quote(data.partition)}`} />
      </div>
      {need !== undefined && (
        <RunDialog
          onClose={() => setNeed(undefined)}
          assets={[asset]}
          need={need}
          partitions={selectionOf(partition)}
        />
      )}
    </div>
  );
}
