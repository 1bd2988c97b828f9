// Statements that read rows of an asset.
import { quoted } from "./catalog";

const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;

// sampleOf returns a statement that finds the newest output of an asset or of one partition, the columns of its table,
// and those of them that are dates.
export function sampleOf(asset: string, partition: string | undefined): string {
  const [namespace = "", name = ""] = asset.split("/");
  return `SELECT partition_key, strftime(last_materialization_at AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ'), row_count,
  (SELECT list(column_name) FROM information_schema.columns
    WHERE table_schema = ${literal(namespace)} AND table_name = ${literal(name)}),
  (SELECT list(column_name) FROM information_schema.columns
    WHERE table_schema = ${literal(namespace)} AND table_name = ${literal(name)} AND data_type = 'DATE')
FROM partition_status
WHERE asset_key = ${literal(asset)} AND status = 'MATERIALIZED'${
    partition === undefined ? "" : ` AND partition_key = ${literal(partition)}`
  }
ORDER BY last_materialization_at DESC, partition_key DESC
LIMIT 1`;
}

// An hour in a partition key has no seconds, but SQL requires them.
const withSeconds = (hour: string) => hour.replace(/(T\d\d:\d\d)(Z|[+-]\d\d:\d\d)$/, "$1:00$2");

// The column of a month or a year is its first day.
const firstDay = (period: string) => period + "-01".repeat(Math.max(0, 3 - period.split("-").length));

export const isTable = (columns: string[] | null): columns is string[] => columns !== null && columns.length > 0;

// statementOf returns a statement that reads the rows of a partition. Each dimension is a column of the same name,
// unless the asset omits these columns. The parameter dates names the columns that are dates.
export function statementOf(
  asset: string,
  partition: string,
  columns: string[],
  most: number,
  dates: string[] | null = null,
): string {
  const [namespace = "", name = ""] = asset.split("/");
  const values = Object.entries((partition ? JSON.parse(partition) : {}) as Record<string, string>);
  const conditions = values
    .filter(([dimension]) => columns.includes(dimension))
    .map(([d, v]) => `${quoted(d)} = ${literal(dates?.includes(d) ? firstDay(v) : withSeconds(v))}`);
  const where = conditions.length > 0 ? `\nWHERE ${conditions.join(" AND ")}` : "";
  return `SELECT *\nFROM ${quoted(namespace)}.${quoted(name)}${where}\nLIMIT ${most}`;
}

// failingRowsOf returns a statement that reads the rows that the last failure of a check has stored.
export const failingRowsOf = (asset: string, check: string, most: number) =>
  `FROM failing_rows."${asset.replaceAll("/", ".")}.${check.replaceAll('"', '""')}"\nLIMIT ${most}`;

// quarantinedRowsOf returns a statement that reads the outputs of an asset that wait for a decision.
export const quarantinedRowsOf = (asset: string, most: number) =>
  `FROM quarantine."${asset.replaceAll("/", ".")}"\nLIMIT ${most}`;
