package project

// settingsTemplate is docs/reference/settings.md without the tables and examples, which are generated from the
// schema.
const settingsTemplate = `# Settings of a project

<!-- Written by make reference from the tables in pkg/project. Edit those. -->

A project is a folder with a ` + "`servo.yaml`" + ` and asset files below ` + "`assets/`" + `. This page lists their fields.
[Assets and tasks](assets.md) says what they do. ` + "`servo validate`" + ` reports every problem with file, line and column.

## Editors

One JSON Schema describes all files: [servo.schema.json](servo.schema.json), which ` + "`servo schema`" + ` prints. Editors with
the YAML language server complete and check a file whose first line names the schema. ` + "`servo init`" + ` writes the schema,
and this line in ` + "`servo.yaml`" + `:

` + "```yaml" + `
# yaml-language-server: $schema=servo.schema.json#/definitions/project
` + "```" + `

Files ` + "`assets/NAMESPACE/NAME.yaml`" + ` begin with this line:

` + "```yaml" + `
# yaml-language-server: $schema=../../servo.schema.json#/definitions/assets
` + "```" + `

The header of an SQL file has the fields of the definition ` + "`query`" + `. Editors do not check YAML inside SQL;
` + "`servo validate`" + ` does. After an upgrade, replace the file: ` + "`servo schema >servo.schema.json`" + `.

The schema accepts every valid file. ` + "`servo validate`" + ` also finds what a schema cannot express: unknown assets and pools,
cycles, durations out of range, and errors in queries.

## Values

{types}

Unknown and duplicate fields are errors, and so are fields without a value. Aliases work; merge keys (` + "`<<`" + `) do not. A
file has one document and at most 1 MiB.

## servo.yaml

All fields are optional; an empty file is a project.

{project}

An example with all fields:

` + "```yaml" + `
{servo.yaml}
` + "```" + `

### environments

All fields of the file except ` + "`name`" + ` and ` + "`environments`" + ` may differ in an environment. A field of an environment
replaces the field of the file; mappings, such as ` + "`pools`" + ` and ` + "`vars`" + `, are merged field by field. If neither the
environment nor the file sets a workspace, the name of the environment is the workspace. ` + "`servo env list`" + ` shows the
environments.

### workers

{workers}

### sources

Data outside of Servo that queries read. [Read external data in SQL](../howto/read-external-data.md) shows how:

{sources}

#### extensions

{extensions}

#### httpfs

{httpfs}

A secret has a name and these fields. The types s3 and gcs need the id and the secret of an access key, and the type
http needs a token and a scope:

{httpfs secret}

#### sqlite

{sqlite}

### publish

The outputs of the chosen assets are kept up to date at these [places](assets.md#published-outputs). ` + "`publish`" + ` needs
` + "`folder`, `duckdb`" + `, or both. It is ignored if the store is a bucket:

{publish}

### pricing

Prices in dollars, with at most 9 decimals. Estimates of ` + "`servo plan`, `servo run --dry-run`" + ` and
` + "`servo backfill create`" + ` multiply them by the measurements of earlier tasks. ` + "`cpu_second`" + ` counts the CPU time of
commands and the time that DuckDB's threads spend on the operators of queries. It does not include the time in which
DuckDB plans a query, for example to detect the format of a CSV file. If the file is small, planning takes longer than
the query itself. ` + "`gb_second`" + ` counts the memory that workers reserve: ` + "`resources.memory`" + `, or the default share of a
task. A price that is absent is 0:

{pricing}

### channels

A channel is a place to which alerts are sent. Each channel has a name and one kind. [Alert on
Slack](../howto/alert-on-slack.md) sets one up. Only the hosts that channels name are called, and redirects are not
followed:

{channels}

#### webhook

A message is a CloudEvent 1.0 in structured mode, with the type ` + "`dev.servo.alert.CAUSE.v1`" + ` and the notification id as
` + "`id`" + ` and as the header ` + "`Idempotency-Key`" + `. Drop messages whose id you know: a message may arrive twice. With a
secret, the header ` + "`Servo-Signature: t=SECONDS,v1=HEX`" + ` signs it: HEX is the HMAC-SHA256 of the seconds, a dot and
the body. Reject messages whose SECONDS differ from the current time by more than five minutes:

{webhook}

#### slack

{slack}

#### smtp

{smtp}

#### pubsub

The data is a CloudEvent, as for a webhook. The dispatcher on Google Cloud publishes it:

{pubsub}

#### file

Each line is a CloudEvent, as for a webhook:

{file}

### alerts

A rule reports transitions to channels:

{alerts}

| cause | subject | reported when | over when |
| --- | --- | --- | --- |
| ` + "`task_failed`" + ` | the asset | a task has failed and is not retried | its failed partitions succeed |
| ` + "`check_failed`" + ` | the asset | a check of severity CRITICAL or ERROR has failed | the partition passes the check |
| ` + "`quarantined`" + ` | the asset | an output waits for a decision | an output of the partition is published |
| ` + "`run_failed`" + ` | the schedule, the backfill, or the rule | a run has failed or timed out, or a tick could not be planned | a run of the schedule succeeds |
| ` + "`schedule_paused`" + ` | the schedule | failures have paused it | it is resumed |
| ` + "`schedule_blocked`" + ` | the schedule | the first tick after a success is skipped or dropped, or the next ticks cannot be computed | a run of the schedule succeeds; the next ticks are computed |
| ` + "`backfill_paused`" + ` | the backfill | failures or a deployment have paused it | it is resumed, retried or cancelled, or ends |
| ` + "`deploy`" + ` | the rule | ` + "`servo deploy` or `servo rollback`" + ` has deployed a release | |
| ` + "`deadline_missed`" + ` | the asset | a partition of the period is missing or stale at its [deadline](#deadline) | the partition has a newer output |
| ` + "`freshness_missed`" + ` | the asset | its newest output is older than [freshness](#freshness) allows | it has a newer output |
| ` + "`sla_missed`" + ` | the asset, or the schedule | a task or run takes longer than its [sla](#sla) | the task, or a run of the schedule, succeeds |
| ` + "`recovered`" + ` | the subject of the earlier report | a reported problem is over | |

The first alert of a rule about a subject and a cause is sent immediately. Further alerts within the time ` + "`group`" + ` are
counted in one message. It is sent at the end of this time, which then begins again. A channel gets at most 20 messages
an hour. One digest at the end of the hour counts the further messages. Servo tries to send a message up to five times
within a day; then the message is UNDELIVERABLE, and ` + "`servo status`" + ` shows it. Messages older than a day are not sent.

### defaults

Values of {defaults} for assets that do not set these
fields. If an asset sets some fields of ` + "`retries`" + ` or ` + "`keep`" + `, the defaults apply to the other fields. ` + "`defaults.keep`" + `
also applies to assets that were removed from the project, and ` + "`defaults: {keep: all}`" + ` also keeps all logs.

## Asset files

An SQL file is one query; its fields are in a comment at its start. A YAML file is one command, or a list of them under
` + "`assets`" + `, each with its key. All fields are optional, except ` + "`run`" + ` for a command and ` + "`asset`" + ` in a list.

{asset}

Commands also have

{command}

A query:

` + "```sql" + `
{assets/report/rain.sql}
` + "```" + `

A command:

` + "```yaml" + `
{assets/report/chart.yaml}
` + "```" + `

Two commands in one file:

` + "```yaml" + `
assets:
  - asset: report/chart
    run: {command: [python3, scripts/chart.py]}
  - asset: report/letter
    deps: [report/chart]
    run: {command: [python3, scripts/letter.py]}
` + "```" + `

### partitions

` + "`partitions: {daily: …}`" + ` makes one partition for each day. [Partitions](partitions.md) has examples of all
kinds. ` + "`hourly`, `weekly`, `monthly` and `yearly`" + ` have the same fields. For
` + "`hourly` and `every`, `start` and `end`" + ` are a day or a local time. For ` + "`weekly`" + ` they are the first day of a week,
for ` + "`monthly`" + ` a month, and for ` + "`yearly`" + ` a year:

{daily}

` + "`weekly`" + ` also has ` + "`starts`" + `, the first day of a week (default ` + "`monday`" + `). ` + "`every`" + ` also has ` + "`period`" + `, a
divisor of one hour such as ` + "`15m`" + `.

Any other name is the name of a dimension, with its kind: ` + "`partitions: {region: {static: [eu, us]}}`" + `. An asset has one
to four dimensions, at most one of them of time.

### deps

An item is the key of an asset, or a mapping. [Partitions](partitions.md#what-a-task-reads) lists the values of ` + "`map`" + `.

{deps}

### run

{run}

### retries

{retries}

### columns

` + "`columns: {city: VARCHAR, rain: {type: DOUBLE, not_null: true}}`" + ` is short for two
[checks](checks.md): one of kind ` + "`schema`" + ` with the name ` + "`columns`" + `, which forbids other columns, and one of kind
` + "`not_null`" + ` with the name ` + "`columns_not_null`" + `. Each column is a type in SQL, or a mapping:

{column}

### checks

A list of [checks](checks.md). Each is a mapping with exactly one kind:

{check}

{kinds}

### quarantine

` + "`quarantine: {expires: 7d}`" + ` keeps an output that a critical check of the phase ` + "`post`" + ` has blocked, until somebody
[publishes or rejects it](../howto/quarantine-bad-data.md):

{quarantine}

### deadline

The deadline of a period is met if all its partitions are materialized and fresh. Servo checks the deadline when it is
due, even while all workers are down. If the deadline is missed, Servo reports the cause ` + "`deadline_missed`" + `.
` + "`servo deadlines`" + ` lists the next deadlines, and the deadlines that are at risk:

{deadline}

### freshness

The age is measured from the newest output of any partition:

{freshness}

### sla

{sla}

### resources

A task of the asset may use these resources instead of the [default share](assets.md#resources) of its worker:

{resources}

### batch

A number, ` + "`all`" + `, or a mapping. [Batches](partitions.md#batches) describes what a query with a batch may do.

{batch}

### publish of an asset

` + "`true`, `false`" + `, or a mapping. [Published outputs](assets.md#published-outputs) describes the places.

{publish asset}

### keep

` + "`all`" + `, or a mapping. A superseded version is kept while both conditions hold:

{keep}

## Schedules

A schedule runs assets at the ticks of a cron expression or of an interval. ` + "`schedules`" + ` of ` + "`servo.yaml`" + `, and every YAML
file below ` + "`schedules/`" + `, are mappings from names to schedules. A schedule that differs between environments belongs
in ` + "`servo.yaml`" + `. A problem in a schedule stops every run and deployment, because a release without the schedule
would remove it.

` + "```yaml" + `
# schedules/nightly.yaml
nightly:
  cron: "30 2 * * 1-5"
  timezone: Europe/Paris
  run: {assets: [clean/daily, "tag:gold"], partitions: {date: latest}}
  catch_up: {policy: latest, window: 24h}
  overlap: buffer_one
` + "```" + `

{schedule}

A schedule has either ` + "`cron`" + ` or ` + "`every`" + `. [` + "`servo schedule next`" + `](cli.md#schedule) describes cron expressions, prints
the ticks of one, and explains them.

Editors use the definition ` + "`schedules`" + `: the first line of ` + "`schedules/NAME.yaml`" + ` is
` + "`# yaml-language-server: $schema=../servo.schema.json#/definitions/schedules`" + `.

### sla of a schedule

{schedule sla}

### run of a schedule

{tick}

### dst

{dst}

### catch_up

{catch_up}

## Test files

YAML files below ` + "`tests/`" + ` are unit tests of queries, which ` + "[`servo test`](cli.md#test)" + ` executes.
[Unit-test a query](../howto/unit-test-a-query.md) introduces them. A test has these fields:

{tests}

Editors use the definition ` + "`tests`" + `: the first line of ` + "`tests/NAME.yaml`" + ` is
` + "`# yaml-language-server: $schema=../servo.schema.json#/definitions/tests`" + `.

### given

` + "`given`" + ` names every asset that the query reads, as ` + "`raw.weather`" + ` or ` + "`raw/weather`" + `. Its value is one of

| | |
| --- | --- |
| ` + "`[{city: Oslo, rain: 1.5}]`" + ` | rows. ` + "`[]`" + `: no rows |
| ` + "`{csv: tests/weather.csv}`" + ` | the rows of a CSV file with a header; the path is relative to the project. An empty field is NULL |
| ` + "`{sql: SELECT 'Oslo' AS city}`" + ` | the rows of a query, which can read files of the data folders |

Columns that are not given are NULL. The columns of a query's output and their types are known from the query. The
columns of a command's output are not: they have the types of the given values (64-bit integers, DOUBLE, BOOLEAN, DATE,
TIMESTAMP or VARCHAR). If the tested query reads other columns of such an asset, these columns are NULL, and
DuckDB chooses their types.

A value that its column cannot hold without a change is an error, in given and in expected rows: 1.5 in an INTEGER
column or in a list of integers, a time of day in a DATE column, an offset in a TIMESTAMP column, a struct with other
fields than those of the column. A ` + "`TIMESTAMP WITH TIME ZONE`" + ` without an offset is in UTC. In a CSV file, a list is
` + "`[1, 2]`" + ` and a struct ` + "`{a: 1}`" + `.

A test does not filter the given rows by partition: give only rows that a run would read.

### expect

{expect}

` + "`rows`" + ` compares only the columns that the rows name; every row names the same columns. If equal rows occur more than
once, their number must match. Values are compared exactly, in the type that the column has in a run. Only columns of
the types DOUBLE and FLOAT have a tolerance: a billionth of the larger value, so nothing but 0 equals 0. ` + "`rows: []`" + `
means that the query returns no rows.

A test file has at most 1 MiB, and each table of a test at most 10,000 rows. A test cannot execute commands, and cannot
execute [some checks](../howto/unit-test-a-query.md).
`
