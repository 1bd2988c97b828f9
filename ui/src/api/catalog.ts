// The tables that a statement can read, and their names in SQL.
import type { SQLNamespace } from "@codemirror/lang-sql";
import type { Column } from "./sql";

export interface Table {
  schema: string;
  name: string;
  columns: Column[];
}

// The reserved words of SQL. An asset or column with such a name must be quoted.
const reserved = new Set(
  `all analyse analyze and any array as asc both case cast check collate column constraint create default deferrable
  desc describe distinct do else end except false fetch for foreign from group having in initially intersect into lambda
  lateral leading limit not null offset on only or order pivot placing primary qualify references returning select show
  some summarize symmetric table then to trailing true union unique unpivot using variadic when where window with`.split(
    /\s+/,
  ),
);
const plain = /^[a-z_][a-z0-9_]*$/;
export const quoted = (name: string) =>
  plain.test(name) && !reserved.has(name) ? name : `"${name.replaceAll('"', '""')}"`;
export const nameOf = (t: Table) => (t.schema === "main" ? quoted(t.name) : `${quoted(t.schema)}.${quoted(t.name)}`);

// namespaceOf converts the tables into the form that the editor needs to complete names of tables and columns. The
// editor splits a name at its dots, unless a backslash precedes them.
export function namespaceOf(tables: Table[]): SQLNamespace {
  const all = new Map<string, SQLNamespace>();
  const schemas = new Map<string, Map<string, SQLNamespace>>();
  for (const t of tables) {
    const columns = t.columns.map((c) => ({ label: c.name, apply: quoted(c.name), detail: c.type, type: "property" }));
    let of = all;
    if (t.schema !== "main") {
      of = schemas.get(t.schema) ?? new Map();
      schemas.set(t.schema, of);
    }
    of.set(t.name.replaceAll(".", "\\."), columns);
  }
  for (const [schema, inside] of schemas) all.set(schema, Object.fromEntries(inside));
  return Object.fromEntries(all);
}

// columnsIn returns the columns of the tables that a statement names, each once.
export function columnsIn(sql: string, tables: Table[]): Column[] {
  const named = new Set(
    [...sql.matchAll(/\b(?:from|join)\s+((?:[\w.]|"(?:[^"]|"")*")+)/gi)].map((m) => m[1]?.toLowerCase()),
  );
  const columns = new Map<string, Column>();
  for (const t of tables) {
    if (named.has(nameOf(t).toLowerCase())) for (const c of t.columns) columns.set(c.name, c);
  }
  return [...columns.values()];
}
