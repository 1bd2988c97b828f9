import { useVirtualizer } from "@tanstack/react-virtual";
import { type CSSProperties, type PointerEvent, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { GanttRow, GanttSegment, Phase } from "../api/types";
import { count, plural, span } from "../app/format";
import { useNarrow } from "../parts/media";
import { Button, Shape } from "../parts/parts";
import { taskTone, words } from "../parts/status";
import type { Theme } from "../style/tokens";
import { hatch, prepare, useColors, useSize } from "./draw";
import css from "./gantt.module.css";
import { concurrency, covers, type Interval, type Range, ticks, union, within, zoom } from "./time";

const barHeight = 26;
const labelWidth = 56; // the room for a time on the axis: a cut number would be wrong
const nameHeight = 22; // on a narrow screen, the name is above the bar

const phaseWords: Record<Phase, string> = {
  UNSPECIFIED: "",
  BLOCKED: "waits for upstream tasks",
  LIMITED: "waits for a limit",
  QUEUED: "in the queue",
  RUNNING: "executing",
  SUCCEEDED: "succeeded after",
  FAILED: "failed after",
  CANCELLED: "cancelled after",
  RETRY_WAIT: "waits for a retry",
};

const executing = (s: GanttSegment) => ["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"].includes(s.phase);
const start = (s: GanttSegment) => Date.parse(s.from ?? "");

// endOf returns when a segment ends. A segment that ends at or after open, the end of the answer's time range, belongs
// to a live run and is not over yet, so it is drawn until now.
const endOf = (s: GanttSegment, now: number, open: number) => {
  const to = Date.parse(s.to ?? "");
  return to >= open ? now : to;
};

// executions returns when a row executed. The segments of an asset overlap if some of its tasks failed while others
// succeeded.
const executions = (row: GanttRow, now: number, open: number): Interval[] =>
  union(row.segments.filter(executing).map((s) => ({ from: start(s), to: endOf(s, now, open) })));

// executed returns how long a row has executed, in seconds.
export function executed(row: GanttRow, now: number, open: number): number {
  return executions(row, now, open).reduce((sum, { from, to }) => sum + (to - from) / 1000, 0);
}

const colourOf = (s: GanttSegment, colours: Theme) =>
  ({ SUCCEEDED: colours.fresh, RUNNING: colours.running, CANCELLED: colours.strong })[s.phase as string] ??
  colours.failed;

// layer orders segments that overlap: an execution covers the waits of other tasks of the asset, and a failure covers
// the tasks that succeeded.
const layer = (s: GanttSegment) => (s.phase === "FAILED" ? 2 : executing(s) ? 1 : 0);

function drawSegment(
  context: CanvasRenderingContext2D,
  s: GanttSegment,
  x: number,
  w: number,
  y: number,
  colours: Theme,
) {
  const middle = y + barHeight / 2;
  const width = Math.max(w, 1.5);
  switch (s.phase) {
    case "BLOCKED":
      context.fillStyle = colours.strong;
      context.fillRect(x, middle, width, 1);
      break;
    case "RETRY_WAIT":
      context.fillStyle = colours.stale;
      for (let at = x; at < x + width; at += 6) context.fillRect(at, middle - 1, Math.min(3, x + width - at), 2);
      break;
    case "LIMITED":
      context.fillStyle = colours["stale-soft"];
      context.fillRect(x, y + 7, width, barHeight - 14);
      context.fillStyle = hatch(context, colours.stale);
      context.fillRect(x, y + 7, width, barHeight - 14);
      break;
    case "QUEUED":
      context.fillStyle = colours.strong;
      context.fillRect(x, y + 9, width, barHeight - 18);
      break;
    default:
      context.fillStyle = colourOf(s, colours);
      context.beginPath();
      context.roundRect(x, y + 5, Math.max(width, 2), barHeight - 10, Math.min(3, width / 2));
      context.fill();
  }
}

interface Props {
  rows: GanttRow[];
  bounds: Range;
  now: number;
  open: number; // a segment that ends at or after this time is drawn until now
  noun: "task" | "asset"; // what a row stands for
  selected?: string | undefined;
  onSelect: (key: string) => void;
}

export function Gantt({ rows, bounds, now, open, noun, selected, onSelect }: Props) {
  const colours = useColors();
  const above = useNarrow() ? nameHeight : 0;
  const rowHeight = barHeight + above;
  const [range, setRange] = useState<Range>();
  const view = range ? within(range, bounds) : bounds;
  // The whole chart of a live run grows with the run, so it must not become a fixed range.
  const show = (to: Range | undefined) => setRange(to && !covers(to, bounds) ? to : undefined);
  const plot = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const [height, setHeight] = useState(0);
  const [gutter, setGutter] = useState(0);
  const [tip, setTip] = useState<{ x: number; y: number; row: GanttRow; segment: GanttSegment | undefined }>();
  const drag = useRef<{ x: number; view: Range; moved: boolean }>(undefined);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: 8,
  });
  // biome-ignore lint/correctness/useExhaustiveDependencies: the virtualizer keeps the sizes that it has measured, until measure is called
  useLayoutEffect(() => virtual.measure(), [rowHeight]);

  // The frame is as high as its rows, within a share of the window's height.
  useLayoutEffect(() => {
    const frame = scroller.current;
    if (!frame) return;
    const measure = () => {
      setHeight(frame.clientHeight);
      setGutter(frame.offsetWidth - frame.clientWidth);
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(frame);
    return () => observer.disconnect();
  }, []);

  const width = plot.width;
  const x = (at: number) => ((at - view.from) / (view.to - view.from || 1)) * width;
  const time = (px: number) => view.from + (px / (width || 1)) * (view.to - view.from);
  const scrollTop = virtual.scrollOffset ?? 0;

  useEffect(() => {
    const context = canvas.current && prepare(canvas.current, width, height);
    if (!context) return;
    for (const at of ticks(view, bounds.from, Math.max(2, width / 110))) {
      context.fillStyle = colours.border;
      context.globalAlpha = 0.6;
      const left = Math.round(x(bounds.from + at));
      if (above === 0) context.fillRect(left, 0, 1, height);
      else
        for (let y = above - (scrollTop % rowHeight); y < height; y += rowHeight)
          context.fillRect(left, y, 1, barHeight);
      context.globalAlpha = 1;
    }
    const first = Math.floor(scrollTop / rowHeight);
    const last = Math.min(rows.length, Math.ceil((scrollTop + height) / rowHeight));
    for (let i = first; i < last; i++) {
      const row = rows[i];
      if (!row) continue;
      const y = i * rowHeight - scrollTop + above;
      if (row.key === selected) {
        context.fillStyle = colours["accent-soft"];
        context.fillRect(0, y, width, barHeight);
      }
      for (const s of row.segments.toSorted((a, b) => layer(a) - layer(b))) {
        const [from, to] = [x(start(s)), x(endOf(s, now, open))];
        if (to >= 0 && from <= width)
          drawSegment(context, s, Math.max(from, -4), Math.min(to, width + 4) - Math.max(from, -4), y, colours);
      }
      if (row.critical) {
        const done = row.segments.filter(executing);
        const [a, b] = [done[0], done.at(-1)];
        if (a && b) {
          context.fillStyle = colours.text;
          const from = x(start(a));
          context.fillRect(from, y + barHeight - 4, Math.max(x(endOf(b, now, open)) - from, 3), 2);
        }
      }
    }
  });

  // React's listeners cannot prevent scrolling, because the browser calls them after it has begun to scroll. So the
  // listener is added to the element.
  const wheel = useRef<(event: WheelEvent) => void>(undefined);
  wheel.current = (event) => {
    const box = plot.ref.current?.getBoundingClientRect();
    if (!box || !(event.ctrlKey || event.metaKey || event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)))
      return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      show(zoom(view, Math.exp(event.deltaY / 300), time(event.clientX - box.left), bounds));
    } else {
      const by = ((event.deltaX || event.deltaY) / width) * (view.to - view.from);
      show(within({ from: view.from + by, to: view.to + by }, bounds));
    }
  };
  useEffect(() => {
    const element = plot.ref.current;
    const listen = (event: WheelEvent) => wheel.current?.(event);
    element?.addEventListener("wheel", listen, { passive: false });
    return () => element?.removeEventListener("wheel", listen);
  }, [plot.ref]);

  const at = (event: PointerEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top + scrollTop) / rowHeight)];
    const t = time(event.clientX - box.left);
    const slack = ((view.to - view.from) / (width || 1)) * 2;
    const segment = row?.segments.findLast((s) => start(s) - slack <= t && t <= endOf(s, now, open) + slack);
    return { row, segment };
  };
  const onMove = (event: PointerEvent) => {
    const from = drag.current;
    if (from) {
      const by = ((from.x - event.clientX) / (width || 1)) * (from.view.to - from.view.from);
      if (Math.abs(event.clientX - from.x) > 3) from.moved = true;
      if (from.moved) show(within({ from: from.view.from + by, to: from.view.to + by }, bounds));
      return;
    }
    const { row, segment } = at(event);
    setTip(row && segment ? { x: event.clientX, y: event.clientY, row, segment } : undefined);
  };

  const step = (factor: number) => show(zoom(view, factor, (view.from + view.to) / 2, bounds));
  return (
    <div className={css.gantt} style={{ "--gutter": `${gutter}px` } as CSSProperties}>
      <div className={css.tools}>
        <Legend colours={colours} />
        <div className={css.zoom}>
          <Button kind="icon" icon="minus" aria-label="Zoom out" onClick={() => step(2)} />
          <Button kind="icon" icon="plus" aria-label="Zoom in" onClick={() => step(0.5)} />
          <Button kind="icon" icon="fit" aria-label="Show the whole run" onClick={() => show(undefined)} />
        </div>
      </div>
      <Overview rows={rows} bounds={bounds} view={view} now={now} open={open} noun={noun} onChange={show} />
      <div className={css.axis} aria-hidden="true">
        {ticks(view, bounds.from, Math.max(2, width / 110)).map((tick) => (
          <span key={tick} style={{ left: x(bounds.from + tick) }}>
            {tick === 0 ? "0" : x(bounds.from + tick) < width - labelWidth && `+${span(tick / 1000)}`}
          </span>
        ))}
      </div>
      <div className={css.scroll} ref={scroller} style={{ height: rows.length * rowHeight }}>
        <div
          className={css.plot}
          ref={plot.ref}
          style={{ height, marginBottom: -height }}
          aria-hidden="true"
          onPointerDown={(event) => {
            if (event.button !== 0) return;
            drag.current = { x: event.clientX, view, moved: false };
            event.currentTarget.setPointerCapture(event.pointerId);
          }}
          onPointerMove={onMove}
          onPointerUp={(event) => {
            const { row } = at(event);
            if (drag.current && !drag.current.moved && row) onSelect(row.key);
            drag.current = undefined;
          }}
          onPointerCancel={() => {
            drag.current = undefined;
          }}
          onPointerLeave={() => setTip(undefined)}
        >
          <canvas ref={canvas} />
        </div>
        <div className={css.rows} style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const row = rows[item.index];
            if (!row) return null;
            return (
              <button
                key={row.key}
                type="button"
                data-row
                className={css.label}
                style={{ top: item.start, height: above || rowHeight }}
                aria-pressed={row.key === selected}
                title={row.error ? `${row.key}: ${row.error}` : row.key}
                onClick={() => onSelect(row.key)}
              >
                <Shape tone={toneOf(row)} />
                <bdi>{row.key}</bdi>
                <span className="sr-only">
                  {row.tasks === 1 ? words[row.state] : `${plural(row.tasks, "task")}, ${count(row.failed)} failed`}
                </span>
                <small>{row.segments.some(executing) && span(executed(row, now, open))}</small>
              </button>
            );
          })}
        </div>
      </div>
      {tip && <Tip {...tip} now={now} open={open} />}
    </div>
  );
}

