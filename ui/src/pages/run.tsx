import { Link, useLocation, useNavigate, useParams, useRouter, useSearch } from "@tanstack/react-router";
import { Fragment, useEffect, useMemo, useRef, useState } from "react";
import { gone, path, post } from "../api/client";
import { type RunDetail, refresh, useNow, useRunDetail } from "../api/queries";
import type { Run, TriggerRunResponse } from "../api/types";
import { count, plural, shortID, span } from "../app/format";
import { useCommands } from "../app/keys";
import { Gantt } from "../canvas/gantt";
import { Confirm } from "../parts/confirm";
import { Decision } from "../parts/decision";
import { useSheet } from "../parts/media";
import { Badge, Button, Card, Command, Empty, Problem, Segmented, Shape, Skeleton, Time, toast } from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { ended, runTone, type Tone, words } from "../parts/status";
import page from "./page.module.css";
import css from "./run.module.css";
import { assetsText, seconds, triggerWord } from "./runs";
import { TaskPanel } from "./task";
import { TaskTable } from "./tasktable";

const groups: { id: "failed" | "running" | "waiting"; label: string; tone: Tone; states: string[] }[] = [
  { id: "failed", label: "failed or skipped", tone: "failed", states: ["FAILED", "SKIPPED"] },
  { id: "running", label: "running", tone: "running", states: ["RUNNING"] },
  { id: "waiting", label: "waiting", tone: "waiting", states: ["BLOCKED", "READY", "DISPATCHED", "RETRY_WAIT"] },
];

export function RunPage() {
  const { run: id } = useParams({ from: "/runs/$run" });
  const { data, error, refetch } = useRunDetail(id);
  if (error && (!data || gone(error))) return <Problem error={error} retry={() => void refetch()} />;
  if (!data) return <Skeleton lines={12} />;
  return <Loaded key={id} detail={data} />;
}

function Loaded({ detail }: { detail: RunDetail }) {
  const { run, status, gantt } = detail;
  const search = useSearch({ from: "/runs/$run" });
  const navigate = useNavigate({ from: "/runs/$run" });
  const clock = useNow();
  const [asking, setAsking] = useState<"retry" | "cancel" | "run">();
  const live = !ended(run.state);
  const answered = Date.parse(gantt.to ?? "");
  const now = live ? Math.max(clock, answered) : Date.parse(run.completed_at ?? "");
  const open = live ? answered : Number.POSITIVE_INFINITY;
  const folded = gantt.folded_by === "asset";
  const again = (action: string) => status.next.find((step) => step.action === action);
  const noun = folded ? "asset" : "task";
  const retry = again("retry");
  const rerun = again("run");
  const table = search.view === "table";

  const bounds = useMemo(() => {
    const from = Date.parse(run.created_at ?? "");
    return { from, to: Math.max(now, from + 1) };
  }, [run.created_at, now]);
  const group = groups.find((g) => g.id === search.show);
  const rows = useMemo(
    () => (group ? gantt.rows.filter((row) => group.states.includes(row.state)) : gantt.rows),
    [gantt.rows, group],
  );
  const { select, close } = useSelection();
  const toggleView = () =>
    void navigate({ search: ({ view, ...rest }) => (view ? rest : { ...rest, view: "table" }), replace: true });

  useCommands([
    { keys: "v", label: "Chart or table", run: toggleView },
    { keys: "r", label: "Retry the run", run: () => setAsking(retry ? "retry" : rerun && "run") },
    { keys: "c", label: "Cancel the run", run: () => live && setAsking("cancel") },
    { keys: "Escape", label: "Close the task", run: close },
  ]);

  const chosen = search.task;
  // A row of many tasks leads to their asset, which lists its partitions.
  const openRow = (key: string) => {
    const [namespace = "", name] = key.split("/");
    if (folded && name) void navigate({ to: "/assets/$namespace/$name", params: { namespace, name } });
    else select(key);
  };
  return (
    <>
      <div className={page.head}>
        <Badge tone={runTone[run.state]}>{words[run.state] ?? run.state}</Badge>
        <h1>
          Run <code title={run.run_id}>{shortID(run.run_id)}</code>
        </h1>
        <span className={page.sub}>
          <bdi>{assetsText(run)}</bdi>
        </span>
        <div className={page.spacer} />
        {retry && (
          <Button kind={rerun ? undefined : "primary"} icon="retry" onClick={() => setAsking("retry")}>
            Retry
          </Button>
        )}
        {rerun && (
          <Button kind="primary" icon="runs" onClick={() => setAsking("run")}>
            Run failed partitions
          </Button>
        )}
        {live && (
          <Button kind="danger" icon="cancel" onClick={() => setAsking("cancel")} disabled={run.state === "CANCELLING"}>
            Cancel
          </Button>
        )}
      </div>
      <Facts detail={detail} now={now} />
      <div className={page.stack}>
        <Notices detail={detail} onSelect={select} />
        <div className={chosen ? `${css.layout} ${css.withPanel}` : css.layout}>
          <Card>
            <div className={page.cardHead}>
              <h2>{folded ? "Assets" : "Tasks"}</h2>
              <Chips
                run={run}
                show={search.show}
                onShow={(show) =>
                  void navigate({ search: ({ show: _, ...rest }) => (show ? { ...rest, show } : rest), replace: true })
                }
              />
              <Segmented
                label="Show the tasks as"
                value={table ? "table" : "chart"}
                items={[
                  { id: "chart", label: "Chart", icon: "chart" },
                  { id: "table", label: "Table", icon: "table" },
                ]}
                onChange={(id) => id !== (table ? "table" : "chart") && toggleView()}
              />
            </div>
            {rows.length === 0 && (
              <Empty
                title={group ? `No ${noun === "task" ? noun : "row"} is ${group.label}` : "The run has no tasks yet"}
              />
            )}
            {rows.length > 0 && !table && (
              <Gantt
                rows={rows}
                bounds={bounds}
                now={now}
                open={open}
                noun={noun}
                selected={chosen}
                onSelect={openRow}
              />
            )}
            {rows.length > 0 && table && (
              <TaskTable rows={rows} now={now} open={open} noun={noun} selected={chosen} onSelect={openRow} />
            )}
            {folded && (
              <p className={page.pad}>
                The run has {count(run.tasks_total)} tasks, so a row stands for all tasks of an asset, and shows the
                state of those that most need attention.
                {gantt.rows_left_out > 0 &&
                  ` ${plural(gantt.rows_left_out, "asset")} that need less attention are not shown.`}
              </p>
            )}
          </Card>
          {chosen && <TaskPanel run={run.run_id} task={chosen} onSelect={select} onClose={close} />}
        </div>
      </div>
      {asking === "retry" && <Retry run={run} onClose={() => setAsking(undefined)} />}
      {asking === "run" && rerun && (
        <RunDialog onClose={() => setAsking(undefined)} need="failed" note={rerun.reason} />
      )}
      {asking === "cancel" && <Cancel run={run} onClose={() => setAsking(undefined)} />}
    </>
  );
}

