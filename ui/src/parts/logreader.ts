// Reads the log of an attempt part by part, for logs that the server cannot stream.
import type { LogChunk } from "../api/types";

type Part = Pick<LogChunk, "text" | "next_offset" | "complete">;

// readOn reads a log from an offset to its end, and calls show for each part. While the log can grow, readOn pauses
// at its end, and then asks again.
export async function readOn(
  offset: number,
  read: (offset: number) => Promise<Part>,
  show: (text: string, live: boolean) => void,
  pause: () => Promise<void>,
) {
  for (let at = offset; ; ) {
    const part = await read(at);
    show(part.text, !part.complete);
    if (part.complete) return;
    if (part.next_offset === at) await pause();
    at = part.next_offset;
  }
}
