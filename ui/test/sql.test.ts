import { expect, test } from "vitest";
import { columnsIn, nameOf, namespaceOf, quoted } from "../src/api/catalog";
import { csv, distinct, json, text, visible } from "../src/api/export";
import { headline, positionOf, Reader, whole } from "../src/api/sql";

const answer = `{"columns":[{"name":"a\\",\\"rows\\":[","type":"BIGINT"},{"name":"b","type":"VARCHAR"}],"rows":[["9223372036854775807","x]],"],
[2,"line\\nbreak"],
[null,{"n":[1,"],"]}]],"revision":7,"row_count":3,"truncated":true,"changes":false,"elapsed_ms":5}
`;

test("a result is the same however its answer is cut", () => {
  const whole = new Reader();
  whole.add(answer);
  expect(whole.end()).toBe(true);
  expect(whole.result.rows).toEqual([
    ["9223372036854775807", "x]],"],
    [2, "line\nbreak"],
    [null, { n: [1, "],"] }],
  ]);
  expect(whole.result.columns.map((c) => c.name)).toEqual(['a","rows":[', "b"]);
  expect(whole.result).toMatchObject({ revision: 7, truncated: true, done: true });
  for (let size = 1; size < answer.length; size += 1) {
    const reader = new Reader();
    for (let i = 0; i < answer.length; i += size) reader.add(answer.slice(i, i + size));
    expect(reader.result).toEqual(whole.result);
  }
});

test("an answer without rows is complete, and one that ends early is not", () => {
  const empty = new Reader();
  empty.add('{"columns":[{"name":"a","type":"INTEGER"}],"rows":[],"revision":1,"row_count":0,"truncated":false}\n');
  expect(empty.result).toMatchObject({ rows: [], done: true });
  const cut = new Reader();
  cut.add(answer.slice(0, answer.lastIndexOf("\n[null")));
  expect(cut.end()).toBe(false);
  expect(() => new Reader().add("<html>\n")).toThrow("did not return the result");
});

test("an answer that ends with an error is not the whole result", () => {
  const reader = new Reader();
  reader.add('{"columns":[{"name":"a","type":"INTEGER"}],"rows":[],"revision":1,"row_count":0,"error":"no memory"}\n');
  expect(reader.end()).toBe(true);
  expect(() => whole(reader.result)).toThrow("no memory");
  expect(whole({ columns: [], rows: [], done: true }).rows).toEqual([]);
});

test("the place of an error is found in a long and in a later line", () => {
  const sql = "SELECT\n  frob\nFROM runs";
  expect(positionOf('Binder Error: "frob"\n\nLINE 2:   frob\n          ^', sql)).toEqual({
    line: 2,
    column: 3,
    offset: 9,
    length: 4,
  });
  const long = `SELECT ${"a, ".repeat(60)}b FRM runs`;
  const excerpt = "...a, a, a, b FRM runs";
  const message = `query: Parser Error: x\n\nLINE 1: ${excerpt}\n${" ".repeat("LINE 1: ".length + excerpt.indexOf("FRM"))}^`;
  expect(positionOf(message, long)).toMatchObject({ offset: long.indexOf("FRM"), length: 3 });
  expect(positionOf("Out of memory", long)).toBeUndefined();
  expect(headline(message)).toBe("Parser Error: x");
});

test("the place of an error is found behind characters of any width", () => {
  // The messages of DuckDB have the caret below the place as a terminal shows it.
  for (const [text, width] of [
    ["日本語日本語", 12],
    ["éééé", 4],
    ["👨‍👩‍👧😀", 4],
    ["한국어 カナ", 11],
    ["e\u0301", 1],
  ] as const) {
    const sql = `SELECT '${text}' AS a, frobnicate FROM runs`;
    const caret = " ".repeat("LINE 1: SELECT '' AS a, ".length + width);
    const offset = sql.indexOf("frobnicate");
    const place = { line: 1, column: offset + 1, offset, length: 10 };
    expect(positionOf(`Binder Error: x\n\nLINE 1: ${sql}\n${caret}^`, sql)).toEqual(place);
    const long = `SELECT ${"a, ".repeat(60)}'${text}' AS b, frobnicate FROM runs`;
    const cut = `...a, '${text}' AS b, frobnicate FROM runs`;
    const under = " ".repeat("LINE 1: ...a, '' AS b, ".length + width);
    expect(positionOf(`x\nLINE 1: ${cut}\n${under}^`, long)?.offset).toBe(long.indexOf("frobnicate"));
  }
});