export const toneOf = (row: GanttRow) => taskTone[row.state];

function Tip({
  x,
  y,
  row,
  segment,
  now,
  open,
}: {
  x: number;
  y: number;
  row: GanttRow;
  segment: GanttSegment | undefined;
  now: number;
  open: number;
}) {
  const left = Math.min(x + 14, window.innerWidth - 350);
  return (
    <div className={css.tip} style={{ left, top: y + 16 }} role="presentation">
      <strong>
        <bdi>{row.key}</bdi>
      </strong>
      {segment && (
        <>
          {phaseWords[segment.phase]} {executing(segment) && segment.phase !== "RUNNING" ? "" : "for "}
          {span((endOf(segment, now, open) - start(segment)) / 1000)}
          {segment.attempt && segment.attempt > 1 ? `, attempt ${segment.attempt}` : ""}
          {segment.tasks && segment.tasks > 1 ? `, ${plural(segment.tasks, "task")}` : ""}
        </>
      )}
    </div>
  );
}

function Legend({ colours }: { colours: Theme }) {
  const stripes = `repeating-linear-gradient(135deg, ${colours.stale} 0 1.5px, ${colours["stale-soft"]} 1.5px 4px)`;
  const items: [string, string][] = [
    ["waits for upstream", `linear-gradient(${colours.strong}, ${colours.strong}) center / 100% 1px no-repeat`],
    ["waits for a limit", stripes],
    ["in the queue", `linear-gradient(${colours.strong}, ${colours.strong}) center / 100% 7px no-repeat`],
    [
      "waits for a retry",
      `repeating-linear-gradient(90deg, ${colours.stale} 0 3px, transparent 3px 6px) center / 100% 2px no-repeat`,
    ],
    ["succeeded", colours.fresh],
    ["failed", colours.failed],
    ["executing", colours.running],
    ["critical path", `linear-gradient(${colours.text}, ${colours.text}) bottom / 100% 2px no-repeat`],
  ];
  return (
    <div className={css.legend}>
      {items.map(([label, background]) => (
        <span key={label}>
          <span className={css.swatch} style={{ background }} />
          {label}
        </span>
      ))}
    </div>
  );
}

