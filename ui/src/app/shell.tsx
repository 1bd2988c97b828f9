import { Link, Outlet, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { Failure } from "../api/client";
import { useAssets, useAttention, useLive, useReadOnly, useRevision, useWatch, useWhoAmI } from "../api/queries";
import { Icon, Mark } from "../parts/icons";
import { Badge, Button, Command, Dialog, Skeleton, Toasts } from "../parts/parts";
import { RunDialog } from "../parts/rundialog";
import { active, handle, move, useCommands } from "./keys";
import { Palette } from "./palette";
import { change, toggleTheme, useSettings, useTheme } from "./settings";
import css from "./shell.module.css";

const screens = [
  { to: "/", label: "Overview", icon: "overview", keys: "g o" },
  { to: "/runs", label: "Runs", icon: "runs", keys: "g r" },
  { to: "/assets", label: "Assets", icon: "assets", keys: "g a" },
  { to: "/schedules", label: "Schedules", icon: "schedules", keys: "g s" },
  { to: "/backfills", label: "Backfills", icon: "backfills", keys: "g b" },
  { to: "/sql", label: "SQL", icon: "sql", keys: "g q" },
] as const;

export type Screen = (typeof screens)[number];

function Key({ keys }: { keys: string }) {
  return (
    <span>
      {keys.split(" ").map((key) => (
        <kbd key={key} className={css.key}>
          {key}
        </kbd>
      ))}
    </span>
  );
}

function KeysDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <ul className={css.keys}>
        {active().map((command) => (
          <li key={command.keys}>
            {command.label} <Key keys={command.keys} />
          </li>
        ))}
        <li>
          Open the focused row <Key keys="Enter" />
        </li>
      </ul>
    </Dialog>
  );
}

function SignedOut() {
  return (
    <main className={css.login}>
      <h1>
        <Mark /> This browser is not logged in
      </h1>
      <p>
        Open the address that <code>servo dev</code> or <code>servo-cloud ui</code> printed when it started. An address
        logs one browser in, and works once. To get another address from <code>servo dev</code>, run this command in the
        folder of the project:
      </p>
      <p>
        <Command text="servo ui" />
      </p>
    </main>
  );
}

function Connection({ lost, revision }: { lost: boolean; revision: number | undefined }) {
  return (
    <span className={lost ? `${css.live} ${css.lost}` : css.live} role="status">
      <span className={css.dot} />
      {lost ? "disconnected" : <span className={css.keyboard}>revision {revision}</span>}
    </span>
  );
}

function ErrorCount() {
  const { data } = useAttention();
  const errors = data?.attention.filter((x) => x.severity === "ERROR").length ?? 0;
  if (errors === 0) return null;
  return (
    <span className={css.count}>
      {errors}
      <span className="sr-only"> failures</span>
    </span>
  );
}

export function Shell() {
  const live = useLive();
  const who = useWhoAmI();
  const readOnly = useReadOnly();
  const assets = useAssets();
  useRevision();
  useWatch();
  const navigate = useNavigate();
  const theme = useTheme();
  const settings = useSettings();
  const [open, setOpen] = useState<"palette" | "keys" | "run">();
  const close = () => setOpen(undefined);

  useEffect(() => {
    document.addEventListener("keydown", handle);
    return () => document.removeEventListener("keydown", handle);
  }, []);
  useCommands([
    { keys: "Ctrl k", label: "Search and commands", run: () => setOpen("palette") },
    ...screens.map((s) => ({ keys: s.keys, label: s.label, run: () => void navigate({ to: s.to }) })),
    { keys: "n", label: "Start a run", run: () => setOpen("run") },
    { keys: "j", label: "Next row", run: () => move(1) },
    { keys: "k", label: "Previous row", run: () => move(-1) },
    {
      keys: "/",
      label: "Search in the view",
      run: () => document.querySelector<HTMLElement>("[data-search]")?.focus(),
    },
    { keys: "d", label: "Dark or light", run: toggleTheme },
    { keys: "z", label: "Times local or in UTC", run: () => change({ utc: !settings.utc }) },
    { keys: "?", label: "This list", run: () => setOpen("keys") },
  ]);

  const name = who.data?.project;
  useEffect(() => {
    if (name) document.title = `${name} · Servo`;
  }, [name]);

  if (live.error instanceof Failure && [401, 403].includes(live.error.status)) return <SignedOut />;
  const lost = live.isError;
  return (
    <>
      <a className={css.skip} href="#main">
        Skip to the content
      </a>
      <header className={css.header}>
        <Link to="/" className={css.brand} aria-label={`Servo: ${name ?? "overview"}`}>
          <Mark />
          <span
            className={css.project}
            title={who.data && `${who.data.tenant_id}/${who.data.workspace_id}, ${who.data.principal}`}
          >
            {name ?? "Servo"}
          </span>
          {readOnly && <Badge tone="waiting">read-only</Badge>}
        </Link>
        <nav className={css.nav} aria-label="Screens">
          {screens.map((s) => (
            <Link key={s.to} to={s.to} className={css.link} activeOptions={{ exact: s.to === "/" }}>
              <Icon name={s.icon} />
              {s.label}
              {s.to === "/" && <ErrorCount />}
            </Link>
          ))}
        </nav>
        <div className={css.space} />
        <Connection lost={lost} revision={live.data?.revision} />
        <button type="button" className={css.search} onClick={() => setOpen("palette")}>
          <Icon name="search" />
          <span>Search or run…</span>
          <kbd className={css.key}>Ctrl K</kbd>
        </button>
        <Button
          kind="icon"
          icon={theme === "dark" ? "sun" : "moon"}
          aria-label={theme === "dark" ? "Light theme" : "Dark theme"}
          onClick={toggleTheme}
        />
        <Button
          kind="icon"
          icon="keyboard"
          className={css.keyboard}
          aria-label="Keys"
          onClick={() => setOpen("keys")}
        />
      </header>
      {lost && live.data && (
        <div className={css.banner} role="alert">
          The server does not answer, so this page may be out of date. It reconnects by itself once{" "}
          <code>{readOnly ? "servo-cloud ui" : "servo dev"}</code> runs again.
        </div>
      )}
      {assets.error instanceof Failure && assets.error.status === 409 && (
        <div className={css.banner}>No run can start: {assets.error.message}</div>
      )}
      <main id="main" className={css.main} tabIndex={-1}>
        {live.data || live.error ? <Outlet /> : <Skeleton />}
      </main>
      {open === "palette" && (
        <Palette screens={screens} onClose={close} onRun={() => setOpen("run")} onKeys={() => setOpen("keys")} />
      )}
      {open === "keys" && <KeysDialog onClose={close} />}
      {open === "run" && <RunDialog onClose={close} />}
      <Toasts />
    </>
  );
}
