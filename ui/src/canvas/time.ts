// Arithmetic of time axes.

export interface Range {
  from: number; // milliseconds
  to: number;
}

const steps = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 28_800_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000,
];

// stepOf returns the smallest step that divides a range into no more parts than most.
export function stepOf(range: Range, most: number): number {
  const span = Math.max(range.to - range.from, 1);
  return steps.find((step) => span / step <= most) ?? Math.ceil(span / most / 604_800_000) * 604_800_000;
}

// ticks returns the offsets from an origin at which an axis has labels.
export function ticks(range: Range, origin: number, most: number): number[] {
  const step = stepOf(range, most);
  const found: number[] = [];
  for (let at = Math.ceil((range.from - origin) / step) * step; at <= range.to - origin; at += step) found.push(at);
  return found;
}

// zoom changes the width of a range by a factor and keeps a fixed point in place. The range stays within
// bounds, and is at least a millisecond wide.
export function zoom(range: Range, factor: number, fixed: number, bounds: Range): Range {
  const width = Math.min(Math.max((range.to - range.from) * factor, 1), bounds.to - bounds.from);
  const share = (fixed - range.from) / (range.to - range.from || 1);
  return within({ from: fixed - width * share, to: fixed + width * (1 - share) }, bounds);
}

// within moves a range into bounds.
export function within(range: Range, bounds: Range): Range {
  const width = Math.min(range.to - range.from, bounds.to - bounds.from);
  const from = Math.min(Math.max(range.from, bounds.from), bounds.to - width);
  return { from, to: from + width };
}

// covers reports whether a range is all of the bounds.
export const covers = (range: Range, bounds: Range) => range.from <= bounds.from && range.to >= bounds.to;

export interface Interval {
  from: number;
  to: number;
}

// union returns the times that at least one of the intervals covers, as intervals that do not touch, first one first.
export function union(intervals: Interval[]): Interval[] {
  const covered: Interval[] = [];
  for (const { from, to } of [...intervals].sort((a, b) => a.from - b.from)) {
    const last = covered.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, to);
    else covered.push({ from, to });
  }
  return covered;
}

// concurrency divides a range into n equal parts, and returns for each part the greatest number of intervals that
// overlap in it.
export function concurrency(intervals: Interval[], range: Range, n: number): number[] {
  const width = (range.to - range.from) / n || 1;
  const changes: { at: number; by: number }[] = [];
  for (const i of intervals) {
    if (i.to > range.from && i.from < range.to) changes.push({ at: i.from, by: 1 }, { at: i.to, by: -1 });
  }
  changes.sort((a, b) => a.at - b.at || a.by - b.by);
  const counts = new Array<number>(n).fill(0);
  let open = 0;
  let next = 0;
  for (let part = 0; part < n; part++) {
    const [start, end] = [range.from + part * width, range.from + (part + 1) * width];
    let most = 0;
    for (let c = changes[next]; c && (c.at < end || part === n - 1); c = changes[next]) {
      if (c.at > start) most = Math.max(most, open);
      open += c.by;
      next++;
    }
    most = Math.max(most, open);
    counts[part] = most;
  }
  return counts;
}