// Overview shows how many rows executed at once. Dragging over it selects a time range.
function Overview({
  rows,
  bounds,
  view,
  now,
  open,
  noun,
  onChange,
}: {
  rows: GanttRow[];
  bounds: Range;
  view: Range;
  now: number;
  open: number;
  noun: string;
  onChange: (range: Range | undefined) => void;
}) {
  const colours = useColors();
  const box = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const from = useRef<number>(undefined);
  const parts = Math.max(1, Math.floor(box.width / 3));
  // A segment of an asset merges tasks that may have executed one after another, so each row counts once.
  const counts = useMemo(
    () =>
      concurrency(
        rows.flatMap((row) => executions(row, now, open)),
        bounds,
        parts,
      ),
    [rows, bounds, now, open, parts],
  );
  const most = Math.max(...counts, 1);
  useEffect(() => {
    const context = canvas.current && prepare(canvas.current, box.width, box.height);
    if (!context) return;
    const step = box.width / parts;
    context.fillStyle = colours.running;
    context.globalAlpha = 0.75;
    counts.forEach((n, i) => {
      const h = (n / most) * (box.height - 8);
      context.fillRect(i * step, box.height - h, Math.max(step - 0.5, 1), h);
    });
    context.globalAlpha = 1;
    const scale = box.width / (bounds.to - bounds.from || 1);
    const [from, to] = [(view.from - bounds.from) * scale, (view.to - bounds.from) * scale];
    if (to - from < box.width - 1) {
      context.fillStyle = colours.bg;
      context.globalAlpha = 0.7;
      context.fillRect(0, 0, from, box.height);
      context.fillRect(to, 0, box.width - to, box.height);
      context.globalAlpha = 1;
      context.strokeStyle = colours.accent;
      context.strokeRect(from + 0.5, 0.5, Math.max(to - from - 1, 1), box.height - 1);
    }
  });
  const time = (event: PointerEvent) => {
    const rect = event.currentTarget.getBoundingClientRect();
    return bounds.from + ((event.clientX - rect.left) / (rect.width || 1)) * (bounds.to - bounds.from);
  };
  return (
    <div
      className={css.overview}
      ref={box.ref}
      onPointerDown={(event) => {
        if (event.button !== 0) return;
        from.current = time(event);
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        if (from.current === undefined) return;
        const [a, b] = [from.current, time(event)].sort((x, y) => x - y);
        if (a !== undefined && b !== undefined && b - a > (bounds.to - bounds.from) / 200) onChange({ from: a, to: b });
      }}
      onPointerUp={(event) => {
        if (from.current !== undefined && Math.abs(time(event) - from.current) < (bounds.to - bounds.from) / 200)
          onChange(undefined);
        from.current = undefined;
      }}
    >
      <span>at most {plural(most, noun)} at once</span>
      <canvas ref={canvas} />
    </div>
  );
}