// useSelection selects the task that the address names. A sheet gets its own entry in the history of the browser, so that
// the back button closes it. The entry is marked, because closing the sheet in another way must remove the entry.
function useSelection() {
  const router = useRouter();
  const navigate = useNavigate({ from: "/runs/$run" });
  const { task: selected } = useSearch({ from: "/runs/$run" });
  const marked = useLocation({ select: (location) => location.state.sheet });
  const sheet = useSheet();
  const leaving = useRef(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the browser has left the entry once the task has changed
  useEffect(() => {
    leaving.current = false;
  }, [selected]);
  const select = (task: string | undefined) => {
    const opens = sheet && task !== undefined && selected === undefined;
    void navigate({
      search: ({ task: _task, attempt: _attempt, ...rest }) => (task ? { ...rest, task } : rest),
      replace: !opens,
      state: opens ? { sheet: true } : task ? true : {},
    });
  };
  const close = () => {
    if (!marked) select(undefined);
    else if (!leaving.current) {
      leaving.current = true; // a second tap must not leave the run
      router.history.back();
    }
  };
  return { select, close };
}

const ownKey = "idem:"; // the start of the keys of requests that a program, such as this page, has sent

const lengthOf = (duration: string | undefined) => span(Number.parseFloat(duration ?? "0"));

function Facts({ detail: { run, gantt }, now }: { detail: RunDetail; now: number }) {
  return (
    <div className={css.facts}>
      <span>
        started {triggerWord(run.trigger)} <Time at={run.created_at} />
        {run.parent_run_id && (
          <>
            {" of "}
            <Link to="/runs/$run" params={{ run: run.parent_run_id }}>
              {shortID(run.parent_run_id)}
            </Link>
          </>
        )}
      </span>
      <span>
        {ended(run.state) ? "took " : "running for "}
        <strong>{span(seconds(run, now))}</strong>
      </span>
      {gantt.critical_path.length > 1 && ended(run.state) && (
        <span>
          critical path <strong>{lengthOf(gantt.critical_duration)}</strong>; without waiting for limits and workers{" "}
          <strong>{lengthOf(gantt.unlimited_duration)}</strong>
        </span>
      )}
      {run.partitions.length > 0 && (
        <bdi className={css.clip} title={run.partitions.join(", ")}>
          {run.partitions.join(", ")}
        </bdi>
      )}
      {run.run_key && !run.run_key.startsWith(ownKey) && (
        <span>
          key <code>{run.run_key}</code>
        </span>
      )}
      <span>
        <Command text={`servo status ${shortID(run.run_id)}`} />
      </span>
    </div>
  );
}

interface FailedRow {
  key: string;
  state: string;
  error: string;
  error_code?: string;
}

// failedRows returns failed tasks, and tasks that wait for another attempt. If a row of the chart stands for many
// tasks, it has no errors, so the tasks come from the status, which lists some of them.
function failedRows({ gantt, status }: RunDetail): FailedRow[] {
  if (gantt.folded_by === "task") return gantt.rows.filter((row) => ["FAILED", "RETRY_WAIT"].includes(row.state));
  return [
    ...status.failed.map((task) => ({ key: task.task_key, state: "FAILED", error: task.error })),
    ...status.retrying.map((task) => ({ key: task.task_key, state: "RETRY_WAIT", error: task.error })),
  ];
}

// Notices shows why the run failed, or what it waits for.
function Notices({ detail, onSelect }: { detail: RunDetail; onSelect: (task: string) => void }) {
  const { waits, error, next, failed: tasks, tasks: counts } = detail.status;
  const failed = failedRows(detail);
  const total = (counts.FAILED ?? 0) + (counts.RETRY_WAIT ?? 0);
  const decisions = new Map(tasks.map((task) => [task.task_key, task.quarantine]));
  const most = 4;
  return (
    <>
      {error && failed.length === 0 && (
        <div className={css.notice} style={{ background: "var(--failed-soft)" }}>
          <p>
            <Shape tone="failed" /> {error}
          </p>
        </div>
      )}
      {failed.length > 0 && (
        <div className={css.notice} style={{ background: "var(--failed-soft)" }}>
          {failed.slice(0, most).map((row) => (
            <Fragment key={row.key}>
              <p>
                <Shape tone={row.state === "FAILED" ? "failed" : "stale"} />
                <button type="button" onClick={() => onSelect(row.key)}>
                  <strong>
                    <bdi>{row.key}</bdi>
                  </strong>{" "}
                  {row.error_code && <code>{row.error_code}</code>} {row.error.replaceAll(/\s+/g, " ")}
                </button>
              </p>
              <Decision of={decisions.get(row.key)} />
            </Fragment>
          ))}
          {total > most && <p>and {plural(total - most, "more task")} failed</p>}
          {next.map((step) => (
            <p key={step.action} className={css.next}>
              <span>{step.reason}</span> <Command text={step.command} />
            </p>
          ))}
        </div>
      )}
      {waits.length > 0 && (
        <div className={css.notice} style={{ background: "var(--stale-soft)" }}>
          {waits.map((wait) => (
            <p key={`${wait.scope} ${wait.name}`}>
              <Shape tone="stale" />
              <span>
                {plural(wait.tasks, "task")} {wait.tasks === 1 ? "waits" : "wait"} for a slot of{" "}
                {wait.scope === "pool" ? `pool ${wait.name}` : `the ${wait.scope}`}: {count(wait.in_use)} of{" "}
                {count(wait.slots)} in use
              </span>
            </p>
          ))}
        </div>
      )}
    </>
  );
}

function Chips({
  run,
  show,
  onShow,
}: {
  run: Run;
  show: (typeof groups)[number]["id"] | undefined;
  onShow: (show: (typeof groups)[number]["id"] | undefined) => void;
}) {
  const of = (states: string[]) => states.reduce((sum, state) => sum + (run.tasks[state] ?? 0), 0);
  return (
    <div className={css.counts}>
      <Badge tone="fresh">{count(of(["SUCCEEDED"]))} succeeded</Badge>
      {groups.map((group) => {
        const n = of(group.states);
        if (n === 0 && show !== group.id) return null;
        return (
          <button
            key={group.id}
            type="button"
            className={css.count}
            aria-pressed={show === group.id}
            onClick={() => onShow(show === group.id ? undefined : group.id)}
          >
            <Badge tone={group.tone}>
              {count(n)} {group.label}
            </Badge>
          </button>
        );
      })}
      {of(["CANCELLED"]) > 0 && <Badge tone="waiting">{count(of(["CANCELLED"]))} cancelled</Badge>}
    </div>
  );
}

function Retry({ run, onClose }: { run: Run; onClose: () => void }) {
  const navigate = useNavigate();
  const left = run.tasks_total - (run.tasks.SUCCEEDED ?? 0);
  return (
    <Confirm
      title={`Retry run ${shortID(run.run_id)}`}
      effect={`A new run repeats the tasks that did not succeed, at most ${plural(left, "task")}, with the code and inputs of this run.`}
      command={`servo retry ${shortID(run.run_id)} --failed`}
      action="Retry"
      onClose={onClose}
      onConfirm={async () => {
        const started = await post<TriggerRunResponse>(path(["runs", run.run_id], {}, "retry"), {});
        refresh();
        toast(`Started a run of ${plural(started.tasks, "task")}.${started.warnings.map((w) => ` ${w}.`).join("")}`);
        await navigate({ to: "/runs/$run", params: { run: started.run_id } });
      }}
    />
  );
}

function Cancel({ run, onClose }: { run: Run; onClose: () => void }) {
  return (
    <Confirm
      title={`Cancel run ${shortID(run.run_id)}`}
      effect="Tasks that have not started will not start. Running tasks are asked to stop."
      command={`servo cancel ${shortID(run.run_id)}`}
      action="Cancel the run"
      danger
      reason
      onClose={onClose}
      onConfirm={async (reason) => {
        await post(path(["runs", run.run_id], {}, "cancel"), { reason });
        refresh();
      }}
    />
  );
}
