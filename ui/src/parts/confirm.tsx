import { type FormEvent, useState } from "react";
import { useReadOnly } from "../api/queries";
import { Actions, Button, Command, Dialog, Field, inputClass, Problem, ReadOnly } from "./parts";

// Confirm asks before an action, says what it does, and shows the command that does the same.
export function Confirm({
  title,
  effect,
  command,
  action,
  danger,
  reason,
  onConfirm,
  onClose,
}: {
  title: string;
  effect: string;
  command: string;
  action: string;
  danger?: boolean | undefined;
  reason?: boolean | undefined;
  onConfirm: (reason: string) => Promise<void>;
  onClose: () => void;
}) {
  const [text, setText] = useState("");
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const readOnly = useReadOnly();
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await onConfirm(text);
      onClose();
    } catch (error) {
      setError(error);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit} style={{ display: "grid", gap: 14 }}>
        <p>{effect}</p>
        {reason && !readOnly && (
          <Field label="Reason" hint="It is recorded in the ledger.">
            <input
              className={inputClass}
              value={text}
              maxLength={500}
              onChange={(event) => setText(event.target.value)}
            />
          </Field>
        )}
        {readOnly && <ReadOnly />}
        <Command text={command} />
        {error !== undefined && <Problem error={error} />}
        <Actions>
          <Button onClick={onClose}>Close</Button>
          {!readOnly && (
            <Button kind={danger ? "danger" : "primary"} type="submit" disabled={busy}>
              {action}
            </Button>
          )}
        </Actions>
      </form>
    </Dialog>
  );
}
