import {
  type ButtonHTMLAttributes,
  Fragment,
  type KeyboardEvent,
  type ReactNode,
  useEffect,
  useId,
  useRef,
  useState,
  useSyncExternalStore,
} from "react";
import { Failure } from "../api/client";
import { useNow, useReadOnly } from "../api/queries";
import { ago, splitTimes, stamp, zoneName } from "../app/format";
import { useSettings } from "../app/settings";
import { Icon, type IconName } from "./icons";
import css from "./parts.module.css";
import type { Tone } from "./status";

const shapes: Record<Tone, ReactNode> = {
  fresh: <circle cx="5" cy="5" r="4" fill="currentColor" />,
  running: <path d="M2 1l7 4-7 4z" fill="currentColor" />,
  waiting: (
    <>
      <circle cx="5" cy="5" r="3.8" fill="none" stroke="currentColor" strokeWidth="1.4" />
      <path d="M5 1.2A3.8 3.8 0 0 1 8.8 5H5z" fill="currentColor" />
    </>
  ),
  stale: <path d="M1 9L9 1M1 5.2L5.2 1M4.8 9L9 4.8" stroke="currentColor" strokeWidth="1.6" strokeLinecap="round" />,
  failed: <path d="M1.8 1.8l6.4 6.4M8.2 1.8L1.8 8.2" stroke="currentColor" strokeWidth="2.2" strokeLinecap="round" />,
  quarantined: <path d="M1.4 1.4h7.2v7.2H1.4zM3.6 3.6h2.8v2.8H3.6z" fill="currentColor" fillRule="evenodd" />,
};

export function Shape({ tone }: { tone: Tone }) {
  return (
    <svg className={css.shape} viewBox="0 0 10 10" fill="none" style={{ color: `var(--${tone})` }} aria-hidden="true">
      {shapes[tone]}
    </svg>
  );
}

export function Badge({ tone, children, bare }: { tone: Tone; children: ReactNode; bare?: boolean }) {
  const style = bare ? { color: `var(--${tone})` } : { color: `var(--${tone})`, background: `var(--${tone}-soft)` };
  return (
    <span className={bare ? `${css.badge} ${css.bare}` : css.badge} style={style}>
      <Shape tone={tone} />
      {children}
    </span>
  );
}

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  icon?: IconName;
  kind?: "primary" | "danger" | "icon" | undefined;
}

export function Button({ icon, kind, children, className, ...rest }: ButtonProps) {
  const name = [css.button, kind && css[kind], className].filter(Boolean).join(" ");
  return (
    <button type="button" className={name} {...rest}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

export const buttonClass = css.button;
export const primaryClass = `${css.button} ${css.primary}`;

export function Card({
  children,
  className,
  ...rest
}: {
  children: ReactNode;
  className?: string | undefined;
  id?: string;
}) {
  return (
    <div className={className ? `${css.card} ${className}` : css.card} {...rest}>
      {children}
    </div>
  );
}

// Time shows when something happened: relative, with the exact time in the browser's zone and in UTC on hover.
export function Time({ at, exact }: { at: string | undefined; exact?: boolean }) {
  const now = useNow();
  const { utc } = useSettings();
  if (!at) return <span>–</span>;
  const date = new Date(at);
  const title = `${stamp(date, utc)} ${zoneName(utc)}${utc ? "" : ` · ${stamp(date, true)} UTC`}`;
  return (
    <time dateTime={at} title={title}>
      {exact ? stamp(date, utc) : ago(date.getTime(), now)}
    </time>
  );
}

// Sentence shows a sentence of the server, with the given times in the form of the page.
export function Sentence({ text, times }: { text: string; times: (string | undefined)[] }) {
  return splitTimes(text, times).map((part, i) => (i % 2 ? <Time key={i} at={part} exact /> : part));
}

// Command shows a command of the command line, with a button that copies it. On a page that shows a bucket, the
// command names the program that supports buckets.
export function Command({ text: local }: { text: string }) {
  const text = useReadOnly() ? local.replace(/^servo /, "servo-cloud ") : local;
  const [copied, setCopied] = useState(false);
  return (
    <span className={css.command}>
      <code>
        {text.split(" ").map((word, i) => (
          <Fragment key={i}>
            {i > 0 && " "}
            <span className={css.word}>{word}</span>
          </Fragment>
        ))}
      </code>
      <button
        type="button"
        aria-label={copied ? "Copied" : `Copy the command ${text}`}
        onClick={() => {
          void navigator.clipboard?.writeText(text).then(() => setCopied(true));
        }}
      >
        <Icon name={copied ? "fit" : "copy"} size={14} />
      </button>
    </span>
  );
}

// ReadOnly explains in the dialog of an action why the dialog has no button for the action.
export function ReadOnly() {
  return <p>This page shows a bucket and changes nothing. Run the command instead.</p>;
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className={css.empty}>
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Problem({ error, retry }: { error: unknown; retry?: () => void }) {
  const failure = error instanceof Failure ? error : undefined;
  const detail = error instanceof Error ? error.message : String(error);
  return (
    <div className={css.problem} role="alert">
      <h2>{failure ? failure.title : "Something went wrong in this page"}</h2>
      <p>{detail}</p>
      {retry && (
        <div>
          <Button icon="retry" onClick={retry}>
            Try again
          </Button>
        </div>
      )}
    </div>
  );
}

export function Skeleton({ lines = 6 }: { lines?: number }) {
  return (
    <div aria-busy="true" style={{ display: "grid", gap: 14, padding: 16 }}>
      <span className="sr-only">Loading</span>
      {Array.from({ length: lines }, (_, i) => (
        <div key={i} className={css.skeleton} style={{ width: `${90 - ((i * 37) % 50)}%` }} />
      ))}
    </div>
  );
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  className?: string | undefined;
  bare?: boolean;
}

// Dialog is a modal dialog. The browser keeps the focus inside, and returns it to the previous element when the
// dialog closes.
export function Dialog({ title, onClose, children, className, bare }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    if (dialog && !dialog.open) dialog.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={ref}
      className={className ? `${css.dialog} ${className}` : css.dialog}
      aria-labelledby={bare ? undefined : id}
      aria-label={bare ? title : undefined}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onKeyDown={(event: KeyboardEvent) => {
        if (event.key === "Escape") {
          event.preventDefault();
          onClose();
        }
      }}
      onClick={(event) => {
        if (event.target === ref.current) onClose();
      }}
    >
      {bare ? (
        children
      ) : (
        <div className={css.dialogBody}>
          <div className={css.dialogHead}>
            <h2 id={id}>{title}</h2>
            <Button kind="icon" icon="close" aria-label="Close" onClick={onClose} />
          </div>
          {children}
        </div>
      )}
    </dialog>
  );
}

export function Actions({ children }: { children: ReactNode }) {
  return <div className={css.actions}>{children}</div>;
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ReactNode }) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is a child
    <label className={css.field}>
      <span>{label}</span>
      {children}
      {hint && <small className={css.hint}>{hint}</small>}
    </label>
  );
}

