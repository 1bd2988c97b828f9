import { useNavigate } from "@tanstack/react-router";
import { type KeyboardEvent, useDeferredValue, useId, useMemo, useState } from "react";
import { useAssets, useRuns } from "../api/queries";
import { Icon, type IconName } from "../parts/icons";
import { Dialog } from "../parts/parts";
import { words } from "../parts/status";
import { shortID } from "./format";
import { change, toggleTheme, useSettings } from "./settings";
import type { Screen } from "./shell";
import css from "./shell.module.css";

interface Option {
  id: string;
  icon: IconName;
  label: string;
  note: string;
  run: () => void;
}

const most = 60;

// score returns how well a text matches the typed text: 0 is no match, 100 the best.
export function score(text: string, typed: string): number {
  const [all, part] = [text.toLowerCase(), typed.toLowerCase().trim()];
  if (part === "") return 1;
  const at = all.indexOf(part);
  if (at === 0) return 100;
  if (at > 0) return /[^a-z0-9]/.test(all[at - 1] ?? "") ? 80 : 60;
  return part.split(/\s+/).every((word) => all.includes(word)) ? 40 : 0;
}

export function Palette({
  screens,
  onClose,
  onRun,
  onKeys,
}: {
  screens: readonly Screen[];
  onClose: () => void;
  onRun: () => void;
  onKeys: () => void;
}) {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const query = useDeferredValue(typed);
  const navigate = useNavigate();
  const settings = useSettings();
  const assets = useAssets();
  const runs = useRuns({});
  const id = useId();

  const all = useMemo(() => {
    const options: Option[] = screens.map((s) => ({
      id: s.to,
      icon: s.icon,
      label: s.label,
      note: s.keys,
      run: () => void navigate({ to: s.to }),
    }));
    options.push(
      { id: "run", icon: "runs", label: "Start a run…", note: "n", run: onRun },
      { id: "theme", icon: "moon", label: "Switch between dark and light", note: "d", run: toggleTheme },
      {
        id: "zone",
        icon: "schedules",
        label: settings.utc ? "Show local times" : "Show times in UTC",
        note: "z",
        run: () => change({ utc: !settings.utc }),
      },
      { id: "keys", icon: "keyboard", label: "Show the keyboard commands", note: "?", run: onKeys },
    );
    for (const asset of assets.data?.assets ?? []) {
      const [namespace = "", name = ""] = asset.asset_key.split("/");
      options.push({
        id: `asset ${asset.asset_key}`,
        icon: "assets",
        label: asset.asset_key,
        note: "asset",
        run: () => void navigate({ to: "/assets/$namespace/$name", params: { namespace, name } }),
      });
    }
    for (const run of runs.data?.runs ?? []) {
      options.push({
        id: `run ${run.run_id}`,
        icon: "runs",
        label: `${shortID(run.run_id)} ${run.assets.join(", ")}`,
        note: words[run.state] ?? run.state,
        run: () => void navigate({ to: "/runs/$run", params: { run: run.run_id } }),
      });
    }
    return options;
  }, [screens, assets.data, runs.data, settings.utc, navigate, onRun, onKeys]);

  const shown = useMemo(
    () =>
      all
        .map((option) => ({ option, score: score(`${option.label} ${option.id}`, query) }))
        .filter((x) => x.score > 0)
        .sort((a, b) => b.score - a.score)
        .slice(0, most)
        .map((x) => x.option),
    [all, query],
  );
  const selected = Math.min(at, shown.length - 1);
  const choose = (option: Option | undefined) => {
    if (!option) return;
    onClose();
    option.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && shown.length > 0) {
      event.preventDefault();
      const next = (selected + by + shown.length) % shown.length;
      setAt(next);
      document.getElementById(`${id}-${next}`)?.scrollIntoView({ block: "nearest" });
    }
    if (event.key === "Enter") {
      event.preventDefault();
      choose(shown[selected]);
    }
  };
  return (
    <Dialog title="Search and commands" bare className={css.palette} onClose={onClose}>
      <input
        autoFocus
        role="combobox"
        aria-label="Search screens, assets, runs and commands"
        aria-expanded="true"
        aria-controls={`${id}-list`}
        aria-activedescendant={shown.length > 0 ? `${id}-${selected}` : undefined}
        placeholder="Screen, asset, the end of a run's id, or a command"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
      />
      <div className={css.options} id={`${id}-list`} role="listbox" tabIndex={-1} aria-label="Results">
        {shown.map((option, i) => (
          <div
            role="option"
            key={option.id}
            id={`${id}-${i}`}
            aria-selected={i === selected}
            className={css.option}
            onClick={() => choose(option)}
            onPointerMove={() => setAt(i)}
          >
            <Icon name={option.icon} />
            <span>
              <bdi>{option.label}</bdi>
            </span>
            <small>{option.note}</small>
          </div>
        ))}
      </div>
      {shown.length === 0 && <p className={css.none}>Nothing matches.</p>}
    </Dialog>
  );
}