test("an exported value that is no text has no apostrophe", () => {
  const columns = ["INTERVAL", "DATE", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"].map((type) => ({ name: "v", type }));
  const rows = [["-02:00:00", "-infinity", "-infinity", "-infinity"]];
  expect(csv({ columns, rows }).split("\n")[1]).toBe("-02:00:00,-infinity,-infinity,-infinity");
});

test("an exported text cannot start a formula, and numbers keep their sign and digits", () => {
  const columns = [
    { name: "n", type: "DECIMAL(38,2)" },
    { name: "t", type: "VARCHAR" },
    { name: "t", type: "VARCHAR" },
  ];
  const rows = [["-12345678901234567890.10", '=HYPERLINK("x")', null]];
  expect(csv({ columns, rows })).toBe(`n,t,t\n-12345678901234567890.10,"'=HYPERLINK(""x"")",\n`);
  expect(JSON.parse(json({ columns, rows }))).toEqual([
    { n: "-12345678901234567890.10", t: '=HYPERLINK("x")', t_2: null },
  ]);
  expect(distinct(["a", "a", "a_2"])).toEqual(["a", "a_2", "a_2_2"]);
});

test("control characters are visible, and nested values are text", () => {
  expect(visible("\u001b[31mred\u0007\n\tx")).toBe("␛[31mred␇\n\tx");
  expect(text({ a: [1, null] })).toBe('{"a":[1,null]}');
});

test("names are quoted where SQL needs it", () => {
  expect(quoted("orders")).toBe("orders");
  expect(quoted('we"ird')).toBe('"we""ird"');
  const table = { schema: "quarantine", name: "clean.orders", columns: [{ name: "id", type: "BIGINT" }] };
  expect(nameOf(table)).toBe('quarantine."clean.orders"');
  expect(namespaceOf([table, { ...table, schema: "main", name: "runs" }])).toMatchObject({
    runs: [{ label: "id" }],
    quarantine: { "clean\\.orders": [{ label: "id" }] }, // the editor would split the name at a dot
  });
});

test("completions of columns are quoted where SQL needs it", () => {
  const columns = ["id", "Total Amount"].map((name) => ({ name, type: "BIGINT" }));
  expect(namespaceOf([{ schema: "main", name: "t", columns }])).toMatchObject({
    t: [
      { label: "id", apply: "id" },
      { label: "Total Amount", apply: '"Total Amount"' },
    ],
  });
});

test("a namespace with the name of a property of every object is like others", () => {
  const { entries } = Object;
  const columns = [{ name: "points", type: "BIGINT" }];
  const tables = ["constructor", "__proto__", "main"].map((schema) => ({ schema, name: "entries", columns }));
  const namespace = namespaceOf(tables);
  expect(Object.entries).toBe(entries);
  expect(Object.keys(namespace).sort()).toEqual(["__proto__", "constructor", "entries"]);
});

test("the columns of the tables of a statement are found", () => {
  const table = (schema: string, name: string, column: string) => ({
    schema,
    name,
    columns: [{ name: column, type: "BIGINT" }],
  });
  const tables = [table("clean", "orders", "amount"), table("main", "runs", "run_id"), table("quarantine", "a.b", "x")];
  const names = (sql: string) => columnsIn(sql, tables).map((c) => c.name);
  expect(names("SELECT am FROM clean.orders o JOIN runs USING (x)")).toEqual(["amount", "run_id"]);
  expect(names('from quarantine."a.b"')).toEqual(["x"]);
  expect(names("SELECT 1")).toEqual([]);
});
