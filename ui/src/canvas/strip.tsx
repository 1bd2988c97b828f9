import { type PointerEvent, useEffect, useRef, useState } from "react";
import type { PartitionSummary, PartitionSummaryBucket } from "../api/types";
import { count } from "../app/format";
import type { Theme } from "../style/tokens";
import { hatch, prepare, useColors, useSize } from "./draw";
import css from "./strip.module.css";

const statuses = ["fresh", "stale", "missing", "failed"] as const;
const totalOf = (b: PartitionSummaryBucket) => statuses.reduce((sum, status) => sum + b[status], 0);

// bucketText describes a bucket in words.
export function bucketText(b: PartitionSummaryBucket): string {
  const parts = statuses
    .filter((status) => b[status] > 0)
    .map((status) => (totalOf(b) === 1 ? status : `${count(b[status])} ${status}`));
  return `${b.from === b.to ? b.from : `${b.from} to ${b.to}`}: ${parts.join(", ") || "none expected"}`;
}

function drawBucket(
  context: CanvasRenderingContext2D,
  b: PartitionSummaryBucket,
  x: number,
  w: number,
  height: number,
  colours: Theme,
) {
  const total = totalOf(b);
  if (total === 0) return;
  let y = height;
  const part = (n: number, fill: string | CanvasPattern, under?: string) => {
    if (n === 0) return;
    const h = Math.max(3, (n / total) * height);
    y = Math.max(0, y - h);
    if (under) {
      context.fillStyle = under;
      context.fillRect(x, y, w, h);
    }
    context.fillStyle = fill;
    context.fillRect(x, y, w, h);
  };
  part(b.fresh, colours.fresh);
  part(b.stale, hatch(context, colours.stale), colours["stale-soft"]);
  const missing = b.missing;
  if (missing > 0) {
    part(missing, colours["waiting-soft"]);
    if (w > 4) {
      context.strokeStyle = colours.strong;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, w - 1, Math.max((missing / total) * height - 1, 2));
    }
  }
  if (b.failed > 0) {
    // A failure must be visible among thousands of other partitions, even to people who do not see its colour. So it is
    // at least 8 pixels high, and has crossed lines.
    const h = Math.min(height, Math.max(8, (b.failed / total) * height));
    context.fillStyle = colours["failed-soft"];
    context.fillRect(x, 0, w, h);
    context.fillStyle = hatch(context, colours.failed, true);
    context.fillRect(x, 0, w, h);
  }
}

function Plot({
  buckets,
  selected,
  onHover,
  onSelect,
}: {
  buckets: PartitionSummaryBucket[];
  selected: string | undefined;
  onHover: (from: string | undefined) => void;
  onSelect: (bucket: PartitionSummaryBucket) => void;
}) {
  const colours = useColors();
  const box = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current && prepare(canvas.current, box.width, box.height);
    if (!context) return;
    const step = box.width / buckets.length;
    const gap = step > 5 ? 1.5 : step > 3 ? 0.6 : 0;
    buckets.forEach((b, i) => {
      drawBucket(context, b, i * step, Math.max(step - gap, 0.8), box.height, colours);
      if (selected !== undefined && b.from <= selected && selected <= b.to) {
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(i * step + 1, 1, Math.max(step - gap - 2, 2), box.height - 2);
      }
    });
  });
  const at = (event: PointerEvent) => {
    const rect = event.currentTarget.getBoundingClientRect();
    return buckets[Math.floor(((event.clientX - rect.left) / (rect.width || 1)) * buckets.length)];
  };
  return (
    <div
      className={css.plot}
      ref={box.ref}
      aria-hidden="true"
      onPointerMove={(event) => onHover(at(event)?.from)}
      onPointerLeave={() => onHover(undefined)}
      onPointerUp={(event) => {
        const bucket = at(event);
        if (bucket && event.button === 0) onSelect(bucket);
      }}
    >
      <canvas ref={canvas} />
    </div>
  );
}

// StripView shows the partitions of an asset by the values of a dimension. A table with the same partitions
// is below it.
export function StripView({
  summary,
  selected,
  onSelect,
}: {
  summary: PartitionSummary;
  selected: string | undefined;
  onSelect: (bucket: PartitionSummaryBucket) => void;
}) {
  const [hovered, setHovered] = useState<string>();
  const hover = summary.buckets.find((b) => b.from === hovered);
  const [first, last] = [summary.buckets[0], summary.buckets.at(-1)];
  if (!first || !last) return null;
  return (
    <div className={css.strip}>
      <h2 className={css.name}>{summary.dimension}</h2>
      <Plot buckets={summary.buckets} selected={selected} onHover={setHovered} onSelect={onSelect} />
      <p className={css.ends}>
        <bdi>{first.from}</bdi>
        <bdi>{hover ? bucketText(hover) : ""}</bdi>
        <bdi>{last.to}</bdi>
      </p>
    </div>
  );
}

export function StripLegend() {
  const colours = useColors();
  const crosses = [45, 135]
    .map((degrees) => `repeating-linear-gradient(${degrees}deg, ${colours.failed} 0 1.5px, transparent 1.5px 4px)`)
    .join(", ");
  const stripes = `repeating-linear-gradient(135deg, ${colours.stale} 0 1.5px, ${colours["stale-soft"]} 1.5px 4px)`;
  return (
    <div className={css.legend}>
      {[
        ["fresh", colours.fresh],
        ["stale", stripes],
        ["missing", colours["waiting-soft"]],
        ["failed", `${crosses}, ${colours["failed-soft"]}`],
      ].map(([label, background]) => (
        <span key={label}>
          <span
            className={css.swatch}
            style={{
              background,
              outline: label === "missing" ? `1px solid ${colours.strong}` : "none",
              outlineOffset: -1,
            }}
          />
          {label}
        </span>
      ))}
    </div>
  );
}
