import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { liveStates } from "../api/client";
import { useNow, useRuns } from "../api/queries";
import type { ListRunsRequest, Run, RunState } from "../api/types";
import { count, plural, shortID, span } from "../app/format";
import {
  Badge,
  Bar,
  Button,
  buttonClass,
  Card,
  Command,
  Empty,
  Problem,
  Segmented,
  Skeleton,
  Time,
} from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { ended, runTone, words } from "../parts/status";
import table from "../parts/table.module.css";
import css from "./page.module.css";

const states = {
  live: liveStates,
  failed: ["FAILED", "TIMED_OUT"],
  succeeded: ["SUCCEEDED"],
  cancelled: ["CANCELLED"],
} satisfies Record<string, RunState[]>;

export function seconds(run: Run, now: number): number {
  return (Date.parse(run.completed_at ?? "") || now) / 1000 - Date.parse(run.created_at ?? "") / 1000;
}

export function progressParts(run: Run) {
  const t = run.tasks;
  return [
    { tone: "fresh" as const, count: t.SUCCEEDED ?? 0 },
    { tone: "failed" as const, count: t.FAILED ?? 0 },
    { tone: "stale" as const, count: (t.SKIPPED ?? 0) + (t.RETRY_WAIT ?? 0) },
    { tone: "running" as const, count: t.RUNNING ?? 0 },
  ];
}

export function progressText(run: Run): string {
  const t = run.tasks;
  const done = (t.SUCCEEDED ?? 0) + (t.FAILED ?? 0) + (t.SKIPPED ?? 0) + (t.CANCELLED ?? 0);
  const parts = [
    ended(run.state) ? plural(run.tasks_total, "task") : `${count(done)} of ${plural(run.tasks_total, "task")}`,
  ];
  if (t.FAILED) parts.push(`${count(t.FAILED)} failed`);
  if (t.SKIPPED) parts.push(`${count(t.SKIPPED)} skipped`);
  if (t.RUNNING) parts.push(`${count(t.RUNNING)} running`);
  return parts.join(", ");
}

const triggers: Record<string, string> = {
  manual: "by hand",
  cron: "by a schedule",
  backfill: "by a backfill",
  retry: "as a retry",
};
export const triggerWord = (trigger: string) => triggers[trigger] ?? trigger;

