import type { RunState, TaskState } from "../api/types";

// The kinds of states. Each has a colour and a shape, so that people who cannot distinguish the colours can read the
// states.
export type Tone = "fresh" | "running" | "waiting" | "stale" | "failed" | "quarantined";

export const runTone: Record<RunState, Tone> = {
  UNSPECIFIED: "waiting",
  PENDING: "waiting",
  RUNNING: "running",
  PAUSED: "waiting",
  CANCELLING: "stale",
  SUCCEEDED: "fresh",
  FAILED: "failed",
  CANCELLED: "waiting",
  TIMED_OUT: "failed",
};

export const taskTone: Record<TaskState, Tone> = {
  UNSPECIFIED: "waiting",
  BLOCKED: "waiting",
  READY: "waiting",
  DISPATCHED: "waiting",
  RUNNING: "running",
  RETRY_WAIT: "stale",
  SKIPPED: "stale",
  CANCELLED: "waiting",
  FAILED: "failed",
  SUCCEEDED: "fresh",
};

export const words: Record<string, string> = {
  PENDING: "pending",
  RUNNING: "running",
  PAUSED: "paused",
  CANCELLING: "cancelling",
  SUCCEEDED: "succeeded",
  FAILED: "failed",
  CANCELLED: "cancelled",
  TIMED_OUT: "timed out",
  BLOCKED: "blocked",
  READY: "ready",
  DISPATCHED: "in the queue",
  RETRY_WAIT: "waits for a retry",
  SKIPPED: "skipped",
};

export const ended = (state: RunState) => ["SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"].includes(state);
