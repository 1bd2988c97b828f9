// Runs SQL, and reads the rows of the answer while they arrive.
import { call, Failure, path } from "./client";

export interface Column {
  name: string;
  type: string;
}

export type Cell = unknown;

export interface Result {
  columns: Column[];
  rows: Cell[][];
  // The members below are known once the last row has arrived.
  done: boolean;
  revision?: number;
  truncated?: boolean;
  elapsed_ms?: number;
  error?: string;
}

export interface Statement {
  sql: string;
  as_of?: string;
  row_limit?: number;
}

const start = '{"columns":';
const between = ',"rows":[';

// Reader takes the text of an answer in parts of any size. The server writes each row on a line of its own.
export class Reader {
  readonly result: Result = { columns: [], rows: [], done: false };
  private rest = "";
  private open = false; // the columns have arrived

  add(text: string) {
    this.rest += text;
    if (!this.open) {
      if (!this.rest.includes("\n")) return; // the first line has the columns and the first row
      this.head();
    }
    const lines = this.rest.split("\n");
    this.rest = lines.pop() ?? "";
    for (const line of lines) this.line(line);
  }

  // end reports whether the answer is complete.
  end(): boolean {
    return this.result.done;
  }

  private head() {
    const at = this.rest.indexOf(between);
    if (!this.rest.startsWith(start)) throw new Error("The server did not return the result of a query.");
    // A name of a column may contain the text that separates the columns from the rows.
    for (let to = at; to > 0; to = this.rest.indexOf(between, to + 1)) {
      try {
        this.result.columns = JSON.parse(this.rest.slice(start.length, to)) as Column[];
      } catch {
        continue;
      }
      this.rest = this.rest.slice(to + between.length);
      this.open = true;
      return;
    }
    throw new Error("The server did not return the result of a query.");
  }

  private line(line: string) {
    if (line.endsWith("],")) {
      this.result.rows.push(JSON.parse(line.slice(0, -1)) as Cell[]);
      return;
    }
    // The last line contains the last row, if there is one, and the members that follow the rows.
    const { rows, ...last } = JSON.parse(`{"rows":[${line}`) as { rows: Cell[][] } & Partial<Result>;
    this.result.rows.push(...rows);
    Object.assign(this.result, last, { done: true });
  }
}

// query runs a statement. Each time that rows have arrived, it adds them to the same result and calls progress.
export async function query(
  statement: Statement,
  signal: AbortSignal,
  progress: (result: Result) => void = () => {},
): Promise<Result> {
  const answer = await call(path(["query"]), {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "application/json" },
    body: JSON.stringify(statement),
    signal,
  });
  const reader = new Reader();
  const texts = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const part = await texts?.read();
    if (!part || part.done) break;
    reader.add(part.value);
    progress(reader.result);
  }
  if (!reader.end()) throw new Error("The answer ended before its last row. Run the statement again.");
  return reader.result;
}

// whole returns a result without an error. It throws the error of a statement that failed after its answer had begun:
// the rows that arrived are not the whole result.
export function whole(result: Result): Result {
  if (result.error) throw new Failure(400, "The statement failed", result.error);
  return result;
}

export interface Position {
  line: number; // from 1
  column: number; // from 1
  offset: number;
  length: number;
}

const wide =
  /^[\p{Emoji_Presentation}\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Hangul}\u3000-\u303e\uff01-\uff60\uffe0-\uffe6]/u;

// indexAt returns the index in a text that a terminal shows at a column. Some characters are two columns wide, and
// others consist of several code points.
function indexAt(text: string, column: number): number {
  let at = 0;
  for (const { segment, index } of new Intl.Segmenter().segment(text)) {
    if (at >= column) return index;
    at += wide.test(segment) ? 2 : 1;
  }
  return text.length + column - at;
}

// positionOf finds the place in a statement at which DuckDB's error message points. The last lines of the message
// repeat a line of the statement, shortened by dots, and have a caret below the place.
export function positionOf(message: string, sql: string): Position | undefined {
  const found = /^LINE (\d+): (.*)\n( *)\^/m.exec(message);
  if (!found) return undefined;
  const [, number = "", excerpt = "", blanks = ""] = found;
  const line = Number(number);
  const text = sql.split("\n")[line - 1];
  if (text === undefined) return undefined;
  let at = indexAt(excerpt, blanks.length - `LINE ${number}: `.length);
  const cutBefore = excerpt.startsWith("...") && !text.startsWith("...");
  if (cutBefore) {
    const inside = excerpt.slice(3).replace(/\.\.\.$/, "");
    const from = text.indexOf(inside);
    if (from < 0) return undefined;
    at += from - 3;
  }
  if (at < 0 || at > text.length) return undefined;
  const before = sql
    .split("\n")
    .slice(0, line - 1)
    .reduce((sum, each) => sum + each.length + 1, 0);
  const word = /^(\w+|.)/.exec(text.slice(at))?.[0] ?? "";
  return { line, column: at + 1, offset: before + at, length: word.length };
}

// headline returns a message of DuckDB without the excerpt of the statement.
export function headline(message: string): string {
  return message
    .replace(/^query: /, "")
    .replace(/\n*^LINE \d+: [\s\S]*$/m, "")
    .trim();
}
