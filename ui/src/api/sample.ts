// Statements that read rows of an asset.
import { quoted } from "./catalog";

const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;

// sampleOf returns a statement that finds the newest output of an asset or of one partition, and the columns of its
// table.
export function sampleOf(asset: string, partition: string | undefined): string {
  const [namespace = "", name = ""] = asset.split("/");
  return `SELECT partition_key, strftime(last_materialization_at AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ'), row_count,
  (SELECT list(column_name) FROM information_schema.columns
    WHERE table_schema = ${literal(namespace)} AND table_name = ${literal(name)})
FROM partition_status
WHERE asset_key = ${literal(asset)} AND status = 'MATERIALIZED'${
    partition === undefined ? "" : ` AND partition_key = ${literal(partition)}`
  }
ORDER BY last_materialization_at DESC, partition_key DESC
LIMIT 1`;
}

export const isTable = (columns: string[] | null): columns is string[] => columns !== null && columns.length > 0;

// statementOf returns a statement that reads the rows of a partition. Each dimension is a column of the same name,
// unless the asset omits these columns.
export function statementOf(asset: string, partition: string, columns: string[], most: number): string {
  const [namespace = "", name = ""] = asset.split("/");
  const values = Object.entries((partition ? JSON.parse(partition) : {}) as Record<string, string>);
  const conditions = values
    .filter(([dimension]) => columns.includes(dimension))
    // An hour in a partition key has no seconds, but SQL requires them.
    .map(([d, v]) => `${quoted(d)} = ${literal(v.replace(/(T\d\d:\d\d)(Z|[+-]\d\d:\d\d)$/, "$1:00$2"))}`);
  const where = conditions.length > 0 ? `\nWHERE ${conditions.join(" AND ")}` : "";
  return `SELECT *\nFROM ${quoted(namespace)}.${quoted(name)}${where}\nLIMIT ${most}`;
}

// failingRowsOf returns a statement that reads the rows that the last failure of a check has stored.
export const failingRowsOf = (asset: string, check: string, most: number) =>
  `FROM failing_rows."${asset.replaceAll("/", ".")}.${check.replaceAll('"', '""')}"\nLIMIT ${most}`;

// quarantinedRowsOf returns a statement that reads the outputs of an asset that wait for a decision.
export const quarantinedRowsOf = (asset: string, most: number) =>
  `FROM quarantine."${asset.replaceAll("/", ".")}"\nLIMIT ${most}`;