export function assetsText(run: Run): string {
  const named = run.assets;
  const more = run.assets_total - named.length;
  if (named.length === 0) return "all assets";
  if (named.length > 3) return `${named.slice(0, 2).join(", ")} and ${run.assets_total - 2} more`;
  return named.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

// Bars shows how long the newest runs took and how they ended. The oldest of them is on the left.
function Bars({ runs }: { runs: Run[] }) {
  const now = useNow();
  const shown = runs.slice(0, 60).reverse();
  if (shown.length < 3) return null;
  const longest = Math.max(...shown.map((run) => seconds(run, now)), 0.001);
  return (
    <>
      <nav className={css.bars} aria-label="The newest runs by duration">
        {shown.map((run) => (
          <Link
            key={run.run_id}
            to="/runs/$run"
            params={{ run: run.run_id }}
            title={`${words[run.state]} after ${span(seconds(run, now))}: ${assetsText(run)}`}
            aria-label={`Run ${shortID(run.run_id)}: ${words[run.state]} after ${span(seconds(run, now))}`}
            style={{
              height: `${Math.max(8, (seconds(run, now) / longest) * 100)}%`,
              background: `var(--${runTone[run.state]})`,
            }}
          />
        ))}
      </nav>
      <p className={css.barsNote}>
        <span>duration of the newest {shown.length} runs, oldest first</span>
        <span>longest {span(longest)}</span>
      </p>
    </>
  );
}

export function RunsTable({ runs }: { runs: Run[] }) {
  const now = useNow();
  return (
    <div className={table.wrap}>
      <table className={table.table}>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Run</th>
            <th scope="col">Trigger</th>
            <th scope="col">Tasks</th>
            <th scope="col" className={table.num}>
              Duration
            </th>
            <th scope="col" className={table.num}>
              Created
            </th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.run_id}>
              <td>
                <Badge tone={runTone[run.state]}>{words[run.state] ?? run.state}</Badge>
              </td>
              <td className={table.wide}>
                <Link to="/runs/$run" params={{ run: run.run_id }} className={table.cover} data-row title={run.run_id}>
                  <bdi className={table.clip}>{assetsText(run)}</bdi>
                </Link>
                <span className={`${table.muted} ${table.clip}`}>
                  <code>{shortID(run.run_id)}</code>
                  {run.partitions.length > 0 && <bdi> · {run.partitions.slice(0, 2).join(", ")}</bdi>}
                </span>
              </td>
              <td className={`${table.muted} ${table.nowrap}`}>{triggerWord(run.trigger)}</td>
              <td style={{ minWidth: 190 }}>
                <Bar parts={progressParts(run)} label={progressText(run)} />
                <span className={table.muted}>{progressText(run)}</span>
              </td>
              <td className={table.num} data-label="Duration">
                {span(seconds(run, now))}
              </td>
              <td className={table.num} data-label="Created">
                <Time at={run.created_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Runs() {
  const search = useSearch({ from: "/runs" });
  const navigate = useNavigate({ from: "/runs" });
  const [starting, setStarting] = useState(false);
  const { data, error, refetch } = useRuns({
    ...(search.show ? { state: states[search.show] } : {}),
    ...(search.asset ? { asset: search.asset } : {}),
    ...(search.trigger ? { trigger: search.trigger as NonNullable<ListRunsRequest["trigger"]> } : {}),
    ...(search.page ? { page_token: search.page } : {}),
  });
  const filtered = search.show ?? search.asset ?? search.trigger;
  return (
    <>
      <div className={css.head}>
        <h1>Runs</h1>
        <div className={css.spacer} />
        <Button kind="primary" icon="runs" onClick={() => setStarting(true)}>
          Start a run
        </Button>
      </div>
      <div className={css.filters}>
        <Segmented
          label="Show runs"
          value={search.show ?? ""}
          items={[
            { id: "", label: "All" },
            { id: "live", label: "Live" },
            { id: "failed", label: "Failed" },
            { id: "succeeded", label: "Succeeded" },
          ]}
          onChange={(id) => {
            const show = id === "" ? {} : { show: id as keyof typeof states };
            const { asset, trigger } = search;
            void navigate({ search: { ...show, ...(asset ? { asset } : {}), ...(trigger ? { trigger } : {}) } });
          }}
        />
        {search.asset && (
          <Link to="/runs" search={search.show ? { show: search.show } : {}} className={buttonClass}>
            of {search.asset} ✕
          </Link>
        )}
      </div>
      {error && <Problem error={error} retry={() => void refetch()} />}
      <Card>
        {!data && !error && <Skeleton lines={10} />}
        {data && data.runs.length > 0 && (
          <>
            {!filtered && !search.page && <Bars runs={data.runs} />}
            <RunsTable runs={data.runs} />
            <div className={table.more}>
              {search.page && (
                <Link to="/runs" search={{ ...(search.show ? { show: search.show } : {}) }}>
                  Newest runs
                </Link>
              )}
              {data.next_page_token && (
                <Link to="/runs" search={{ ...search, page: data.next_page_token }}>
                  Older runs
                </Link>
              )}
            </div>
          </>
        )}
        {data && data.runs.length === 0 && (
          <Empty title={filtered ? "No run matches the filter" : "Nothing has run yet"}>
            {filtered ? (
              <Link to="/runs">Show all runs</Link>
            ) : (
              <>
                <p>A run materializes assets. This command materializes all of them:</p>
                <Command text="servo run --all" />
              </>
            )}
          </Empty>
        )}
      </Card>
      {starting && <RunDialog onClose={() => setStarting(false)} />}
    </>
  );
}
