import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { Empty, Problem, Skeleton } from "../parts/parts";
import { lacksFile } from "./renew";
import { Shell } from "./shell";

// The parameters of a page are in its address, so that a reload, the back button and a shared link show the same page.
// Unknown and malformed parameters are dropped.

type Raw = Record<string, unknown>;

const text = (value: unknown) => (typeof value === "string" && value !== "" ? value : undefined);

const oneOf = <T extends string>(value: unknown, choices: readonly T[]): T | undefined =>
  choices.find((choice) => choice === value);

// given drops members without a value.
function given<T extends Raw>(search: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(search).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>;
  };
}

export const runFilters = ["live", "failed", "succeeded", "cancelled"] as const;
export const assetFilters = ["failed", "stale", "missing", "fresh"] as const;
export const partitionFilters = ["fresh", "stale", "missing", "failed"] as const;
export const assetTabs = ["partitions", "data", "lineage", "runs", "checks", "schema", "code"] as const;
export const graphWays = ["upstream", "downstream"] as const;
export const graphDepths = ["1", "2", "3", "100"] as const;

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });

const overview = createRoute({
  getParentRoute: () => root,
  path: "/",
  component: lazyRouteComponent(() => import("../pages/overview"), "Overview"),
});

const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  validateSearch: (raw: Raw) =>
    given({
      show: oneOf(raw.show, runFilters),
      asset: text(raw.asset),
      trigger: oneOf(raw.trigger, ["manual", "cron", "backfill", "retry"] as const),
      page: text(raw.page),
    }),
  component: lazyRouteComponent(() => import("../pages/runs"), "Runs"),
});

const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$run",
  validateSearch: (raw: Raw) =>
    given({
      task: text(raw.task),
      view: oneOf(raw.view, ["table"] as const),
      show: oneOf(raw.show, ["failed", "running", "waiting"] as const),
      attempt: text(raw.attempt),
      panel: oneOf(raw.panel, ["log", "events"] as const),
    }),
  component: lazyRouteComponent(() => import("../pages/run"), "RunPage"),
});

const assets = createRoute({
  getParentRoute: () => root,
  path: "/assets",
  validateSearch: (raw: Raw) =>
    given({
      q: text(raw.q),
      show: oneOf(raw.show, assetFilters),
      view: oneOf(raw.view, ["graph"] as const),
      level: oneOf(raw.level, ["groups", "assets"] as const),
      open: text(raw.open),
      focus: text(raw.focus),
      way: oneOf(raw.way, graphWays),
      depth: oneOf(raw.depth, graphDepths),
    }),
  component: lazyRouteComponent(() => import("../pages/assets"), "Assets"),
});

const asset = createRoute({
  getParentRoute: () => root,
  path: "/assets/$namespace/$name",
  validateSearch: (raw: Raw) =>
    given({
      tab: oneOf(raw.tab, assetTabs),
      partition: text(raw.partition),
      status: oneOf(raw.status, partitionFilters),
      page: text(raw.page),
      way: oneOf(raw.way, graphWays),
      depth: oneOf(raw.depth, graphDepths),
    }),
  component: lazyRouteComponent(() => import("../pages/asset"), "AssetPage"),
});

const schedules = createRoute({
  getParentRoute: () => root,
  path: "/schedules",
  validateSearch: (raw: Raw) => given({ schedule: text(raw.schedule) }),
  component: lazyRouteComponent(() => import("../pages/schedules"), "Schedules"),
});

const backfills = createRoute({
  getParentRoute: () => root,
  path: "/backfills",
  component: lazyRouteComponent(() => import("../pages/backfills"), "Backfills"),
});

const sql = createRoute({
  getParentRoute: () => root,
  path: "/sql",
  validateSearch: (raw: Raw) => given({ q: text(raw.q), at: text(raw.at) }),
  component: lazyRouteComponent(() => import("../pages/sql"), "SqlPage"),
});

function NotFound() {
  return (
    <Empty title="This page does not exist">
      <p>No screen has this address. Choose a screen above, or press Ctrl K.</p>
    </Empty>
  );
}

// The first segments of the address name the workspace: /w/TENANT/WORKSPACE.
const base = window.location.pathname.split("/").slice(0, 4).join("/");

export const router = createRouter({
  routeTree: root.addChildren([overview, runs, run, assets, asset, schedules, backfills, sql]),
  basepath: base,
  // Every parameter is a text. The router's own functions would read "1e5" as a number.
  parseSearch: (search) => Object.fromEntries(new URLSearchParams(search)),
  stringifySearch: (search) => {
    const given = Object.entries(search).filter((entry): entry is [string, string] => typeof entry[1] === "string");
    return given.length > 0 ? `?${new URLSearchParams(given)}` : "";
  },
  defaultPreload: "intent",
  defaultPendingMs: 150,
  defaultPendingMinMs: 0,
  defaultPendingComponent: () => <Skeleton />,
  // A component whose file could not be loaded stays broken until the page is loaded again.
  defaultErrorComponent: ({ error, reset }) => (
    <Problem error={error} retry={lacksFile(error) ? () => window.location.reload() : reset} />
  ),
  defaultNotFoundComponent: NotFound,
  scrollRestoration: false,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
  interface HistoryState {
    sheet?: boolean; // the entry of a sheet: see pages/run.tsx
  }
}
