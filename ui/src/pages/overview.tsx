import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { path, post } from "../api/client";
import {
  refresh,
  useAssets,
  useAttention,
  useDeadlines,
  useLive,
  useNow,
  useRunCounts,
  useSchedules,
} from "../api/queries";
import type {
  Asset,
  Attention,
  CountRunsResponseHour,
  Deadline,
  Run,
  Schedule,
  TriggerRunResponse,
} from "../api/types";
import { ago, count, plural, shortID, span } from "../app/format";
import { Confirm } from "../parts/confirm";
import { Icon } from "../parts/icons";
import {
  Badge,
  Bar,
  Button,
  buttonClass,
  Card,
  Command,
  Empty,
  Problem,
  Shape,
  Skeleton,
  Time,
  toast,
} from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { runTone, type Tone, words } from "../parts/status";
import css from "./overview.module.css";
import page from "./page.module.css";
import { assetsText, progressParts, progressText, seconds } from "./runs";

const tones: Record<string, Tone> = { QUARANTINED: "quarantined", PAUSED: "waiting" };

const toneOf = (x: Attention): Tone => tones[x.kind] ?? (x.severity === "ERROR" ? "failed" : "stale");

export function Overview() {
  const attention = useAttention();
  const assets = useAssets();
  const deadlines = useDeadlines();
  const [starting, setStarting] = useState(false);
  const list = attention.data?.attention;
  const risks = deadlines.data?.deadlines.filter((d) => d.status === "at_risk" || d.error) ?? [];
  const stale = (assets.data?.assets ?? []).filter((a) => (a.status?.stale ?? 0) > 0);
  const calm = list?.length === 0 && risks.length === 0 && stale.length === 0;
  return (
    <>
      <div className={page.head}>
        <h1>{title(list)}</h1>
        <div className={page.spacer} />
        <Button kind="primary" icon="runs" onClick={() => setStarting(true)}>
          Start a run
        </Button>
      </div>
      <div className={page.stack}>
        {attention.error && <Problem error={attention.error} retry={() => void attention.refetch()} />}
        <Card>
          {!list && !attention.error && <Skeleton lines={4} />}
          {calm && (
            <p className={css.calm}>
              <Shape tone="fresh" /> Nothing has failed, nothing waits for a decision, and no output is stale.
            </p>
          )}
          {list && !calm && (
            <ul aria-label="What needs attention">
              {list.map((x) => (
                <Item key={`${x.kind} ${x.subject}`} x={x} />
              ))}
              {risks.map((d) => (
                <Risk key={d.asset} deadline={d} />
              ))}
              {stale.length > 0 && <Stale assets={stale} />}
            </ul>
          )}
        </Card>
        <div className={css.grid}>
          <Flight />
          <Day />
          {assets.data && <Partitions assets={assets.data.assets} />}
          <Next />
        </div>
      </div>
      {starting && <RunDialog onClose={() => setStarting(false)} />}
    </>
  );
}

export function title(list: Attention[] | undefined): string {
  if (!list) return "What needs attention now";
  const errors = list.filter((x) => x.severity === "ERROR").length;
  const others = list.filter((x) => x.severity === "WARNING").length;
  if (errors > 0) return `${plural(errors, "failure")} ${errors === 1 ? "needs" : "need"} attention`;
  if (others > 0) return `${plural(others, "warning")} ${others === 1 ? "needs" : "need"} attention`;
  return "Nothing has failed";
}

function AssetName({ of }: { of: string }) {
  const [namespace = "", name = ""] = of.split("/");
  return (
    <Link to="/assets/$namespace/$name" params={{ namespace, name }} className={css.subject} data-row>
      <bdi>{of}</bdi>
    </Link>
  );
}

const isBackfill = (x: Attention) => x.commands.some((command) => command.startsWith("servo backfill"));

