import type { Quarantine } from "../api/types";
import { Time } from "./parts";

// nameOf returns the name of the principal who decided. If no principal has decided, the output has expired.
export function nameOf(by: string): string {
  return by.replace(/^user:/, "") || "its expiry";
}

// Decision says what became of an output that a check has blocked: who decided, when, and why. It shows nothing if no
// check has blocked the output.
export function Decision({ of }: { of: Quarantine | undefined }) {
  if (!of) return null;
  if (of.state === "PENDING") {
    return (
      <p>
        The output waits in quarantine for a decision. It is {of.approve_on_expiry ? "approved" : "rejected"}{" "}
        automatically <Time at={of.expires_at} />.
      </p>
    );
  }
  const superseded = of.state === "SUPERSEDED";
  return (
    <p>
      The output was {of.state.toLowerCase()} {!superseded && `by ${nameOf(of.by)} `}
      <Time at={of.at} />
      {of.reason && `: ${of.reason}`}
    </p>
  );
}
