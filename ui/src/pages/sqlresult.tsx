import { useState } from "react";
import { csv, json, save } from "../api/export";
import type { Result } from "../api/sql";
import { count, plural, span } from "../app/format";
import { Grid } from "../parts/grid";
import { Button, Card, Empty, Segmented, toast } from "../parts/parts";
import page from "./page.module.css";
import css from "./sql.module.css";

const copied = 5_000_000; // the greatest number of characters to copy: a clipboard accepts little more

// Outcome shows the rows of a statement, its duration, and the actions for its rows.
export function Outcome({
  result,
  rows,
  busy,
  more,
  onMore,
}: {
  result: Result;
  rows: number;
  busy: boolean;
  more: number | undefined;
  onMore: (limit: number) => void;
}) {
  const [format, setFormat] = useState("csv");
  const data = () => (format === "csv" ? csv(result) : json(result));
  const name = `query-${result.revision ?? ""}.${format}`;
  const facts = [plural(rows, "row")];
  if (result.truncated) facts[0] = `the first ${count(rows)} rows`;
  if (result.revision !== undefined) facts.push(`revision ${result.revision}`);
  if (result.elapsed_ms !== undefined) facts.push(span(result.elapsed_ms / 1000));
  const copy = () => {
    const text = data();
    if (text.length > copied) {
      toast("The result is too large for the clipboard. Download it instead.");
      return;
    }
    void navigator.clipboard.writeText(text).then(
      () => toast(`Copied ${plural(rows, "row")}.`),
      () => toast("The browser does not allow this page to use the clipboard. Download the result instead."),
    );
  };
  return (
    <Card className={css.clip}>
      <div className={css.bar}>
        <span role="status">{facts.join(" · ")}</span>
        {result.truncated && more !== undefined && (
          <Button onClick={() => onMore(more)}>Read up to {count(more)} rows</Button>
        )}
        <span className={page.spacer} />
        {rows > 0 && !busy && (
          <>
            <Segmented
              label="Format"
              value={format}
              items={[
                { id: "csv", label: "CSV" },
                { id: "json", label: "JSON" },
              ]}
              onChange={setFormat}
            />
            <Button icon="copy" onClick={copy}>
              Copy
            </Button>
            <Button icon="down" onClick={() => save(name, format === "csv" ? "text/csv" : "application/json", data())}>
              Download
            </Button>
          </>
        )}
      </div>
      {rows > 0 && <Grid columns={result.columns} rows={result.rows} label="Rows of the result" height={560} />}
      {rows === 0 && !busy && <Empty title="The statement returned no rows" />}
    </Card>
  );
}