function Subject({ x }: { x: Attention }) {
  const props = { className: css.subject, "data-row": true };
  if (x.run_id) {
    return (
      <Link to="/runs/$run" params={{ run: x.run_id }} search={x.task_key ? { task: x.task_key } : {}} {...props}>
        <bdi>{x.subject}</bdi>
      </Link>
    );
  }
  if (/^[^/\s]+\/[^/\s]+$/.test(x.subject)) return <AssetName of={x.subject} />;
  if (isBackfill(x)) {
    return (
      <Link to="/backfills" {...props}>
        backfill <bdi>{shortID(x.subject)}</bdi>
      </Link>
    );
  }
  if (x.kind === "PAUSED" || x.kind === "SCHEDULE_ERROR" || x.commands.some((c) => c.startsWith("servo schedule"))) {
    return (
      <Link to="/schedules" search={{ schedule: x.subject }} {...props}>
        <bdi>{x.subject}</bdi>
      </Link>
    );
  }
  return (
    <bdi className={css.subject} data-row tabIndex={-1}>
      {x.subject}
    </bdi>
  );
}

// kindWord returns the words for a kind. A newer server may have kinds that this page does not know.
const kindWord = (kind: string) => kinds[kind] ?? kind.toLowerCase().replaceAll("_", " ");

const kinds: Record<string, string> = {
  FAILED: "failed",
  LATE: "deadline missed",
  QUARANTINED: "waits for a decision",
  CHECK_FAILED: "check failed",
  BACKFILL_FAILED: "backfill failed",
  REQUEST_WAITING: "cannot be planned yet",
  PAUSED: "paused",
  SCHEDULE_ERROR: "schedule error",
  UNDELIVERABLE: "not delivered",
};

function Item({ x }: { x: Attention }) {
  const several = x.count > 1 && x.partitions.length > 0;
  return (
    <li className={css.item}>
      <Shape tone={toneOf(x)} />
      <p>
        <Subject x={x} /> <span className={css.what}>{x.headline}</span>
      </p>
      <div className={css.actions}>
        <ItemAction x={x} />
      </div>
      <div className={css.meta}>
        <span>
          {kindWord(x.kind)}
          {several && ` in ${plural(x.count, "partition")}`}
        </span>
        <Time at={x.since} />
        {x.partitions.length > 0 && (
          <bdi className={css.clip} title={x.partitions.join(", ")}>
            {x.partitions.join(", ")}
            {x.count > x.partitions.length && " …"}
          </bdi>
        )}
        {x.downstream_total > 0 && (
          <span>
            {plural(x.downstream_total, "asset")} depend{x.downstream_total === 1 ? "s" : ""} on it
          </span>
        )}
      </div>
    </li>
  );
}

function Risk({ deadline: d }: { deadline: Deadline }) {
  const now = useNow();
  return (
    <li className={css.item}>
      <Shape tone="stale" />
      <p>
        <AssetName of={d.asset} />{" "}
        <span className={css.what}>
          {d.error || `may miss the deadline of ${d.period}: the remaining work takes about ${span(d.needs_sec)}`}
        </span>
      </p>
      <div className={css.actions}>
        <RunButton assets={[d.asset]} />
      </div>
      <div className={css.meta}>
        <span>deadline at risk</span>
        {d.due_at && <span>due {ago(Date.parse(d.due_at), now)}</span>}
      </div>
    </li>
  );
}

function Stale({ assets }: { assets: Asset[] }) {
  const total = assets.reduce((sum, a) => sum + (a.status?.stale ?? 0), 0);
  const names = assets.slice(0, 4).map((a) => a.asset_key);
  return (
    <li className={css.item}>
      <Shape tone="stale" />
      <p>
        <Link to="/assets" search={{ show: "stale" }} className={css.subject} data-row>
          {plural(total, "output")} {total === 1 ? "is" : "are"} stale
        </Link>{" "}
        <span className={css.what}>
          in {names.join(", ")}
          {assets.length > names.length && ` and ${plural(assets.length - names.length, "more asset")}`}
        </span>
      </p>
      <div className={css.actions}>
        <RunButton assets={[]} />
      </div>
      <div className={css.meta}>
        <span>inputs or code have changed since they were made</span>
      </div>
    </li>
  );
}

function RunButton({ assets }: { assets: string[] }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button
        icon="runs"
        aria-label={`Run stale assets${assets.length > 0 ? ` of ${assets.join(", ")}` : ""}`}
        onClick={() => setOpen(true)}
      >
        Run
      </Button>
      {open && <RunDialog onClose={() => setOpen(false)} assets={assets} need="stale" />}
    </>
  );
}

