import { useVirtualizer } from "@tanstack/react-virtual";
import { type CSSProperties, useEffect, useMemo, useRef, useState } from "react";
import { isNumber, text, visible } from "../api/export";
import type { Cell, Column } from "../api/sql";
import { count } from "../app/format";
import css from "./grid.module.css";
import { Dialog } from "./parts";

const rowHeight = 28;
const sampled = 100; // the width of a column depends on this many rows
const widest = 340; // the greatest width of a column, in pixels
const shown = 400; // the greatest number of characters of a cell: more would not fit, and would slow the page down

const pen = document.createElement("canvas").getContext("2d");

// widthOf returns the width of the widest text in the first rows of a column, in pixels.
function widthOf(column: Column, at: number, rows: Cell[][]): number {
  if (!pen) return widest;
  pen.font = `13px ${getComputedStyle(document.documentElement).fontFamily}`;
  const of = (value: string) => pen.measureText(value.slice(0, 60)).width;
  let most = Math.max(of(column.name) * 1.13, of(column.type.slice(0, 18)) * 0.9, 30);
  for (const row of rows.slice(0, sampled)) most = Math.max(most, of(text(row[at])));
  return Math.ceil(Math.min(most, widest)) + 22;
}

function Value({ cell, full }: { cell: Cell; full?: boolean }) {
  if (cell === null || cell === undefined) return <span className={css.null}>NULL</span>;
  const value = visible(text(cell));
  if (full) return <bdi>{value}</bdi>;
  const line = value.slice(0, shown).replace(/\r?\n/g, " ⏎ ");
  return <bdi>{value.length <= shown ? line : `${line}…`}</bdi>;
}

// Grid shows the rows of a result. It draws only the rows and columns that are on the screen.
export function Grid({
  columns,
  rows,
  label,
  height,
}: {
  columns: Column[];
  rows: Cell[][];
  label: string;
  height: number;
}) {
  const scroll = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState<number>();
  const enough = Math.min(rows.length, sampled);
  // biome-ignore lint/correctness/useExhaustiveDependencies: rows that arrive later do not change the widths
  const widths = useMemo(() => columns.map((column, i) => widthOf(column, i, rows)), [columns, enough]);
  const gutter = String(rows.length).length * 8 + 24;
  const lines = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => rowHeight,
    overscan: 12,
  });
  const cells = useVirtualizer({
    horizontal: true,
    count: columns.length,
    getScrollElement: () => scroll.current,
    estimateSize: (i) => widths[i] ?? 0,
    overscan: 4,
  });
  useEffect(() => {
    if (widths.length > 0) cells.measure();
  }, [widths, cells]);
  const total = widths.reduce((sum, width) => sum + width, gutter);
  const place = (start: number, size: number): CSSProperties => ({ insetInlineStart: gutter + start, width: size });
  const visibleColumns = cells.getVirtualItems();
  return (
    <>
      <div
        ref={scroll}
        className={css.scroll}
        style={{ height: Math.min(height, rows.length * rowHeight + 62) }}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard
        tabIndex={0}
        role="table"
        aria-label={label}
        aria-rowcount={rows.length + 1}
        aria-colcount={columns.length + 1}
      >
        <div role="rowgroup" className={css.head} style={{ width: total }}>
          <div role="row" aria-rowindex={1} className={css.headings}>
            <span role="columnheader" aria-colindex={1} className={css.number} style={{ width: gutter }}>
              #
            </span>
            {visibleColumns.map(({ index, start, size }) => {
              const column = columns[index];
              if (!column) return null;
              return (
                <span
                  role="columnheader"
                  aria-colindex={index + 2}
                  key={index}
                  className={isNumber(column) ? `${css.heading} ${css.right}` : css.heading}
                  style={place(start, size)}
                  title={`${column.name} ${column.type}`}
                >
                  <bdi>{visible(column.name)}</bdi>
                  <small>{column.type}</small>
                </span>
              );
            })}
          </div>
        </div>
        <div role="rowgroup" className={css.body} style={{ width: total, height: lines.getTotalSize() }}>
          {lines.getVirtualItems().map((line) => {
            const row = rows[line.index] ?? [];
            return (
              <div
                role="row"
                aria-rowindex={line.index + 2}
                key={line.index}
                className={css.row}
                style={{ transform: `translateY(${line.start}px)` }}
              >
                <span role="rowheader" aria-colindex={1} className={css.number} style={{ width: gutter }}>
                  <button
                    type="button"
                    data-row
                    aria-label={`Show row ${count(line.index + 1)}`}
                    onClick={() => setOpen(line.index)}
                  >
                    {count(line.index + 1)}
                  </button>
                </span>
                {visibleColumns.map(({ index, start, size }) => {
                  const column = columns[index];
                  return (
                    <span
                      role="cell"
                      aria-colindex={index + 2}
                      key={index}
                      className={column && isNumber(column) ? `${css.cell} ${css.right}` : css.cell}
                      style={place(start, size)}
                    >
                      <Value cell={row[index]} />
                    </span>
                  );
                })}
              </div>
            );
          })}
        </div>
      </div>
      {open !== undefined && rows[open] && (
        <Dialog title={`Row ${count(open + 1)}`} className={css.dialog} onClose={() => setOpen(undefined)}>
          <dl className={css.values}>
            {columns.map((column, i) => (
              <div key={i}>
                <dt>
                  <bdi>{visible(column.name)}</bdi> <small>{column.type}</small>
                </dt>
                <dd>
                  <Value cell={rows[open]?.[i]} full />
                </dd>
              </div>
            ))}
          </dl>
        </Dialog>
      )}
    </>
  );
}
