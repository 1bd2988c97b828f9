import { useLocation, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useId, useMemo, useRef, useState } from "react";
import { Failure } from "../api/client";
import { serverTime } from "../api/clock";
import { useNow, useWhoAmI } from "../api/queries";
import { headline, positionOf } from "../api/sql";
import { ago, momentOf, plural } from "../app/format";
import { useCommands } from "../app/keys";
import { useSettings } from "../app/settings";
import { Button, Card, Empty, inputClass, TabPanel, Tabs } from "../parts/parts";
import SqlEditor, { type Editor } from "../parts/sqleditor";
import page from "./page.module.css";
import css from "./sql.module.css";
import { examples } from "./sqlexamples";
import { Outcome } from "./sqlresult";
import { cancel, edit, forget, open, start, usePast, useShown } from "./sqlstore";
import { Tables, useCatalog } from "./sqltables";

const limits = [1000, 10_000, 100_000];
const inAddress = 4000; // the greatest number of characters of a statement in an address

// Past times at which a statement can read the state.
const ages = [
  { minutes: 10, label: "10 minutes ago" },
  { minutes: 60, label: "1 hour ago" },
  { minutes: 24 * 60, label: "1 day ago" },
  { minutes: 7 * 24 * 60, label: "7 days ago" },
];

const none: never[] = [];

export function SqlPage() {
  const search = useSearch({ from: "/sql" });
  const navigate = useNavigate({ from: "/sql" });
  const who = useWhoAmI();
  const project = who.data ? `${who.data.tenant_id}/${who.data.workspace_id}/${who.data.project}` : "";
  const shown = useShown();
  const catalog = useCatalog();
  const editor = useRef<Editor>(undefined);
  const { utc } = useSettings();
  const [limit, setLimit] = useState(limits[0] ?? 1000);
  const [at, setAt] = useState(search.at ?? "");
  const [side, setSide] = useState("tables");

  // A statement in the address is shown but not run until a person runs it, because a link must not start work on the
  // server.
  const address = search.q;
  // While another screen loads, this one is still shown, and the location is already that of the other screen.
  const entry = useLocation({
    select: ({ pathname, state }) => (pathname.endsWith("/sql") ? state.__TSR_key : undefined),
  });
  useEffect(() => {
    if (address !== undefined && entry !== undefined) open(entry, address);
  }, [address, entry]);

  const run = (sql = shown.text, most = limit) => {
    if (sql.trim() === "") return;
    const moment = momentOf(at.trim(), utc);
    void start(sql, moment, most, project);
    const q = sql.length <= inAddress ? sql : undefined;
    void navigate({ search: { ...(q ? { q } : {}), ...(moment ? { at: moment } : {}) } });
  };
  const choose = (sql: string) => {
    edit(sql);
    editor.current?.show(0);
  };
  const pick = (text: string) => (text.startsWith("FROM ") ? choose(text) : editor.current?.insert(text));
  useCommands([
    { keys: "Ctrl enter", label: "Run the statement", run: () => run() },
    { keys: "/", label: "Edit the statement", run: () => editor.current?.show(shown.text.length) },
    { keys: "Escape", label: "Cancel the statement", run: cancel },
  ]);

  const message = shown.error instanceof Error ? shown.error.message : shown.result?.error;
  const place = useMemo(
    () => (message && shown.ran !== undefined ? positionOf(message, shown.ran) : undefined),
    [message, shown.ran],
  );
  const marked = shown.ran === shown.text ? place : undefined;
  const title = shown.error instanceof Failure && shown.error.status !== 400 ? shown.error.title : "";
  return (
    <>
      <div className={page.head}>
        <h1>SQL</h1>
        <span className={page.sub}>
          Query the outputs of assets and the state of Servo. A statement cannot change them.
        </span>
      </div>
      <div className={css.layout}>
        <div className={css.main}>
          <Card className={css.clip}>
            <SqlEditor
              value={shown.text}
              onChange={edit}
              tables={catalog.data?.tables ?? none}
              functions={catalog.data?.functions ?? none}
              error={marked}
              handle={(made) => {
                editor.current = made;
              }}
            />
            <div className={css.bar}>
              {shown.busy ? (
                <Button kind="danger" icon="cancel" onClick={cancel}>
                  Cancel
                </Button>
              ) : (
                <Button kind="primary" icon="runs" disabled={shown.text.trim() === ""} onClick={() => run()}>
                  Run
                </Button>
              )}
              <kbd className={css.hint}>Ctrl Enter</kbd>
              {shown.busy && <Busy started={shown.started} rows={shown.rows} />}
              <span className={page.spacer} />
              <When value={at} onChange={setAt} />
              <label className={css.option}>
                <span>at most</span>
                <select className={inputClass} value={limit} onChange={(event) => setLimit(Number(event.target.value))}>
                  {limits.map((n) => (
                    <option key={n} value={n}>
                      {plural(n, "row")}
                    </option>
                  ))}
                </select>
              </label>
            </div>
          </Card>
          {message !== undefined && (
            <div className={css.error} role="alert">
              <p>
                {title && <strong>{title}. </strong>}
                {place && (
                  <strong>
                    Line {place.line}, column {place.column}:{" "}
                  </strong>
                )}
                <span className={css.message}>{headline(message)}</span>
              </p>
              {place && marked && (
                <Button onClick={() => editor.current?.show(place.offset)}>Go to line {place.line}</Button>
              )}
            </div>
          )}
          {shown.result && shown.result.columns.length > 0 && (
            <Outcome
              result={shown.result}
              rows={shown.rows}
              busy={shown.busy}
              more={limits.find((n) => n > shown.rows)}
              onMore={(most) => {
                setLimit(most);
                run(shown.ran, most);
              }}
            />
          )}
          {!shown.result && message === undefined && !shown.busy && (
            <Card>
              <Empty title="Write a statement, or choose a question">
                <ul className={css.questions}>
                  {examples.slice(0, 6).map((e) => (
                    <li key={e.question}>
                      <button type="button" data-row onClick={() => choose(e.sql)}>
                        {e.question}
                      </button>
                    </li>
                  ))}
                </ul>
              </Empty>
            </Card>
          )}
        </div>
        <Card className={css.side}>
          <Tabs
            label="Help with statements"
            value={side}
            items={[
              { id: "tables", label: "Tables" },
              { id: "examples", label: "Examples" },
              { id: "history", label: "History" },
            ]}
            onChange={setSide}
          />
          <TabPanel id={side}>
            {side === "tables" && <Tables onPick={pick} />}
            {side === "examples" && (
              <ul className={css.list}>
                {examples.map((e) => (
                  <li key={e.question}>
                    <button type="button" data-row onClick={() => choose(e.sql)}>
                      {e.question}
                    </button>
                  </li>
                ))}
              </ul>
            )}
            {side === "history" && <History project={project} onChoose={choose} />}
          </TabPanel>
        </Card>
      </div>
    </>
  );
}

