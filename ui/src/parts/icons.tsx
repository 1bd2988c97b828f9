import type { SVGProps } from "react";

// The icons are part of the script, so that the page loads no image files. Each icon is decorative: the text beside it
// has the meaning.
const paths = {
  overview: "M3 3h6v7H3zM11 3h6v4h-6zM11 9h6v8h-6zM3 12h6v5H3z",
  assets: "M10 2.5 17 6v8l-7 3.5L3 14V6zM3 6l7 3.5L17 6M10 9.5v8",
  runs: "M5 3.5v13l11-6.5z",
  schedules: "M10 3a7 7 0 1 1 0 14 7 7 0 0 1 0-14M10 6v4l3 2",
  backfills: "M3 5h14M3 10h9M3 15h5M14 12v5m-2.5-2.5h5",
  graph: "M3 4h5v4H3zM12 3h5v4h-5zM12 13h5v4h-5zM8 6h4M10 6v9h2",
  sql: "M3 5l5 5-5 5M10 16h7",
  search: "M9 3.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M13 13l4 4",
  sun: "M10 6.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M4.3 15.7l1.4-1.4M14.3 5.7l1.4-1.4",
  moon: "M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z",
  retry: "M16 10a6 6 0 1 1-1.8-4.3M16 3v4h-4",
  cancel: "M10 3a7 7 0 1 1 0 14 7 7 0 0 1 0-14M7.5 7.5l5 5M12.5 7.5l-5 5",
  plus: "M10 4v12M4 10h12",
  minus: "M4 10h12",
  close: "M5 5l10 10M15 5 5 15",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  copy: "M7 7V3.5h9.5V13H13M3.5 7H13v9.5H3.5z",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.7h7",
  table: "M3 4h14v12H3zM3 8h14M8 8v8",
  chart: "M3 5h7M6 10h8M10 15h7",
  pause: "M6.5 4v12M13.5 4v12",
  up: "M10 16V4M5 9l5-5 5 5",
  fit: "M3 7V3h4M17 7V3h-4M3 13v4h4M17 13v4h-4",
  file: "M5 2.5h7l3.5 3.5v11.5H5zM12 2.5V6h3.5",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name, size = 16, ...rest }: { name: IconName; size?: number } & SVGProps<SVGSVGElement>) {
  return (
    <svg
      viewBox="0 0 20 20"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth={1.6}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      {...rest}
    >
      <path d={paths[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" width={22} height={22} aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#2f5fd0" />
      <path
        d="M8 11h9a4 4 0 0 1 4 4v6m0 0-3-3m3 3 3-3"
        fill="none"
        stroke="#fff"
        strokeWidth="2.6"
        strokeLinecap="round"
        strokeLinejoin="round"
      />
      <circle cx="8" cy="11" r="2.6" fill="#fff" />
      <circle cx="8" cy="21" r="2.6" fill="#a9c2f7" />
    </svg>
  );
}
