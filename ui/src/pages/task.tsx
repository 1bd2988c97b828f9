import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useRef } from "react";
import { useExplanation, useNow } from "../api/queries";
import type { Attempt, TaskExplanation } from "../api/types";
import { count, shortID, span } from "../app/format";
import { quote } from "../parts/command";
import { LogView } from "../parts/log";
import { useSheet } from "../parts/media";
import {
  Badge,
  Button,
  Card,
  Command,
  Dialog,
  Problem,
  Sentence,
  Skeleton,
  TabPanel,
  Tabs,
  Time,
} from "../parts/parts";
import { taskTone, words } from "../parts/status";
import page from "./page.module.css";
import css from "./run.module.css";

interface Props {
  run: string;
  task: string;
  onSelect: (task: string) => void;
  onClose: () => void;
}

// TaskPanel explains a task beside the tasks of its run. On a small screen it is a sheet over the run.
export function TaskPanel(props: Props) {
  if (useSheet()) {
    return (
      <Dialog bare title={props.task} className={css.sheet} onClose={props.onClose}>
        <Panel {...props} />
      </Dialog>
    );
  }
  return (
    <Card className={css.side}>
      <Panel {...props} />
    </Card>
  );
}

// Panel shows why a task is in its state, its attempts, its log, and its events.
function Panel({ run, task, onSelect, onClose }: Props) {
  const { data, error, refetch } = useExplanation(run, task);
  const search = useSearch({ from: "/runs/$run" });
  const navigate = useNavigate({ from: "/runs/$run" });
  const panel = search.panel ?? "why";
  const asset = /^([^/[]+)\/([^[]+)/.exec(task);
  // The name in the address may be one partition of a batch. The task of the batch has another key, which replaces it.
  const found = data?.task_key;
  useEffect(() => {
    if (found && found !== task) onSelect(found);
  });
  const heading = useRef<HTMLHeadingElement>(null);
  const follow = (next: string) => {
    heading.current?.focus(); // the link to the next task disappears
    onSelect(next);
  };
  return (
    <>
      <div className={css.panelTop}>
        <div className={page.cardHead}>
          <h2 ref={heading} tabIndex={-1}>
            <bdi>{task}</bdi>
          </h2>
          <Button kind="icon" icon="close" aria-label="Close the task" onClick={onClose} />
        </div>
        <Tabs
          label="About the task"
          value={panel}
          items={[
            { id: "why", label: "Explain" },
            { id: "log", label: "Log" },
            { id: "events", label: "Events" },
          ]}
          onChange={(id) =>
            void navigate({
              search: ({ panel: _, ...rest }) => (id === "why" ? rest : { ...rest, panel: id as "log" | "events" }),
              replace: true,
              state: true,
            })
          }
        />
      </div>
      <TabPanel key={task} id={panel}>
        {error && <Problem error={error} retry={() => void refetch()} />}
        {!data && !error && <Skeleton />}
        {data && panel === "why" && (
          <>
            <Why task={data} onSelect={follow} />
            <div className={css.section}>
              {asset?.[1] && asset[2] && (
                <Link to="/assets/$namespace/$name" params={{ namespace: asset[1], name: asset[2] }}>
                  Asset {asset[1]}/{asset[2]}
                </Link>
              )}
              <Command text={`servo explain ${shortID(run)} ${quote(task)}`} />
            </div>
          </>
        )}
        {data && panel === "log" && (
          <LogView
            run={run}
            task={task}
            attempts={data.attempts}
            chosen={Number(search.attempt) || undefined}
            onChoose={(attempt) =>
              void navigate({ search: (old) => ({ ...old, attempt: String(attempt) }), replace: true, state: true })
            }
          />
        )}
        {data && panel === "events" && <Events task={data} />}
      </TabPanel>
    </>
  );
}

function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section className={css.section}>
      <h3>{title}</h3>
      {children}
    </section>
  );
}

