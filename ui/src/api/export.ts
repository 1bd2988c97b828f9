// Results of queries as text: for cells on the screen, for the clipboard and for files.
import type { Cell, Column, Result } from "./sql";

const numbers = /^(U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL.*|BIGNUM)$/;

const times = /^(DATE|TIME|INTERVAL)/;

export const isNumber = (column: Column) => numbers.test(column.type);

// text returns a cell as plain text, with all of its digits.
export function text(cell: Cell): string {
  if (cell === null || cell === undefined) return "";
  if (typeof cell === "string") return cell;
  return JSON.stringify(cell);
}

// visible makes control characters visible: a terminal would execute some of them, and a browser would drop them.
// Line breaks and tabs stay.
export function visible(value: string): string {
  return value.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) =>
    c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0)),
  );
}

function csvCell(cell: Cell, column: Column | undefined): string {
  let value = text(cell);
  // A spreadsheet would execute a text that begins with one of these characters, so an apostrophe comes first. Numbers
  // and times are exempt: they may begin with a sign, and hold no other text.
  const safe = column && (isNumber(column) || times.test(column.type));
  if (typeof cell === "string" && /^[=+\-@\t\r]/.test(value) && !safe) value = `'${value}`;
  return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}

export function csv({ columns, rows }: Pick<Result, "columns" | "rows">): string {
  const head = columns.map((c) => csvCell(c.name, undefined)).join(",");
  return [head, ...rows.map((row) => row.map((cell, i) => csvCell(cell, columns[i])).join(","))]
    .map((line) => `${line}\n`)
    .join("");
}

// distinct makes names unique by appending numbers to repeated ones, so that a row can be an object.
export function distinct(names: string[]): string[] {
  const seen = new Set<string>();
  return names.map((name) => {
    let unique = name;
    for (let n = 2; seen.has(unique); n++) unique = `${name}_${n}`;
    seen.add(unique);
    return unique;
  });
}

export function json({ columns, rows }: Pick<Result, "columns" | "rows">): string {
  const names = distinct(columns.map((c) => c.name)).map((name) => JSON.stringify(name));
  const lines = rows.map((row) => `  {${row.map((cell, i) => `${names[i]}: ${JSON.stringify(cell)}`).join(", ")}}`);
  return `[\n${lines.join(",\n")}\n]\n`;
}

// save downloads a text as a file.
export function save(name: string, kind: string, data: string) {
  const address = URL.createObjectURL(new Blob([data], { type: kind }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