function Busy({ started, rows }: { started: number; rows: number }) {
  const now = useNow();
  const seconds = Math.max(0, Math.round((now - started) / 1000));
  return (
    <span className={page.sub} role="status">
      Running{seconds > 0 ? ` for ${seconds} s` : ""}
      {rows > 0 ? `, ${plural(rows, "row")} so far` : ""}…
    </span>
  );
}

// When chooses the revision that a statement reads.
function When({ value, onChange }: { value: string; onChange: (at: string) => void }) {
  const [exact, setExact] = useState(value !== "");
  const id = useId();
  return (
    <span className={css.option}>
      <label htmlFor={id}>state of</label>
      <select
        id={id}
        className={inputClass}
        value={exact ? "exact" : ""}
        onChange={(event) => {
          const chosen = event.target.value;
          setExact(chosen !== "");
          if (chosen === "") onChange("");
          else if (chosen === "exact") onChange(value);
          else onChange(`${new Date(serverTime() - Number(chosen) * 60_000).toISOString().slice(0, 19)}Z`);
        }}
      >
        <option value="">now</option>
        {ages.map((age) => (
          <option key={age.minutes} value={age.minutes}>
            {age.label}
          </option>
        ))}
        <option value="exact">a revision or time…</option>
      </select>
      {exact && (
        <input
          className={`${inputClass} ${css.at}`}
          aria-label="Revision or time"
          placeholder="402 or 2025-01-15 12:00"
          value={value}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
    </span>
  );
}

function History({ project, onChoose }: { project: string; onChoose: (sql: string) => void }) {
  const past = usePast(project);
  const now = useNow();
  if (past.length === 0) {
    return (
      <Empty title="No statement yet">
        <p>This browser remembers the last 50 statements.</p>
      </Empty>
    );
  }
  return (
    <>
      <ul className={css.list}>
        {past.map((p) => (
          <li key={`${p.at} ${p.sql}`}>
            <button type="button" data-row onClick={() => onChoose(p.sql)}>
              <code>{p.sql}</code>
              <small>
                {ago(p.at, now)} · {p.error ? "failed" : plural(p.rows ?? 0, "row")}
              </small>
            </button>
          </li>
        ))}
      </ul>
      <div className={page.pad}>
        <Button onClick={() => forget(project)}>Forget all</Button>
      </div>
    </>
  );
}
