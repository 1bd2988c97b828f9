// Executes workloads on DBOS: a run is a workflow in this process, a task a step of it,
// which is recorded in PostgreSQL. Its setting: "connections", how many it may open.
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