function ItemAction({ x }: { x: Attention }) {
  const [open, setOpen] = useState(false);
  const navigate = useNavigate();
  const close = () => setOpen(false);
  if (x.kind === "FAILED" && x.next) {
    const { action, command, reason } = x.next;
    const run = x.run_id;
    if (action === "run") {
      return (
        <>
          <Button icon="runs" aria-label={`Run again: ${x.subject}`} onClick={() => setOpen(true)}>
            Run again
          </Button>
          {open && <RunDialog onClose={close} assets={[x.subject]} need="failed" note={reason} />}
        </>
      );
    }
    return (
      <>
        <Button icon="retry" aria-label={`Retry ${x.subject}`} onClick={() => setOpen(true)}>
          Retry
        </Button>
        {open && (
          <Confirm
            title={`Retry run ${shortID(run)}`}
            effect={reason}
            command={command}
            action="Retry"
            onClose={close}
            onConfirm={async () => {
              const started = await post<TriggerRunResponse>(path(["runs", run], {}, "retry"), {});
              refresh();
              toast(`Started a run of ${plural(started.tasks, "task")}.`);
              await navigate({ to: "/runs/$run", params: { run: started.run_id } });
            }}
          />
        )}
      </>
    );
  }
  if (x.kind === "QUARANTINED" || x.kind === "CHECK_FAILED") {
    const [namespace = "", name = ""] = x.subject.split("/");
    return (
      <Link
        to="/assets/$namespace/$name"
        params={{ namespace, name }}
        search={{ tab: "checks" }}
        className={buttonClass}
        aria-label={`Review ${x.subject}`}
      >
        Review
      </Link>
    );
  }
  if (x.kind === "LATE") return <RunButton assets={[x.subject]} />;
  if (x.kind === "PAUSED" && !isBackfill(x)) {
    return (
      <>
        <Button onClick={() => setOpen(true)} aria-label={`Resume schedule ${x.subject}`}>
          Resume
        </Button>
        {open && (
          <Confirm
            title={`Resume schedule ${x.subject}`}
            effect="The schedule starts runs again from its next tick."
            command={`servo schedule resume ${x.subject}`}
            action="Resume"
            onClose={close}
            onConfirm={async () => {
              await post(path(["schedules", x.subject], {}, "resume"), {});
              refresh();
            }}
          />
        )}
      </>
    );
  }
  const command = x.commands.at(-1);
  return command && !isBackfill(x) ? <Command text={command} /> : null;
}

function Flight() {
  const { data } = useLive();
  const now = useNow();
  return (
    <Card>
      <div className={page.cardHead}>
        <h2>Live runs</h2>
      </div>
      {!data && <Skeleton lines={3} />}
      {data?.runs.length === 0 && <p className={`${page.pad} ${page.sub}`}>No run is live.</p>}
      {data?.runs.map((run) => (
        <Link key={run.run_id} to="/runs/$run" params={{ run: run.run_id }} className={css.flight} data-row>
          <div>
            <bdi>{assetsText(run)}</bdi>
            <Badge tone={runTone[run.state]} bare>
              {words[run.state]}
            </Badge>
          </div>
          <Bar parts={progressParts(run)} label={progressText(run)} />
          <div className={page.sub}>
            <span>{progressText(run)}</span>
            <span>{span(seconds(run, now))}</span>
          </div>
        </Link>
      ))}
    </Card>
  );
}

// byTone counts the runs of each hour by how they ended, oldest first.
export function byTone(hours: CountRunsResponseHour[]): { failed: number; fresh: number; other: number }[] {
  return hours.toReversed().map(({ runs }) => {
    const counts = { failed: 0, fresh: 0, other: 0 };
    for (const [state, n] of Object.entries(runs)) {
      const tone = runTone[state as Run["state"]];
      counts[tone === "failed" || tone === "fresh" ? tone : "other"] += n;
    }
    return counts;
  });
}

const noRuns: CountRunsResponseHour[] = Array.from({ length: 24 }, () => ({ runs: {} }));

