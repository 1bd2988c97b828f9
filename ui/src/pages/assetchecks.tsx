import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { Failure, path, post } from "../api/client";
import { refresh, useQuarantine } from "../api/queries";
import { failingRowsOf, quarantinedRowsOf } from "../api/sample";
import { query, whole } from "../api/sql";
import type { Asset, AssetCheck, QuarantinedOutput } from "../api/types";
import { count, plural, shortID } from "../app/format";
import { quote } from "../parts/command";
import { Confirm } from "../parts/confirm";
import { Grid } from "../parts/grid";
import { Actions, Badge, Button, buttonClass, Dialog, Empty, Problem, Skeleton, Time } from "../parts/parts";
import table from "../parts/table.module.css";
import css from "./assetchecks.module.css";
import page from "./page.module.css";

const most = 100; // rows

interface Shown {
  title: string;
  statement: string;
}

// Checks shows the outputs in quarantine, and the last result of each check.
export function Checks({ asset }: { asset: Asset }) {
  const [shown, setShown] = useState<Shown>();
  const sorted = [...asset.checks].sort(
    (a, b) => Number(b.last === "failed") - Number(a.last === "failed") || Number(b.failed > 0) - Number(a.failed > 0),
  );
  return (
    <>
      <Quarantined asset={asset.asset_key} onRows={setShown} />
      {sorted.length === 0 && (
        <Empty title="The asset has no checks">
          <p>
            Declare <code>checks</code> in its file: they decide whether an output is published.
          </p>
        </Empty>
      )}
      {sorted.length > 0 && (
        <div className={table.wrap}>
          <table className={table.table}>
            <thead>
              <tr>
                <th scope="col">Check</th>
                <th scope="col">Last result</th>
                <th scope="col">Last failure</th>
                <th scope="col" className={table.num}>
                  Passed
                </th>
                <th scope="col" className={table.num}>
                  Failed
                </th>
              </tr>
            </thead>
            <tbody>
              {sorted.map((check) => (
                <Line key={check.check} asset={asset.asset_key} check={check} onRows={setShown} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown && <Rows {...shown} onClose={() => setShown(undefined)} />}
    </>
  );
}

// partitionOf returns the partition of a task as a person writes it, or "" for an asset without partitions.
const partitionOf = (task: string) => /\[(.*)\]$/.exec(task)?.[1] ?? "";

function Task({ run, task }: { run: string; task: string }) {
  return (
    <Link to="/runs/$run" params={{ run }} search={{ task }}>
      <bdi>{partitionOf(task) || `run ${shortID(run)}`}</bdi>
    </Link>
  );
}

function Line({ asset, check: c, onRows }: { asset: string; check: AssetCheck; onRows: (rows: Shown) => void }) {
  return (
    <tr>
      <td>
        <strong data-row tabIndex={-1}>
          {c.check}
        </strong>
        <div className={table.muted}>
          {c.kind}, {c.severity.toLowerCase()}
        </div>
      </td>
      <td data-label="Last result">
        <Badge tone={c.last === "failed" ? "failed" : c.last === "passed" ? "fresh" : "waiting"} bare>
          {c.last || "no result yet"}
        </Badge>
        {c.last_run_id && (
          <div className={table.muted}>
            <Task run={c.last_run_id} task={c.last_task} /> <Time at={c.last_at} />
          </div>
        )}
      </td>
      <td className={table.wide} data-label="Last failure">
        {c.failed_run_id && (
          <>
            <div>{c.failed_message}</div>
            <div className={`${table.muted} ${css.facts}`}>
              <span>
                <Task run={c.failed_run_id} task={c.failed_task} /> <Time at={c.failed_at} />
              </span>
              {c.failed_rows && (
                <Button
                  aria-label={`Show failing rows of ${c.check}`}
                  onClick={() =>
                    onRows({ title: `Failing rows of ${c.check}`, statement: failingRowsOf(asset, c.check, most) })
                  }
                >
                  Show failing rows
                </Button>
              )}
            </div>
          </>
        )}
      </td>
      <td className={table.num} data-label="Passed">
        {count(c.passed)}
      </td>
      <td className={table.num} data-label="Failed">
        {count(c.failed)}
      </td>
    </tr>
  );
}

type Decision = "approve" | "reject";

const effects: Record<Decision, string> = {
  approve: "The output is published although a check has blocked it. Partitions that read it become stale.",
  reject: "The output is not published. Readers keep the previous output, and the files are deleted after a day.",
};

// Quarantined shows the outputs of an asset that wait for a decision.
function Quarantined({ asset, onRows }: { asset: string; onRows: (rows: Shown) => void }) {
  const { data, error } = useQuarantine();
  const [asking, setAsking] = useState<{ output: QuarantinedOutput; decision: Decision }>();
  if (error) return <Problem error={error} />;
  const outputs = data?.outputs.filter((o) => o.asset === asset) ?? [];
  if (outputs.length === 0) return null;
  return (
    <section className={css.quarantine}>
      <div className={page.cardHead}>
        <h2>
          In quarantine: {plural(outputs.length, "output")} {outputs.length === 1 ? "waits" : "wait"} for a decision
        </h2>
        <Button
          onClick={() => onRows({ title: `Rows of ${asset} in quarantine`, statement: quarantinedRowsOf(asset, most) })}
        >
          Show rows
        </Button>
      </div>
      <ul>
        {outputs.map((o) => (
          <li key={o.materialization_id}>
            <Badge tone="quarantined" bare>
              <bdi>{partitionOf(o.name) || o.name}</bdi>
            </Badge>
            <span>
              {plural(o.row_count, "row")} of{" "}
              <Link className={css.inText} to="/runs/$run" params={{ run: o.run_id }} search={{ task: o.task_key }}>
                run {shortID(o.run_id)}
              </Link>
              , {o.approve_on_expiry ? "approved" : "rejected"} automatically <Time at={o.expires_at} />
            </span>
            <span className={css.actions}>
              {(["approve", "reject"] as const).map((decision) => (
                <Button
                  key={decision}
                  kind={decision === "reject" ? "danger" : undefined}
                  aria-label={`${decision === "approve" ? "Approve" : "Reject"} ${o.name}`}
                  onClick={() => setAsking({ output: o, decision })}
                >
                  {decision === "approve" ? "Approve" : "Reject"}
                </Button>
              ))}
            </span>
            {o.failed_checks.map((check) => (
              <p key={check.check} className={css.why}>
                <strong>{check.check}</strong>: {check.message}
              </p>
            ))}
          </li>
        ))}
      </ul>
      {asking && (
        <Confirm
          title={`${asking.decision === "approve" ? "Approve" : "Reject"} ${asking.output.name}`}
          effect={effects[asking.decision]}
          command={`servo quarantine ${asking.decision} ${quote(asking.output.name)}`}
          action={asking.decision === "approve" ? "Approve" : "Reject"}
          danger={asking.decision === "reject"}
          reason
          onClose={() => setAsking(undefined)}
          onConfirm={async (reason) => {
            await post(path(["quarantine", asking.output.materialization_id], {}, asking.decision), { reason });
            refresh();
          }}
        />
      )}
    </section>
  );
}

// Rows shows the answer to a statement.
function Rows({ title, statement, onClose }: Shown & { onClose: () => void }) {
  const { data, error } = useQuery({
    queryKey: ["rows", statement],
    retry: (failures, error) => failures < 5 && error instanceof Failure && error.status === 429,
    queryFn: async ({ signal }) => whole(await query({ sql: statement, row_limit: most }, signal)),
  });
  return (
    <Dialog title={title} onClose={onClose} className={css.dialog}>
      {error && <Problem error={error} />}
      {!data && !error && <Skeleton />}
      {data && (
        <>
          <p className={table.muted}>
            {data.rows.length === most ? `The first ${plural(most, "row")}` : plural(data.rows.length, "row")}
          </p>
          {data.rows.length > 0 && <Grid columns={data.columns} rows={data.rows} label={title} height={360} />}
        </>
      )}
      <Actions>
        <Link to="/sql" search={{ q: statement }} className={buttonClass}>
          Open in SQL
        </Link>
      </Actions>
    </Dialog>
  );
}