export const inputClass = css.input;
export const hintClass = css.hint;

export interface TabItem {
  id: string;
  label: ReactNode;
}

export function Tabs({
  label,
  items,
  value,
  onChange,
}: {
  label: string;
  items: TabItem[];
  value: string;
  onChange: (id: string) => void;
}) {
  const step = (event: KeyboardEvent, by: number) => {
    const at = items.findIndex((item) => item.id === value);
    const next = items[(at + by + items.length) % items.length];
    if (!next) return;
    event.preventDefault();
    onChange(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div className={css.tabs} role="tablist" aria-label={label}>
      {items.map((item) => (
        <button
          key={item.id}
          id={`tab-${item.id}`}
          type="button"
          role="tab"
          className={css.tab}
          aria-selected={item.id === value}
          aria-controls="tabpanel"
          tabIndex={item.id === value ? 0 : -1}
          onClick={() => onChange(item.id)}
          onKeyDown={(event) => {
            if (event.key === "ArrowRight") step(event, 1);
            if (event.key === "ArrowLeft") step(event, -1);
          }}
        >
          {item.label}
        </button>
      ))}
    </div>
  );
}

export function TabPanel({ id, children }: { id: string; children: ReactNode }) {
  return (
    <div id="tabpanel" role="tabpanel" aria-labelledby={`tab-${id}`}>
      {children}
    </div>
  );
}

export interface Choice {
  id: string;
  label: string;
  icon?: IconName;
}

export function Segmented({
  label,
  items,
  value,
  onChange,
}: {
  label: string;
  items: Choice[];
  value: string;
  onChange: (id: string) => void;
}) {
  return (
    <div className={css.segmented} role="group" aria-label={label}>
      {items.map((item) => (
        <button key={item.id} type="button" aria-pressed={item.id === value} onClick={() => onChange(item.id)}>
          {item.icon && <Icon name={item.icon} size={14} />}
          {item.label}
        </button>
      ))}
    </div>
  );
}

// Bar shows parts of a whole. Its text names them.
export function Bar({ parts, label }: { parts: { tone: Tone; count: number }[]; label: string }) {
  return (
    <div className={css.bar} role="img" aria-label={label} title={label}>
      {parts
        .filter((part) => part.count > 0)
        .map((part) => (
          <span
            key={part.tone}
            style={{
              flexGrow: part.count,
              background: part.tone === "waiting" ? "var(--border)" : `var(--${part.tone})`,
            }}
          />
        ))}
    </div>
  );
}

interface Message {
  id: number;
  text: ReactNode;
}

let messages: Message[] = [];
const listeners = new Set<() => void>();
let serial = 0;

function setMessages(to: Message[]) {
  messages = to;
  for (const tell of listeners) tell();
}

// toast shows a message for some seconds.
export function toast(text: ReactNode) {
  const id = ++serial;
  setMessages([...messages, { id, text }]);
  setTimeout(() => setMessages(messages.filter((m) => m.id !== id)), 7000);
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (tell) => {
      listeners.add(tell);
      return () => listeners.delete(tell);
    },
    () => messages,
  );
  return (
    <div className={css.toasts} role="status" aria-live="polite">
      {shown.map((m) => (
        <div key={m.id} className={css.toast}>
          <div>{m.text}</div>
        </div>
      ))}
    </div>
  );
}
