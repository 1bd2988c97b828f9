// Executes workloads on DBOS. A run is a workflow in this process, and a task is a step of it,
// which is recorded in PostgreSQL. Setting: "connections" is the maximum number of connections.
import { DBOS } from "@dbos-inc/dbos-sdk";
import { each, serve } from "../work.mjs";

serve(async (job, book) => {
  const run = DBOS.registerWorkflow(
    async (workload, n) => {
      const { levels, check } = book[workload];
      for (const level of levels) {
        await Promise.all(level.map((task) => DBOS.runStep(async () => check.execute(n, task), { name: "task" })));
      }
    },
    { name: "run" },
  );
  DBOS.setConfig({
    name: "bench",
    systemDatabaseUrl: job.server,
    systemDatabasePoolSize: Number(job.settings.connections),
    logLevel: "error",
  });
  await DBOS.launch();
  return async (entry) => {
    await each(entry, async (n) => {
      const handle = await DBOS.startWorkflow(run)(entry.workload, n);
      return handle.getResult();
    });
  };
});
