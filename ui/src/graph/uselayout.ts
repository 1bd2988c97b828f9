import { useEffect, useState } from "react";
import { renew } from "../app/renew";
import type { Arrow, Layout, Size } from "./layout";
import address from "./worker?worker&url";

// The content security policy allows only script addresses that this Trusted Types policy has created. The Trusted
// Types policy creates only the address of the worker.
interface Policy {
  createScriptURL: (url: string) => string;
}
const types = (
  window as {
    trustedTypes?: { createPolicy: (name: string, rules: Policy) => { createScriptURL: (url: string) => string } };
  }
).trustedTypes;
const rules: Policy = {
  createScriptURL: (url) => {
    if (url !== address) throw new TypeError(`the page may not start a worker from ${url}`);
    return url;
  },
};
const policy = types ? types.createPolicy("servo-worker", rules) : rules;

// Layouts by the hash of their graph. If only the health of nodes changes, the graph is drawn again with the same
// layout.
const known = new Map<string, Layout>();
const most = 30;

interface Drawn {
  layout: Layout | undefined;
  error: Error | undefined;
  again: () => void;
}

// useLayout returns the layout of a graph. While the worker computes a new layout, the page keeps the previous one. If
// the worker fails, useLayout returns an error, and the function again starts another worker.
export function useLayout(hash: string, nodes: Size[], edges: Arrow[]): Drawn {
  const [layout, setLayout] = useState<Layout>();
  const [error, setError] = useState<Error>();
  const [attempt, setAttempt] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the hash changes whenever nodes or edges do
  useEffect(() => {
    if (hash === "") return;
    setError(undefined);
    const layout = known.get(hash);
    if (layout) {
      setLayout(layout);
      return;
    }
    const worker = new Worker(policy.createScriptURL(address), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Layout>) => {
      if (known.size >= most) known.delete(known.keys().next().value ?? "");
      known.set(hash, data);
      setLayout(data);
      worker.terminate();
    };
    worker.onerror = ({ message }) => {
      setError(new Error(`The graph could not be drawn${message ? `: ${message}` : "."}`));
      worker.terminate();
      void renew(); // the program of the worker may belong to an earlier build
    };
    worker.postMessage({ nodes, edges });
    return () => worker.terminate(); // a newer graph needs another layout
  }, [hash, attempt]);
  return { layout, error, again: () => setAttempt(attempt + 1) };
}
