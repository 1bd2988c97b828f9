import { keepPreviousData, type Query, QueryClient, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useSyncExternalStore } from "react";
import { asks } from "./ask";
import { Failure, first, get, path } from "./client";
import { serverTime } from "./clock";
import type {
  Asset,
  AssetGraph,
  CountRunsResponse,
  Gantt,
  GetAssetGraphRequest,
  ListAssetsResponse,
  ListAttentionResponse,
  ListBackfillsResponse,
  ListDeadlinesResponse,
  ListPartitionsResponse,
  ListQuarantinedResponse,
  ListRunsRequest,
  ListRunsResponse,
  ListSchedulesResponse,
  ListTicksResponse,
  PartitionExplanation,
  PartitionSummary,
  Run,
  RunStatus,
  TaskExplanation,
  WatchResponse,
  WhoAmIResponse,
} from "./types";

const slow = 5000;
const quick = 1000;
const rare = 30_000; // the interval while the server streams changes
const soon = 100; // the shortest time between two refetches, in milliseconds
const late = 1000; // the longest
let streaming = false;

// A server that was overloaded or restarting answers later, although no revision follows. A request that the server
// rejected fails again.
const passes = (error: unknown) =>
  error instanceof Failure && (error.status === 0 || error.status === 429 || error.status >= 500);

// every returns a function for refetchInterval: a query whose last call has failed is repeated soon, and others at
// the given interval.
const every =
  (interval: number | false) =>
  ({ state }: { state: { error: Error | null } }): number | false =>
    passes(state.error) ? slow : interval;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: Number.POSITIVE_INFINITY, // answers become stale only with a new revision: see useRevision
      gcTime: 5 * 60_000,
      refetchOnWindowFocus: false,
      refetchInterval: every(false),
      networkMode: "always", // the server is on this machine, which may have no network
      retry: (failures, error) => failures < 2 && error instanceof Failure && error.status === 0,
    },
  },
});

const of = <T>(name: keyof typeof first) => ({
  queryKey: [name],
  queryFn: ({ signal }: { signal: AbortSignal }) => get<T>(first[name], signal),
});
const live = of<ListRunsResponse>("live");
const attention = of<ListAttentionResponse>("attention");
// A page has at most 10,000 assets, so that most projects need one call.
const assets = {
  queryKey: ["assets"],
  queryFn: async ({ signal }: { signal: AbortSignal }): Promise<ListAssetsResponse> => {
    const all = await get<ListAssetsResponse>(first.assets, signal);
    for (let token = all.next_page_token; token !== ""; ) {
      const next = await get<ListAssetsResponse>(path(["assets"], { page_size: 10_000, page_token: token }), signal);
      all.assets.push(...next.assets);
      token = next.next_page_token;
    }
    return all;
  },
};

// prime waits for the answers to the calls that early.ts has sent, so that the page shows them when it first appears.
export const prime = () =>
  Promise.all(
    [live, attention, assets].map((q) => asks(first[q.queryKey[0] as "live"]) && queries.prefetchQuery<unknown>(q)),
  );

// The queries whose answers do not become stale with a new revision.
const steady = new Set<unknown>(["live", "catalog", "sample"]);
const changes = (query: Query) => !steady.has(query.queryKey[0]);

// asked is the newest revision for which the page has sent its queries; undefined: the first answers have not
// arrived. newest is the newest revision that a stream has reported.
let asked: number | undefined;
let newest = 0;

export const useWhoAmI = () =>
  useQuery({
    queryKey: ["whoami"],
    queryFn: ({ signal }) => get<WhoAmIResponse>(path(["whoami"]), signal),
  });

// useReadOnly reports whether the server shows a bucket and rejects all changes.
export const useReadOnly = () => useWhoAmI().data?.mode === "read_only";

// useLive asks for the live runs; the answer also contains the newest revision. Without a stream of changes, useLive
// asks every second while a run is live, and otherwise every five seconds. A hidden page does not ask.
export const useLive = () =>
  useQuery({
    ...live,
    refetchInterval: ({ state }) => (state.error ? slow : streaming ? rare : state.data?.runs.length ? quick : slow),
    refetchOnWindowFocus: "always",
    retry: false,
  });

// useWatch follows the changes of the state while the page is visible: a hidden page needs no connection, and
// browsers allow few. The browser connects again by itself. The page shows the first change immediately. It collects
// the changes that arrive during a refetch or in the pause after it, and shows them together. The pause is longer if
// the server is slow, so that a page takes at most a fifth of the server's time.
export function useWatch() {
  const client = useQueryClient();
  useEffect(() => {
    let source: EventSource | undefined;
    let timer = 0;
    let busy = false;
    const look = async () => {
      const began = performance.now();
      busy = true;
      asked = newest;
      await client.invalidateQueries({ predicate: (query) => query.queryKey[0] === "live" || changes(query) });
      const pause = Math.min(Math.max(4 * (performance.now() - began), soon), late);
      timer = window.setTimeout(() => {
        busy = false;
        if (asked === undefined || newest > asked) void look();
      }, pause);
    };
    const changed = (event: MessageEvent<string>) => {
      streaming = true;
      const { revision, resync } = JSON.parse(event.data) as WatchResponse;
      newest = revision;
      if (asked === undefined || (!resync && revision <= asked)) return; // the page has asked for this revision
      if (!busy) void look();
      else if (resync) asked = 0; // the revision in asked may belong to another timeline
    };
    const lost = () => {
      if (streaming) void client.invalidateQueries({ queryKey: ["live"] }); // if the server is gone, this call fails
      streaming = false;
    };
    const follow = () => {
      source?.close();
      source = undefined;
      streaming = false;
      if (document.hidden) return;
      source = new EventSource(path(["watch"]));
      for (const name of ["changes", "resync"]) source.addEventListener(name, changed);
      source.addEventListener("error", lost);
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      clearTimeout(timer);
      source?.close();
    };
  }, [client]);
}