function Day() {
  const { data } = useRunCounts();
  const hours = useMemo(() => byTone(data?.hours ?? noRuns), [data]);
  const total = hours.reduce((sum, h) => sum + h.failed + h.fresh + h.other, 0);
  const failed = hours.reduce((sum, h) => sum + h.failed, 0);
  const most = Math.max(...hours.map((h) => h.failed + h.fresh + h.other), 1);
  const label = `${plural(total, "run")} in the last 24 hours, ${count(failed)} failed`;
  return (
    <Card>
      <div className={page.cardHead}>
        <h2>Last 24 hours</h2>
        <Link to="/runs">
          {plural(total, "run")}
          {failed > 0 && `, ${count(failed)} failed`}
        </Link>
      </div>
      <div className={css.day} role="img" aria-label={label}>
        {hours.map((h, i) => (
          <span key={i} style={{ height: `${Math.max(4, ((h.failed + h.fresh + h.other) / most) * 100)}%` }}>
            <i style={{ flexGrow: h.fresh, background: "var(--fresh)" }} />
            <i style={{ flexGrow: h.other, background: "var(--strong)" }} />
            <i style={{ flexGrow: h.failed, background: "var(--failed)" }} />
          </span>
        ))}
      </div>
      <p className={css.dayNote}>
        <span>24 h ago</span>
        <span>now</span>
      </p>
    </Card>
  );
}

function Partitions({ assets }: { assets: Asset[] }) {
  const sum = (of: (a: Asset) => number) => assets.reduce((total, asset) => total + of(asset), 0);
  const fresh = sum((a) => a.status?.fresh ?? 0);
  const stale = sum((a) => a.status?.stale ?? 0);
  const missing = sum((a) => a.status?.missing ?? 0);
  const failed = sum((a) => a.status?.failed ?? 0);
  const items = [
    { show: "fresh", tone: "fresh", n: fresh },
    { show: "stale", tone: "stale", n: stale },
    { show: "missing", tone: "waiting", n: missing },
    { show: "failed", tone: "failed", n: failed },
  ] as const;
  return (
    <Card>
      <div className={page.cardHead}>
        <h2>Partitions</h2>
        <Link to="/assets">of {plural(assets.length, "asset")}</Link>
      </div>
      {assets.length === 0 ? (
        <Empty title="The project has no assets yet">
          <p>
            Write the first asset, a query or a command, into a file in <code>assets/</code>.
          </p>
        </Empty>
      ) : (
        <>
          <div className={css.numbers}>
            {items.map((item) => (
              <Link key={item.show} to="/assets" search={{ show: item.show }}>
                <strong className={css.big}>{count(item.n)}</strong>
                <span>
                  <Shape tone={item.tone} /> {item.show}
                </span>
              </Link>
            ))}
          </div>
          <div className={page.pad} style={{ paddingTop: 0 }}>
            <Bar
              label={`${count(fresh)} fresh, ${count(stale)} stale, ${count(missing)} missing, ${count(failed)} failed`}
              parts={[
                { tone: "fresh", count: fresh },
                { tone: "stale", count: stale },
                { tone: "waiting", count: missing },
                { tone: "failed", count: failed },
              ]}
            />
          </div>
        </>
      )}
    </Card>
  );
}

function Next() {
  const { data } = useSchedules();
  const next = (data?.schedules ?? [])
    .filter((s): s is Schedule & { next_at: string } => s.next_at !== undefined && s.paused_at === undefined)
    .sort((a, b) => a.next_at.localeCompare(b.next_at))
    .slice(0, 5);
  if (!data || data.schedules.length === 0) return null;
  return (
    <Card>
      <div className={page.cardHead}>
        <h2>Next</h2>
        <Link to="/schedules">{plural(data.schedules.length, "schedule")}</Link>
      </div>
      {next.length === 0 && <p className={`${page.pad} ${page.sub}`}>No schedule has a next tick.</p>}
      {next.map((s) => (
        <Link key={s.schedule} to="/schedules" search={{ schedule: s.schedule }} className={css.row} data-row>
          <span>
            <Icon name="schedules" size={13} /> <bdi>{s.schedule}</bdi>
          </span>
          <span className={page.sub}>
            <Time at={s.next_at} />
          </span>
        </Link>
      ))}
    </Card>
  );
}