// sentence removes the state from the start of a headline, because a badge shows the state.
export function sentence(headline: string, state: string): string {
  const text = headline.startsWith(`${state}: `) ? headline.slice(state.length + 2) : headline;
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// timesOf returns the times that the headline of a task can contain.
function timesOf({ timers, quarantine }: TaskExplanation): (string | undefined)[] {
  return [...timers.map((timer) => timer.fire_at), quarantine?.at, quarantine?.expires_at];
}

function TaskName({ name, onSelect }: { name: string; onSelect: (task: string) => void }) {
  return (
    <button type="button" className={css.taskLink} onClick={() => onSelect(name)}>
      <bdi>{name}</bdi>
    </button>
  );
}

function Why({ task, onSelect }: { task: TaskExplanation; onSelect: (task: string) => void }) {
  const open = task.upstreams.filter((up) => up.resolution !== "SUCCESS");
  const failedChecks = task.checks.filter((check) => !check.passed);
  const full = task.limits.filter((limit) => limit.full);
  return (
    <>
      <div className={css.section} style={{ borderTop: 0 }}>
        <div>
          <Badge tone={taskTone[task.state]}>{words[task.state] ?? task.state}</Badge>
        </div>
        <p className={css.headline}>
          <Sentence text={sentence(task.headline, task.state)} times={timesOf(task)} />
        </p>
      </div>
      {task.cause.length > 0 && (
        <Section title="Root cause">
          <ul>
            {task.cause.map((cause) => (
              <li key={cause.task_key}>
                <div>
                  <Badge tone={taskTone[cause.state]} bare>
                    {words[cause.state]}
                  </Badge>
                  <TaskName name={cause.task_key} onSelect={onSelect} />
                </div>
                {cause.error && <p className={css.error}>{cause.error}</p>}
              </li>
            ))}
          </ul>
        </Section>
      )}
      <Attempts attempts={task.attempts} />
      {failedChecks.length > 0 && (
        <Section title="Checks that did not pass">
          <ul>
            {failedChecks.map((check) => (
              <li key={check.check}>
                <strong>{check.check}</strong>
                <span>{check.message}</span>
              </li>
            ))}
          </ul>
        </Section>
      )}
      {task.heartbeat && (
        <Section title="Progress">
          <p>
            {task.heartbeat.progress ? `${task.heartbeat.progress} % ` : ""}
            {task.heartbeat.message} heartbeat <Time at={task.heartbeat.at} />
          </p>
        </Section>
      )}
      {full.length > 0 && ["READY", "BLOCKED"].includes(task.state) && (
        <Section title="Full limits">
          <ul>
            {full.map((limit) => (
              <li key={`${limit.scope} ${limit.name}`}>
                <span>
                  {limit.scope} {limit.scope === "pool" ? limit.name : ""}: {limit.in_use} of {limit.slots} slots in use
                </span>
                <span>{limit.holders.slice(0, 5).join(", ")}</span>
              </li>
            ))}
          </ul>
        </Section>
      )}
      {task.incomplete.length > 0 && (
        <Section title="Missing inputs">
          <p>{task.incomplete.slice(0, 20).join(", ")}</p>
        </Section>
      )}
      {open.length > 0 && (
        <Section title={`Upstream tasks without an output: ${count(open.length)} of ${count(task.upstreams.length)}`}>
          <ul>
            {open.slice(0, 12).map((up) => (
              <li key={up.task_key}>
                <div>
                  <Badge tone={taskTone[up.state] ?? "waiting"} bare>
                    {words[up.state]}
                  </Badge>
                  <TaskName name={up.task_key} onSelect={onSelect} />
                </div>
              </li>
            ))}
          </ul>
        </Section>
      )}
    </>
  );
}

function Attempts({ attempts }: { attempts: Attempt[] }) {
  const now = useNow();
  if (attempts.length === 0) return null;
  return (
    <Section title={attempts.length === 1 ? "Attempt" : "Attempts"}>
      <ul>
        {[...attempts].reverse().map((a) => {
          const end = a.finished_at ? Date.parse(a.finished_at) : now;
          const tone = !a.finished_at ? "running" : a.outcome === "succeeded" ? "fresh" : "failed";
          return (
            <li key={a.attempt}>
              <div>
                <Badge tone={tone} bare>
                  {a.attempt}. {a.outcome.replaceAll("_", " ") || "running"}
                </Badge>
                {a.started_at && <span>after {span((end - Date.parse(a.started_at ?? "")) / 1000)}</span>}
                <Time at={a.finished_at ?? a.started_at ?? a.created_at} />
              </div>
              {a.error && <pre className={css.error}>{a.error}</pre>}
              {a.suggested_action && <p>{a.suggested_action}</p>}
            </li>
          );
        })}
      </ul>
    </Section>
  );
}

function Events({ task }: { task: TaskExplanation }) {
  return (
    <div className={css.section} style={{ borderTop: 0 }}>
      <ul style={{ display: "grid", gap: 8 }}>
        {task.events.map((event) => (
          <li key={event.event_id}>
            <div>
              <strong>{event.type}</strong> <Time at={event.time} exact />
            </div>
            {event.summary && <span>{event.summary}</span>}
          </li>
        ))}
      </ul>
      {task.events.length === 0 && <p>The ledger no longer has events of this task.</p>}
    </div>
  );
}
