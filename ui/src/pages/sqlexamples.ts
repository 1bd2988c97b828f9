// Statements that answer questions about the state. They read tables that every project has.
export interface Example {
  question: string;
  sql: string;
}

export const examples: Example[] = [
  {
    question: "Which tasks failed last, and why?",
    sql: `-- The newest failures, with the message of each.
SELECT completed_at, asset_key, partition_key, error_code, error_message, run_id
FROM tasks
WHERE state = 'FAILED'
ORDER BY completed_at DESC
LIMIT 100;`,
  },
  {
    question: "Which partitions are stale, and why?",
    sql: `-- A partition is stale if a person marked it, or if an input has a newer output than it has read. Staleness is
-- not stored, so this query compares partitions with the same key. The page of an asset and \`servo explain\` know
-- all mappings between partitions, and changes of the code.
WITH reads AS (
  SELECT DISTINCT reader.asset_key, input.asset_key AS input
  FROM dep_satisfaction d
  JOIN tasks reader ON reader.run_id = d.run_id AND reader.task_key = d.downstream_task_key
  JOIN tasks input ON input.run_id = d.run_id AND input.task_key = d.upstream_task_key
), newer AS (
  SELECT p.asset_key, p.partition_key, q.asset_key AS input, max(q.version_seq) AS version
  FROM partition_status p
  JOIN reads r ON r.asset_key = p.asset_key
  JOIN partition_status q ON q.asset_key = r.input
    AND (p.partition_key IN ('', q.partition_key) OR q.partition_key = '')
  WHERE q.version_seq > p.inputs_seq AND coalesce(q.root_run, q.run_id) <> coalesce(p.root_run, p.run_id)
  GROUP BY ALL
), marked AS (
  SELECT asset_key, partition_key, materialization_id, reason FROM partition_marks WHERE mark = 'stale'
)
SELECT p.asset_key, p.partition_key, p.last_materialization_at,
  coalesce('a person marked it: ' || m.reason, n.input || ' is newer') AS reason
FROM partition_status p
LEFT JOIN newer n USING (asset_key, partition_key)
LEFT JOIN marked m ON m.asset_key = p.asset_key AND m.partition_key = p.partition_key
  AND m.materialization_id = p.last_materialization_id
WHERE n.input IS NOT NULL OR m.reason IS NOT NULL
ORDER BY ALL;`,
  },
  {
    question: "Which assets take the most time?",
    sql: `-- The time that tasks executed, by asset.
SELECT asset_key,
  count(*) AS tasks,
  round(sum(epoch(completed_at - started_at)), 1) AS total_seconds,
  round(avg(epoch(completed_at - started_at)), 2) AS mean_seconds,
  round(max(epoch(completed_at - started_at)), 2) AS longest_seconds
FROM tasks
WHERE state = 'SUCCEEDED'
GROUP BY asset_key
ORDER BY total_seconds DESC;`,
  },
  {
    question: "What did tasks wait for before they started?",
    sql: `-- Seconds that first attempts waited for a limit and in the queue, and that they took. Long
-- times in the first column mean that a limit is too low.
SELECT t.asset_key,
  round(avg(epoch(a.created_at - t.ready_at)), 2) AS waited_for_a_limit,
  round(avg(epoch(a.started_at - a.created_at)), 2) AS waited_in_the_queue,
  round(avg(epoch(a.finished_at - a.started_at)), 2) AS took
FROM tasks t JOIN attempts a USING (run_id, task_key)
WHERE a.attempt = 1 AND a.finished_at IS NOT NULL
GROUP BY t.asset_key
ORDER BY waited_for_a_limit DESC;`,
  },
  {
    question: "How many runs succeeded on each day?",
    sql: `SELECT created_at::DATE AS day,
  count(*) FILTER (state = 'SUCCEEDED') AS succeeded,
  count(*) FILTER (state = 'FAILED') AS failed,
  count(*) AS runs
FROM runs
GROUP BY day
ORDER BY day DESC;`,
  },
  {
    question: "How large is each asset?",
    sql: `SELECT asset_key, count(*) AS partitions, sum(row_count) AS rows, sum(byte_size) AS bytes,
  max(last_materialization_at) AS newest
FROM partition_status
WHERE status = 'MATERIALIZED'
GROUP BY asset_key
ORDER BY bytes DESC;`,
  },
  {
    question: "Which tasks needed more than one attempt?",
    sql: `SELECT run_id, task_key, attempt, outcome, error_code, retry_reason, started_at
FROM attempts
WHERE attempt > 1 OR retryable
ORDER BY started_at DESC
LIMIT 100;`,
  },
  {
    question: "Which checks fail?",
    sql: `SELECT asset_key, check_name, severity, failed, passed, failed_message, last_at
FROM asset_checks
WHERE NOT last_passed
ORDER BY last_at DESC;`,
  },
  {
    question: "Which columns does a table have?",
    sql: `SELECT table_schema, table_name, column_name, data_type
FROM information_schema.columns
WHERE table_schema = 'main' AND table_name = 'tasks';`,
  },
];
