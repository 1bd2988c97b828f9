import { useVirtualizer } from "@tanstack/react-virtual";
import { useLayoutEffect, useRef } from "react";
import type { GanttRow } from "../api/types";
import { bytes, count, span } from "../app/format";
import { executed, toneOf } from "../canvas/gantt";
import { useNarrow } from "../parts/media";
import { Badge } from "../parts/parts";
import { words } from "../parts/status";
import css from "./run.module.css";

// The heights of a row: see run.module.css.
const rowHeight = 34;
const narrowHeight = 54;

// TaskTable shows the same as the chart, in words and numbers.
export function TaskTable({
  rows,
  now,
  open,
  noun,
  selected,
  onSelect,
}: {
  rows: GanttRow[];
  now: number;
  open: number;
  noun: "task" | "asset"; // what a row stands for
  selected: string | undefined;
  onSelect: (key: string) => void;
}) {
  const height = useNarrow() ? narrowHeight : rowHeight;
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => height,
    overscan: 10,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: the virtualizer keeps the sizes that it has measured, until measure is called
  useLayoutEffect(() => virtual.measure(), [height]);
  return (
    <div className={css.vtable} ref={scroller} role="table" aria-label="Tasks" aria-rowcount={rows.length + 1}>
      <div role="rowgroup">
        <div className={`${css.grid} ${css.vhead}`} role="row">
          <span role="columnheader">{noun === "task" ? "Task" : "Asset"}</span>
          <span role="columnheader">State</span>
          <span role="columnheader" className={css.right}>
            Executed
          </span>
          <span role="columnheader" className={`${css.right} ${css.extra}`}>
            {noun === "task" ? "Attempts" : "Tasks"}
          </span>
          <span role="columnheader" className={`${css.right} ${css.extra}`}>
            Rows
          </span>
          <span role="columnheader" className={`${css.right} ${css.extra}`}>
            Size
          </span>
        </div>
      </div>
      <div role="rowgroup" style={{ position: "relative", height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) return null;
          return (
            <div
              key={row.key}
              role="row"
              tabIndex={-1}
              aria-rowindex={item.index + 2}
              className={`${css.grid} ${css.vrow}`}
              data-selected={row.key === selected}
              style={{ top: item.start }}
              onClick={() => onSelect(row.key)}
            >
              <span role="cell">
                <button type="button" data-row className={css.taskLink} onClick={() => onSelect(row.key)}>
                  <bdi>{row.key}</bdi>
                </button>
              </span>
              <span role="cell">
                <Badge tone={toneOf(row)} bare>
                  {row.tasks === 1 || row.failed === 0 ? words[row.state] : `${count(row.failed)} failed`}
                </Badge>
              </span>
              <span role="cell" className={css.right}>
                {span(executed(row, now, open))}
              </span>
              <span role="cell" className={`${css.right} ${css.extra}`}>
                {noun === "asset" ? count(row.tasks) : row.attempt > 0 && `${row.attempt} of ${row.max_attempts}`}
              </span>
              <span role="cell" className={`${css.right} ${css.extra}`}>
                {row.row_count ? count(row.row_count) : ""}
              </span>
              <span role="cell" className={`${css.right} ${css.extra}`}>
                {row.byte_size ? bytes(row.byte_size) : ""}
              </span>
            </div>
          );
        })}
      </div>
    </div>
  );
}