// useRevision refetches the visible queries when the list of live runs shows a revision that no stream has reported.
export function useRevision() {
  const client = useQueryClient();
  const { data } = useLive();
  const revision = data?.revision;
  useEffect(() => {
    if (revision === undefined || revision === asked) return;
    if (asked !== undefined || newest > revision) void client.invalidateQueries({ predicate: changes });
    asked = revision;
  }, [revision, client]);
}

// refresh asks for everything on the screen again, after the page itself has changed something.
export function refresh() {
  void queries.invalidateQueries();
}

export const useRuns = (request: ListRunsRequest) =>
  useQuery({
    queryKey: ["runs", request],
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => get<ListRunsResponse>(path(["runs"], { page_size: 100, ...request }), signal),
  });

// useRunCounts counts the runs of the last 24 hours. The hours move on although no revision follows.
export const useRunCounts = () =>
  useQuery({
    queryKey: ["run-counts"],
    refetchInterval: every(10 * 60_000),
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => get<CountRunsResponse>(path(["run-counts"]), signal),
  });

export interface RunDetail {
  run: Run;
  status: RunStatus;
  gantt: Gantt;
}

export const useRunDetail = (run: string) =>
  useQuery({
    queryKey: ["run", run],
    queryFn: async ({ signal }): Promise<RunDetail> => {
      const [one, status, gantt] = await Promise.all([
        get<Run>(path(["runs", run]), signal),
        get<RunStatus>(path(["runs", run, "status"]), signal),
        get<Gantt>(path(["runs", run, "gantt"], { pixels: 2000 }), signal),
      ]);
      return { run: one, status, gantt };
    },
  });

export const useExplanation = (run: string, task: string) =>
  useQuery({
    queryKey: ["explain", run, task],
    queryFn: ({ signal }) => get<TaskExplanation>(path(["runs", run, "tasks", task], {}, "explain"), signal),
  });

export const useAssets = () =>
  useQuery({
    ...assets,
  });

export const useGraph = (request: GetAssetGraphRequest) =>
  useQuery({
    queryKey: ["graph", request],
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => get<AssetGraph>(path(["asset-graph"], { ...request }), signal),
  });

export const useAsset = (key: string) =>
  useQuery({
    queryKey: ["asset", key],
    queryFn: ({ signal }) => get<Asset>(path(["assets", ...key.split("/")]), signal),
  });

export const useStrip = (key: string, dimension: string) =>
  useQuery({
    queryKey: ["strip", key, dimension],
    queryFn: ({ signal }) =>
      get<PartitionSummary>(
        path(["assets", ...key.split("/"), "partitions"], { dimension, buckets: 512 }, "summary"),
        signal,
      ),
  });

export const usePartitions = (key: string, status: string | undefined, page: string | undefined) =>
  useQuery({
    queryKey: ["partitions", key, status, page],
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) =>
      get<ListPartitionsResponse>(
        path(["assets", ...key.split("/"), "partitions"], { status, page_token: page, page_size: 200 }),
        signal,
      ),
  });

export const usePartition = (key: string, partition: string) =>
  useQuery({
    queryKey: ["partition", key, partition],
    queryFn: ({ signal }) =>
      get<PartitionExplanation>(
        path(["assets", ...key.split("/"), ...(partition ? ["partitions", partition] : [])], {}, "explain"),
        signal,
      ),
  });

export const useAttention = () =>
  useQuery({
    ...attention,
    refetchInterval: every(60_000), // deadlines pass and calendars advance without a new revision
  });

export const useQuarantine = () =>
  useQuery({
    queryKey: ["quarantine"],
    queryFn: ({ signal }) => get<ListQuarantinedResponse>(path(["quarantine"]), signal),
  });

export const useDeadlines = () =>
  useQuery({
    queryKey: ["deadlines"],
    queryFn: ({ signal }) => get<ListDeadlinesResponse>(path(["deadlines"]), signal),
    refetchInterval: every(60_000),
  });

export const useSchedules = () =>
  useQuery({
    queryKey: ["schedules"],
    queryFn: ({ signal }) => get<ListSchedulesResponse>(path(["schedules"]), signal),
  });

export const useTicks = (schedule: string) =>
  useQuery({
    queryKey: ["ticks", schedule],
    queryFn: ({ signal }) => get<ListTicksResponse>(path(["schedules", schedule, "ticks"]), signal),
  });

export const useBackfills = () =>
  useQuery({
    queryKey: ["backfills"],
    queryFn: ({ signal }) => get<ListBackfillsResponse>(path(["backfills"]), signal),
  });

let now = serverTime();
const listeners = new Set<() => void>();
setInterval(() => {
  now = serverTime();
  if (!document.hidden) for (const tell of listeners) tell();
}, 1000);

// useNow returns the time by the server's clock, and renders the component again each second.
export function useNow(): number {
  return useSyncExternalStore(
    (tell) => {
      listeners.add(tell);
      return () => listeners.delete(tell);
    },
    () => now,
  );
}
