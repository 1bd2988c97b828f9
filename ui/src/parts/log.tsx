import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { get, path } from "../api/client";
import type { Attempt, LogChunk } from "../api/types";
import { count, plural } from "../app/format";
import { ansi } from "./ansi";
import css from "./log.module.css";
import { readOn } from "./logreader";
import { Button, Problem } from "./parts";

const lineHeight = 18;
const longest = 4000; // the greatest number of characters that are shown of a line
const again = 3000; // the time between two reads of a log that the server cannot stream, in milliseconds
const wrong = /\b(error|exception|fatal|panic|traceback|failed)\b/i;

interface Stream {
  text: string;
  live: boolean;
  error: unknown;
}

// useLog reads the log of an attempt, and follows it while the attempt runs. After a lost connection, the
// browser continues at the last byte that it has received.
function useLog(run: string, task: string, attempt: Attempt): Stream {
  const [log, setLog] = useState<Stream>({ text: "", live: true, error: undefined });
  const { attempt: number } = attempt;
  useEffect(() => {
    let [buffer, timer, offset] = ["", 0, 0];
    const show = (live: boolean, error?: unknown) => setLog({ text: buffer, live, error });
    const at = ["runs", run, "tasks", task, "attempts", String(number), "log"];
    const stop = new AbortController();
    let source: EventSource | undefined;
    let open = true; // the stream has not ended
    const close = () => {
      source?.close();
      source = undefined;
      clearTimeout(timer);
      timer = 0;
    };
    const chunk = (event: MessageEvent<string>) => {
      const part = JSON.parse(event.data) as LogChunk;
      buffer += part.text;
      offset = part.next_offset;
      if (part.complete) {
        open = false;
        close();
        show(false);
        return;
      }
      timer ||= window.setTimeout(() => {
        timer = 0;
        show(true);
      }, 100);
    };
    const failed = () => {
      if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again
      open = false;
      close();
      // The server cannot stream this log: another process executes the attempt, or there are too many streams.
      readOn(
        offset,
        (from) => get<LogChunk>(path(at, { offset: from }), stop.signal),
        (text, live) => {
          buffer += text;
          show(live);
        },
        () =>
          new Promise((resolve) => {
            timer = window.setTimeout(resolve, again);
          }),
      ).catch((error) => !stop.signal.aborted && show(false, error));
    };
    // A hidden page needs no connection, and browsers allow few.
    const follow = () => {
      if (!open) return;
      close();
      if (document.hidden) return;
      source = new EventSource(path(at, { offset }, "tail"));
      source.addEventListener("chunk", chunk);
      source.addEventListener("error", failed);
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      close();
      stop.abort();
    };
  }, [run, task, number]);
  return log;
}

export function LogView({
  run,
  task,
  attempts,
  chosen,
  onChoose,
}: {
  run: string;
  task: string;
  attempts: Attempt[];
  chosen: number | undefined;
  onChoose: (attempt: number) => void;
}) {
  const begun = attempts.filter((a) => a.started_at);
  const attempt = begun.find((a) => a.attempt === chosen) ?? begun.at(-1);
  if (!attempt)
    return <p style={{ padding: 16, color: "var(--muted)" }}>No attempt has started yet, so there is no log.</p>;
  return (
    <Lines
      key={attempt.attempt_id}
      run={run}
      task={task}
      attempt={attempt}
      select={
        begun.length > 1 && (
          <select
            aria-label="Attempt"
            value={attempt.attempt}
            onChange={(event) => onChoose(Number(event.target.value))}
          >
            {begun.map((a) => (
              <option key={a.attempt} value={a.attempt}>
                attempt {a.attempt} {a.outcome?.toLowerCase() ?? ""}
              </option>
            ))}
          </select>
        )
      }
    />
  );
}

function Lines({
  run,
  task,
  attempt,
  select,
}: {
  run: string;
  task: string;
  attempt: Attempt;
  select: React.ReactNode;
}) {
  const log = useLog(run, task, attempt);
  const lines = useMemo(() => (log.text === "" ? [] : log.text.replace(/\r?\n$/, "").split(/\r?\n/)), [log.text]);
  const [query, setQuery] = useState("");
  const [following, setFollowing] = useState(true);
  const [at, setAt] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => lineHeight,
    overscan: 20,
  });
  const matches = useMemo(() => {
    const typed = query.toLowerCase();
    return typed ? lines.flatMap((line, i) => (line.toLowerCase().includes(typed) ? [i] : [])) : [];
  }, [lines, query]);
  const firstError = useMemo(() => lines.findIndex((line) => wrong.test(line)), [lines]);

  useEffect(() => {
    if (following && log.live && lines.length > 0) virtual.scrollToIndex(lines.length - 1, { align: "end" });
  }, [following, log.live, lines.length, virtual]);
  const go = (line: number | undefined) => {
    if (line === undefined) return;
    setFollowing(false);
    virtual.scrollToIndex(line, { align: "center" });
  };
  const next = () => {
    go(matches[at % matches.length]);
    setAt((at + 1) % Math.max(matches.length, 1));
  };
  return (
    <div>
      <div className={css.tools}>
        {select}
        <input
          type="search"
          data-search
          aria-label="Search in the log"
          placeholder="Search in the log"
          value={query}
          onChange={(event) => {
            setQuery(event.target.value);
            setAt(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter" && matches.length > 0) next();
            if (event.key !== "Escape") return;
            event.currentTarget.blur();
            event.preventDefault(); // this Escape must not also close a sheet that contains the log
            event.stopPropagation();
          }}
        />
        <span className={css.note} aria-live="polite">
          {query ? plural(matches.length, "line") : ""}
        </span>
        {firstError >= 0 && <Button onClick={() => go(firstError)}>First error</Button>}
        {log.live && (
          <label className={css.note}>
            <input type="checkbox" checked={following} onChange={(event) => setFollowing(event.target.checked)} />{" "}
            follow
          </label>
        )}
        <span className={css.note}>
          {log.live ? "live, " : ""}
          {plural(lines.length, "line")}
        </span>
      </div>
      {log.error !== undefined && <Problem error={log.error} />}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable with the keyboard */}
      <div className={css.lines} ref={scroller} role="log" aria-label={`Log of ${task}`} aria-live="off" tabIndex={0}>
        <div className={css.inner} style={{ height: Math.max(virtual.getTotalSize(), lineHeight) }}>
          {lines.length === 0 && log.error === undefined && (
            <div className={css.line}>
              <span />
              {log.live ? "Nothing has been printed yet." : "The attempt printed nothing."}
            </div>
          )}
          {virtual.getVirtualItems().map((item) => {
            const line = lines[item.index] ?? "";
            const matched = query !== "" && line.toLowerCase().includes(query.toLowerCase());
            return (
              <div
                key={item.key}
                className={css.line}
                style={{ transform: `translateY(${item.start}px)` }}
                data-match={matched}
                data-error={wrong.test(line)}
              >
                <span>{item.index + 1}</span>
                <bdi>
                  {ansi(line.slice(0, longest)).map((part, i) => (
                    <span
                      key={i}
                      className={part.style
                        .split(" ")
                        .map((name) => css[name])
                        .join(" ")}
                    >
                      {part.text}
                    </span>
                  ))}
                  {line.length > longest && ` … ${count(line.length - longest)} more characters`}
                </bdi>
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
