import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { path, post } from "../api/client";
import { refresh, useSchedules, useTicks } from "../api/queries";
import type { RunState, Schedule } from "../api/types";
import { count, shortID, span } from "../app/format";
import { useCommands } from "../app/keys";
import { Confirm } from "../parts/confirm";
import { Badge, Button, Card, Command, Empty, Problem, Skeleton, Time } from "../parts/parts";
import { runTone, type Tone, words } from "../parts/status";
import table from "../parts/table.module.css";
import page from "./page.module.css";

const tones: Record<string, Tone> = {
  active: "fresh",
  paused: "waiting",
  error: "failed",
  due: "running",
  ended: "waiting",
};

const toneOf = (status: string): Tone => tones[status] ?? "waiting";

// when describes the definition of a schedule.
export function when(s: Schedule): string {
  const { cron = "", every_sec: every, timezone } = s.definition ?? {};
  if (every) return `every ${span(every)}`;
  return `${cron} ${timezone || "UTC"}`;
}

export function Schedules() {
  const { data, error, refetch } = useSchedules();
  const search = useSearch({ from: "/schedules" });
  const navigate = useNavigate({ from: "/schedules" });
  const chosen = data?.schedules.find((s) => s.schedule === search.schedule);
  useCommands([
    { keys: "Escape", label: "Close the schedule", run: () => void navigate({ search: {}, replace: true }) },
  ]);
  return (
    <>
      <div className={page.head}>
        <h1>Schedules</h1>
      </div>
      {error && <Problem error={error} retry={() => void refetch()} />}
      <div className={page.stack}>
        {chosen && <Detail schedule={chosen} />}
        <Card>
          {!data && !error && <Skeleton />}
          {data?.schedules.length === 0 && (
            <Empty title="The project has no schedules">
              <p>
                Declare one in <code>servo.yaml</code> or in a file in <code>schedules/</code>. This command shows when
                it would tick:
              </p>
              <Command text="servo schedule next" />
            </Empty>
          )}
          {data && data.schedules.length > 0 && <List schedules={data.schedules} chosen={search.schedule} />}
        </Card>
      </div>
    </>
  );
}

function List({ schedules, chosen }: { schedules: Schedule[]; chosen: string | undefined }) {
  return (
    <div className={table.wrap}>
      <table className={table.table}>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Schedule</th>
            <th scope="col">When</th>
            <th scope="col">Next</th>
            <th scope="col">Last run</th>
            <th scope="col" className={table.num}>
              Ticks started, skipped
            </th>
          </tr>
        </thead>
        <tbody>
          {schedules.map((s) => (
            <tr key={s.schedule} data-selected={s.schedule === chosen}>
              <td>
                <Badge tone={toneOf(s.status)}>{s.status}</Badge>
              </td>
              <td>
                <Link to="/schedules" search={{ schedule: s.schedule }} className={table.cover} data-row>
                  <bdi>{s.schedule}</bdi>
                </Link>
              </td>
              <td>
                <code>{when(s)}</code>
              </td>
              <td className={table.nowrap} data-label="Next">
                {s.next_at && !s.paused_at ? <Time at={s.next_at} /> : ""}
              </td>
              <td data-label="Last run">
                {s.last_run && (
                  <Link to="/runs/$run" params={{ run: s.last_run }} className={table.above}>
                    {s.last_run_state ? (
                      <Badge tone={runTone[s.last_run_state as RunState]} bare>
                        {words[s.last_run_state]}
                      </Badge>
                    ) : (
                      shortID(s.last_run)
                    )}
                  </Link>
                )}
              </td>
              <td className={table.num} data-label="Ticks started, skipped">
                {count(s.ticks_started)}, {count(s.ticks_skipped)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Detail({ schedule: s }: { schedule: Schedule }) {
  const ticks = useTicks(s.schedule);
  const [asking, setAsking] = useState<"pause" | "resume" | "trigger">();
  const paused = s.paused_at !== undefined;
  const send = (verb: string) => async (reason: string) => {
    await post(path(["schedules", s.schedule], {}, verb), verb === "pause" ? { reason } : {});
    refresh();
  };
  const effects = {
    pause: "The schedule starts no runs until it is resumed. Live runs continue.",
    resume: "The schedule starts runs again from its next tick.",
    trigger: "The schedule starts a run now, according to its overlap policy.",
  };
  const labels = { pause: "Pause", resume: "Resume", trigger: "Trigger now" };
  return (
    <Card>
      <div className={page.cardHead}>
        <h2>
          <bdi>{s.schedule}</bdi>
        </h2>
        <Button icon="runs" onClick={() => setAsking("trigger")}>
          Trigger now
        </Button>
        <Button icon={paused ? "runs" : "pause"} onClick={() => setAsking(paused ? "resume" : "pause")}>
          {paused ? "Resume" : "Pause"}
        </Button>
      </div>
      <div className={page.pad}>
        <dl className={page.kv}>
          <dt>When</dt>
          <dd>
            <code>{when(s)}</code>
          </dd>
          {s.next_at && (
            <>
              <dt>Next</dt>
              <dd>
                <Time at={s.next_at} exact />, <Time at={s.next_at} />
              </dd>
            </>
          )}
          {s.paused_at && (
            <>
              <dt>Paused</dt>
              <dd>
                <Time at={s.paused_at} /> {s.paused_by && `by ${s.paused_by.replace(/^user:/, "")}`}{" "}
                {s.pause_reason && `: ${s.pause_reason}`}
              </dd>
            </>
          )}
          {s.error && (
            <>
              <dt>Error</dt>
              <dd style={{ color: "var(--failed)" }}>{s.error}</dd>
            </>
          )}
          <dt>Overlap</dt>
          <dd>{s.definition?.overlap || "skip"}</dd>
          <dt>Catch-up</dt>
          <dd>{s.definition?.catch_up || "none"}</dd>
        </dl>
      </div>
      {ticks.error && <Problem error={ticks.error} />}
      {ticks.data && ticks.data.ticks.length > 0 && (
        <div className={table.wrap} style={{ maxHeight: 340, overflowY: "auto" }}>
          <table className={table.table}>
            <thead>
              <tr>
                <th scope="col">Tick</th>
                <th scope="col">Kind</th>
                <th scope="col">Outcome</th>
                <th scope="col">Run</th>
                <th scope="col">Detail</th>
              </tr>
            </thead>
            <tbody>
              {ticks.data.ticks.map((tick) => (
                <tr key={`${tick.logical} ${tick.kind}`}>
                  <td className={table.nowrap}>
                    <Time at={tick.logical} exact />
                  </td>
                  <td>{tick.kind.toLowerCase()}</td>
                  <td>{tick.outcome.toLowerCase().replaceAll("_", " ")}</td>
                  <td>
                    {tick.run_id && (
                      <Link to="/runs/$run" params={{ run: tick.run_id }}>
                        {shortID(tick.run_id)}
                      </Link>
                    )}
                  </td>
                  <td>{tick.detail}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {asking && (
        <Confirm
          title={`${labels[asking]}: ${s.schedule}`}
          effect={effects[asking]}
          command={`servo schedule ${asking} ${s.schedule}`}
          action={labels[asking]}
          reason={asking === "pause"}
          onClose={() => setAsking(undefined)}
          onConfirm={send(asking)}
        />
      )}
    </Card>
  );
}
