import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

// Shared code of the peers' programs for Node.js, the counterpart of package work.

export function levelsOf(job) {
  const levels = [];
  const level = [];
  job.after.forEach((after, task) => {
    level[task] = after.length ? level[after[0]] + 1 : 0;
    (levels[level[task]] ??= []).push(task);
  });
  job.after.forEach((after, task) => {
    if (level[task] && after.length !== levels[level[task] - 1].length) {
      throw new Error(`${job.workload}: task ${task} must depend on all tasks of the previous stage, or on none`);
    }
  });
  return levels;
}

class Check {
  constructor(job) {
    this.job = job;
    this.executed = Array.from({ length: job.runs }, () => new Array(job.after.length).fill(0));
    this.wrong = null;
  }

  execute(run, task) {
    for (const before of this.job.after[task]) {
      if (!this.executed[run][before]) this.wrong = `task ${task} of run ${run} was executed before task ${before}`;
    }
    this.executed[run][task]++;
  }

  done() {
    let tasks = 0;
    let repeated = 0;
    for (const times of this.executed.flat()) {
      if (times) tasks++, (repeated += times - 1);
    }
    const all = this.job.runs * this.job.after.length;
    if (this.wrong || tasks !== all) throw new Error(this.wrong ?? `${tasks} of ${all} tasks were executed`);
    return { tasks, repeated };
  }
}

// flushes returns the number of flush requests to a disk since boot.
function flushes(device) {
  if (!device) return 0;
  const line = readFileSync("/proc/diskstats", "utf8")
    .split("\n")
    .map((text) => text.trim().split(/\s+/))
    .find((fields) => fields[2] === device);
  return Number(line?.[18] ?? 0);
}

// each calls request for each run of a job, at most job.at_once at the same time, and waits for all
// calls.
export async function each(job, request) {
  let run = 0;
  const one = async () => {
    while (run < job.runs) await request(run++);
  };
  await Promise.all(Array.from({ length: job.at_once }, one));
}

// serve reads an order, which is one line of its input, executes the order's job and writes the
// result. Then it stays idle until its input ends, so that the idle process can be measured. open
// receives the job and an object with the job of each workload. It returns a function that executes
// all runs of a job.
export async function serve(open) {
  const input = createInterface({ input: process.stdin });
  const ended = once(input, "close");
  const [order] = await once(input, "line");
  const { job, warming } = JSON.parse(order);
  const book = {};
  for (const each of [warming, job]) book[each.workload] = { ...each, levels: levelsOf(each), check: new Check(each) };
  const perform = await open(job, book);
  await perform(book[warming.workload]);
  const flushed = flushes(job.device);
  const began = performance.now();
  await perform(book[job.workload]);
  const seconds = (performance.now() - began) / 1000;
  const done = { ...book[job.workload].check.done(), seconds, flushes: flushes(job.device) - flushed };
  process.stdout.write(JSON.stringify(done) + "\n");
  await ended;
  process.exit(0); // closes open connections
}
