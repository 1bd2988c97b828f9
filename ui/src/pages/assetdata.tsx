import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Failure } from "../api/client";
import { isTable, sampleOf, statementOf } from "../api/sample";
import { query, whole } from "../api/sql";
import type { Asset } from "../api/types";
import { plural } from "../app/format";
import { Grid } from "../parts/grid";
import { buttonClass, Empty, Problem, Skeleton, Time } from "../parts/parts";
import css from "./assetgraph.module.css";

const most = 50; // rows

// useSample returns rows of the given partition, or of the newest partition. It asks again only when the asset has a
// newer output.
const useSample = (asset: Asset, partition: string | undefined) =>
  useQuery({
    queryKey: ["sample", asset.asset_key, partition, asset.last_run_id, asset.last_materialized_at],
    retry: (failures, error) => failures < 5 && error instanceof Failure && error.status === 429,
    queryFn: async ({ signal }) => {
      const about = whole(await query({ sql: sampleOf(asset.asset_key, partition), row_limit: 1 }, signal));
      const [row] = about.rows as [string, string, number, string[] | null, string[] | null][];
      if (!row) return null; // there is no output
      const [key, at, rows, columns, dates] = row;
      if (!isTable(columns)) return { key, at, rows, statement: "", result: undefined };
      const statement = statementOf(asset.asset_key, key, columns, most, dates);
      return { key, at, rows, statement, result: whole(await query({ sql: statement, row_limit: most }, signal)) };
    },
  });

// Data shows some rows of the newest output.
export function Data({ asset, partition }: { asset: Asset; partition: string | undefined }) {
  const { data, error, refetch, isPending } = useSample(asset, partition);
  if (error) return <Problem error={error} retry={() => void refetch()} />;
  if (isPending) return <Skeleton />;
  if (!data) return <Empty title={partition ? "This partition has no output" : "The asset has no output yet"} />;
  const values = Object.entries((data.key ? JSON.parse(data.key) : {}) as Record<string, string>);
  return (
    <>
      <div className={css.bar}>
        <span>
          {data.result &&
            (data.result.rows.length < Number(data.rows)
              ? `The first ${plural(data.result.rows.length, "row")} of `
              : "All rows of ")}
          {values.length > 0 ? (
            <strong>
              <bdi>{values.map(([name, value]) => `${name}=${value}`).join(", ")}</bdi>
            </strong>
          ) : (
            "the output"
          )}
          , which has {plural(Number(data.rows), "row")} and was made <Time at={data.at} />
        </span>
        <span className={css.facts}>
          {data.statement && (
            <Link to="/sql" search={{ q: data.statement }} className={buttonClass}>
              Open in SQL
            </Link>
          )}
        </span>
      </div>
      {data.result && data.result.rows.length > 0 && (
        <Grid columns={data.result.columns} rows={data.result.rows} label="Rows of the output" height={520} />
      )}
      {data.result?.rows.length === 0 && <Empty title="The output has no rows" />}
      {!data.result && (
        <Empty title="The output is not a table">
          <p>Only outputs in Parquet files have rows to show.</p>
        </Empty>
      )}
    </>
  );
}
