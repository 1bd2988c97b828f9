import type { Completion } from "@codemirror/autocomplete";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { nameOf, quoted, type Table } from "../api/catalog";
import { query, whole } from "../api/sql";
import { plural } from "../app/format";
import { Icon } from "../parts/icons";
import { inputClass, Problem, Skeleton } from "../parts/parts";
import css from "./sql.module.css";

// One query finds tables and functions, because the server runs only a few queries at once. It returns a row for each
// table: a project may have more columns than the answer can have rows.
const catalog = `SELECT table_schema, table_name, list(column_name ORDER BY ordinal_position), list(data_type ORDER BY ordinal_position)
FROM information_schema.columns GROUP BY ALL
UNION ALL SELECT NULL, function_name, NULL, [any_value(function_type)] FROM duckdb_functions()
WHERE regexp_full_match(function_name, '[a-z][a-z0-9_]*') AND NOT starts_with(function_name, 'pg_')
GROUP BY function_name`;

const most = 100_000;

// useCatalog returns the tables with their columns, and the functions. Deployments change them, but most revisions do
// not, so they are loaded once when the console opens.
export const useCatalog = () =>
  useQuery({
    queryKey: ["catalog"],
    staleTime: 60_000,
    refetchOnMount: true,
    retry: 2,
    queryFn: async ({ signal }) => {
      const { rows } = whole(await query({ sql: catalog, row_limit: most }, signal));
      const tables: Table[] = [];
      const functions: Completion[] = [];
      for (const [schema, name, columns, types] of rows as [string | null, string, string[] | null, string[]][]) {
        if (schema === null) functions.push({ label: name, type: "function", detail: types[0] ?? "", boost: -99 });
        else tables.push({ schema, name, columns: (columns ?? []).map((c, i) => ({ name: c, type: types[i] ?? "" })) });
      }
      return { tables, functions };
    },
  });

const drawn = 300; // the greatest number of tables that are drawn for a group

function Group({
  title,
  note,
  tables,
  open,
  onPick,
}: {
  title: string;
  note: string;
  tables: Table[];
  open: boolean;
  onPick: (text: string) => void;
}) {
  if (tables.length === 0) return null;
  return (
    <details className={css.group} open={open}>
      <summary>
        <Icon name="right" size={13} />
        {title} <small>{plural(tables.length, "table")}</small>
      </summary>
      <p className={css.note}>{note}</p>
      <ul>
        {tables.slice(0, drawn).map((t) => (
          <li key={nameOf(t)}>
            <details>
              <summary>
                <Icon name="right" size={12} />
                <bdi>{nameOf(t)}</bdi>
              </summary>
              <ul className={css.columns}>
                <li>
                  <button type="button" onClick={() => onPick(`FROM ${nameOf(t)} LIMIT 100;`)}>
                    Show 100 rows
                  </button>
                </li>
                {t.columns.map((c) => (
                  <li key={c.name}>
                    <button type="button" title={`Insert ${c.name}`} onClick={() => onPick(quoted(c.name))}>
                      <bdi>{c.name}</bdi>
                    </button>
                    <small>{c.type}</small>
                  </li>
                ))}
              </ul>
            </details>
          </li>
        ))}
      </ul>
      {tables.length > drawn && (
        <p className={css.note}>Search to see the other {plural(tables.length - drawn, "table")}.</p>
      )}
    </details>
  );
}

// Tables lists what a statement can read.
export function Tables({ onPick }: { onPick: (text: string) => void }) {
  const { data, error, refetch } = useCatalog();
  const [typed, setTyped] = useState("");
  const groups = useMemo(() => {
    const word = typed.toLowerCase();
    const found = (data?.tables ?? []).filter(
      (t) => nameOf(t).toLowerCase().includes(word) || t.columns.some((c) => c.name.toLowerCase().includes(word)),
    );
    const of = (test: (t: Table) => boolean) => found.filter(test).sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
    return {
      assets: of((t) => t.schema !== "main" && t.schema !== "quarantine"),
      state: of((t) => t.schema === "main"),
      quarantine: of((t) => t.schema === "quarantine"),
    };
  }, [data, typed]);
  if (error && !data) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton />;
  return (
    <div className={css.tables}>
      <input
        type="search"
        className={inputClass}
        placeholder="Search tables and columns"
        aria-label="Search tables and columns"
        value={typed}
        onChange={(event) => setTyped(event.target.value)}
      />
      <Group
        title="Assets"
        note="The current outputs of assets, as namespace.name."
        tables={groups.assets}
        open
        onPick={onPick}
      />
      <Group
        title="State"
        note="The state of Servo: runs, tasks, attempts, partitions and more."
        tables={groups.state}
        open={groups.assets.length === 0 || typed !== ""}
        onPick={onPick}
      />
      <Group
        title="Quarantine"
        note="Outputs that a failed check has blocked."
        tables={groups.quarantine}
        open={typed !== ""}
        onPick={onPick}
      />
    </div>
  );
}
