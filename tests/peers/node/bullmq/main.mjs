// Executes workloads on BullMQ. Its flows are trees: a job waits for its children, and each child has one parent. A
// chain is one flow. A task with several downstreams adds the remaining tasks as another flow before it completes. Jobs
// have ids, so adding a job twice has no effect. Setting: "concurrency" is the number of concurrent jobs.
import { FlowProducer, Worker } from "bullmq";
import { each, serve } from "../work.mjs";

const queueName = "bench";

// flowsOf returns the first flow of a run, and the flows that tasks add, by task.
function flowsOf(levels) {
  const after = new Map();
  let first;
  let children = [];
  let cut; // the task after which the next flow is added
  const end = () => {
    if (cut === undefined) first = children[0];
    else after.set(cut, children[0]);
  };
  for (const level of levels) {
    if (level.length > 1) {
      if (children.length !== 1) throw new Error("two stages with several tasks in sequence are not a tree");
      end();
      cut = children[0].task;
      children = level.map((task) => ({ task, children: [] }));
    } else {
      children = [{ task: level[0], children }];
    }
  }
  if (children.length !== 1) throw new Error("the last stage has several tasks");
  end();
  return { first, after, last: children[0].task };
}

serve(async (job, book) => {
  const [host, port] = job.server.split(":");
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const producer = new FlowProducer({ connection });
  for (const entry of Object.values(book)) entry.flows = flowsOf(entry.levels);

  const jobOf = (workload, run, node) => ({
    name: "task",
    queueName,
    data: { workload, run, task: node.task },
    opts: { jobId: `${workload}-${run}-${node.task}` },
    children: node.children.map((child) => jobOf(workload, run, child)),
  });
  let ended;
  const worker = new Worker(
    queueName,
    async ({ data: { workload, run, task } }) => {
      book[workload].check.execute(run, task);
      const next = book[workload].flows.after.get(task);
      if (next) await producer.add(jobOf(workload, run, next));
    },
    { connection, concurrency: Number(job.settings.concurrency) },
  );
  worker.on("completed", ({ data: { workload, task } }) => task === book[workload].flows.last && ended());
  worker.on("failed", (_, err) => {
    console.error(err);
    process.exit(1);
  });
  await worker.waitUntilReady();
  return async (entry) => {
    let left = entry.runs;
    const all = new Promise((resolve) => (ended = () => --left || resolve()));
    await each(entry, (run) => producer.add(jobOf(entry.workload, run, entry.flows.first)));
    await all;
  };
});
