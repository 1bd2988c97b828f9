import { useState } from "react";
import { path, post } from "../api/client";
import { refresh, useBackfills } from "../api/queries";
import type { Backfill } from "../api/types";
import { count, plural, shortID } from "../app/format";
import { Confirm } from "../parts/confirm";
import { Badge, Bar, Button, Card, Command, Empty, Problem, Skeleton, Time } from "../parts/parts";
import type { Tone } from "../parts/status";
import table from "../parts/table.module.css";
import page from "./page.module.css";

const tones: Record<string, Tone> = {
  RUNNING: "running",
  PAUSED: "waiting",
  CANCELLING: "stale",
  SUCCEEDED: "fresh",
  FAILED: "failed",
  CANCELLED: "waiting",
};

type Verb = "pause" | "resume" | "cancel" | "retry-failed";

// verbs returns the actions that are possible in the state of a backfill.
export function verbs(b: Backfill): Verb[] {
  switch (b.state) {
    case "RUNNING":
      return ["pause", "cancel"];
    case "PAUSED":
      return b.failed + b.skipped > 0 ? ["resume", "retry-failed", "cancel"] : ["resume", "cancel"];
    case "FAILED":
      return ["retry-failed"];
    default:
      return [];
  }
}

const labels: Record<Verb, string> = {
  pause: "Pause",
  resume: "Resume",
  cancel: "Cancel",
  "retry-failed": "Retry failed",
};

const effects: Record<Verb, string> = {
  pause: "No further runs start. Live runs continue.",
  resume: "The backfill starts runs again.",
  cancel: "The backfill ends, and its live runs are cancelled. What it has materialized stays.",
  "retry-failed": "The partitions that failed or were skipped run again.",
};

export function Backfills() {
  const { data, error, refetch } = useBackfills();
  return (
    <>
      <div className={page.head}>
        <h1>Backfills</h1>
      </div>
      {error && <Problem error={error} retry={() => void refetch()} />}
      <Card>
        {!data && !error && <Skeleton />}
        {data?.backfills.length === 0 && (
          <Empty title="There are no backfills">
            <p>
              A backfill materializes many partitions in chunks, and can be paused. This command shows what one would
              do:
            </p>
            <Command text="servo backfill create ASSET -p date=2025-01-01..2025-12-31 --dry-run" />
          </Empty>
        )}
        {data && data.backfills.length > 0 && (
          <div className={table.wrap}>
            <table className={table.table}>
              <thead>
                <tr>
                  <th scope="col">State</th>
                  <th scope="col">Backfill</th>
                  <th scope="col">Partitions</th>
                  <th scope="col">Created</th>
                  <th scope="col">
                    <span className="sr-only">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {data.backfills.map((b) => (
                  <Line key={b.backfill_id} b={b} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
    </>
  );
}

function Line({ b }: { b: Backfill }) {
  const [asking, setAsking] = useState<Verb>();
  const text = [
    `${count(b.done)} of ${plural(b.partitions, "partition")}`,
    b.failed && `${count(b.failed)} failed`,
    b.skipped && `${count(b.skipped)} skipped`,
    b.running && `${count(b.running)} running`,
  ]
    .filter(Boolean)
    .join(", ");
  return (
    <tr>
      <td>
        <Badge tone={tones[b.state] ?? "waiting"}>{b.state.toLowerCase()}</Badge>
      </td>
      <td className={table.wide}>
        <strong data-row tabIndex={-1}>
          <bdi>{b.assets.join(", ")}</bdi>
        </strong>{" "}
        {b.partition_selection.join(", ")}
        <div className={table.muted}>
          <code title={b.backfill_id}>{shortID(b.backfill_id)}</code> {b.pause_reason}
        </div>
      </td>
      <td style={{ minWidth: 160 }}>
        <Bar
          label={text}
          parts={[
            { tone: "fresh", count: b.done },
            { tone: "failed", count: b.failed },
            { tone: "stale", count: b.skipped },
            { tone: "running", count: b.running },
            { tone: "waiting", count: b.left },
          ]}
        />
        <span className={table.muted}>{text}</span>
      </td>
      <td className={table.nowrap} data-label="Created">
        <Time at={b.created_at} />
      </td>
      <td>
        <div style={{ display: "flex", gap: 6, justifyContent: "flex-end", flexWrap: "wrap" }}>
          {verbs(b).map((verb) => (
            <Button key={verb} kind={verb === "cancel" ? "danger" : undefined} onClick={() => setAsking(verb)}>
              {labels[verb]}
            </Button>
          ))}
        </div>
        {asking && (
          <Confirm
            title={`${labels[asking]}: backfill ${shortID(b.backfill_id)}`}
            effect={effects[asking]}
            command={`servo backfill ${asking} ${shortID(b.backfill_id)}`}
            action={labels[asking]}
            danger={asking === "cancel"}
            reason={asking === "pause" || asking === "cancel"}
            onClose={() => setAsking(undefined)}
            onConfirm={async (reason) => {
              await post(
                path(["backfills", b.backfill_id], {}, asking === "retry-failed" ? "retry" : asking),
                asking === "pause" || asking === "cancel" ? { reason } : {},
              );
              refresh();
            }}
          />
        )}
      </td>
    </tr>
  );
}
