import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { path, post } from "../api/client";
import { refresh, useAssets, useReadOnly } from "../api/queries";
import type { TriggerRunRequest, TriggerRunResponse } from "../api/types";
import { plural } from "../app/format";
import { commandLine, joinWords, type Need, needs, splitWords } from "./command";
import { Actions, Button, Command, Dialog, Field, inputClass, Problem, ReadOnly, toast } from "./parts";

export function RunDialog({
  onClose,
  assets: given = [],
  need: first = "stale",
  partitions: chosen = [],
  note,
}: {
  onClose: () => void;
  assets?: string[];
  need?: Need;
  partitions?: string[];
  note?: string; // why the page proposes this run instead of a retry
}) {
  const navigate = useNavigate();
  const known = useAssets();
  const [assets, setAssets] = useState(joinWords(given));
  const [need, setNeed] = useState<Need>(first);
  const [partitions, setPartitions] = useState(joinWords(chosen));
  const [upstream, setUpstream] = useState(false);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const readOnly = useReadOnly();

  const keys = splitWords(assets);
  const selections = need === "" ? splitWords(partitions) : [];
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      const request: TriggerRunRequest = {
        ...(keys.length > 0 ? { assets: keys, upstream } : { all: true }),
        ...(need ? { only: need } : {}),
        partitions: selections,
      };
      const started = await post<TriggerRunResponse>(path(["runs"]), request);
      refresh();
      onClose();
      toast(`Started a run of ${plural(started.tasks, "task")}.${started.warnings.map((w) => ` ${w}.`).join("")}`);
      await navigate({ to: "/runs/$run", params: { run: started.run_id } });
    } catch (error) {
      setError(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title="Start a run" onClose={onClose}>
      <form onSubmit={submit} style={{ display: "grid", gap: 14 }}>
        {note && <p>{note}</p>}
        <Field label="Assets" hint="Keys or selections, such as clean/* or +report/climate. Empty: all assets.">
          <input
            className={inputClass}
            list="known-assets"
            value={assets}
            onChange={(event) => setAssets(event.target.value)}
          />
        </Field>
        <datalist id="known-assets">
          {known.data?.assets.map((asset) => (
            <option key={asset.asset_key} value={asset.asset_key} />
          ))}
        </datalist>
        <Field label="Materialize">
          <select className={inputClass} value={need} onChange={(event) => setNeed(event.target.value as Need)}>
            {needs.map((n) => (
              <option key={n.id} value={n.id}>
                {n.label}
              </option>
            ))}
          </select>
        </Field>
        {need === "" && (
          <Field
            label="Partitions"
            hint="For example date=2025-01-01..2025-01-31. Quote spaces, as in a shell. Empty: all partitions."
          >
            <input className={inputClass} value={partitions} onChange={(event) => setPartitions(event.target.value)} />
          </Field>
        )}
        {keys.length > 0 && (
          <label>
            <input type="checkbox" checked={upstream} onChange={(event) => setUpstream(event.target.checked)} /> Include
            their upstream assets
          </label>
        )}
        {readOnly && <ReadOnly />}
        <Command text={commandLine(keys, need, upstream, selections)} />
        {error !== undefined && <Problem error={error} />}
        <Actions>
          <Button onClick={onClose}>Close</Button>
          {!readOnly && (
            <Button kind="primary" type="submit" disabled={busy}>
              {busy ? "Starting…" : "Start the run"}
            </Button>
          )}
        </Actions>
      </form>
    </Dialog>
  );
}
