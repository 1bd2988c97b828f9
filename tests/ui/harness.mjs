// Runs `servo dev` on generated projects, and opens its page in Chromium.
import { spawn, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
const load = createRequire(join(root, "ui", "package.json"));
const { chromium } = load("playwright-core");
export const axeSource = readFileSync(load.resolve("axe-core/axe.min.js"), "utf8");
const servo = join(root, "bin", "servo");

const folders = [];
const processes = [];

export function cleanUp() {
  for (const p of processes) p.kill("SIGKILL");
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
}

function folder(name) {
  const made = mkdtempSync(join(tmpdir(), `servo-ui-${name}-`));
  folders.push(made);
  return made;
}

function write(dir, files) {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
}

// run executes a command of servo in a project. It throws unless the exit code is expected.
export function run(dir, args, codes = [0]) {
  const done = spawnSync(servo, ["-C", dir, ...args], { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
  if (!codes.includes(done.status)) throw new Error(`servo ${args.join(" ")} exited with ${done.status}:\n${done.stdout}\n${done.stderr}`);
  return done.stdout;
}

// weather is the weather example with some months of outputs, some of which are stale.
export function weather() {
  const dir = join(folder("weather"), "weather");
  cpSync(join(root, "examples", "weather"), dir, { recursive: true, filter: (name) => !name.includes(".servo") });
  run(dir, ["run", "--all", "-p", "date=2012-01-01..2012-06-30"]);
  run(dir, ["run", "clean/daily", "-p", "date=2012-08-01..2012-08-20"]);
  run(dir, ["partitions", "mark", "clean/daily", "-p", "date=2012-03-05..2012-03-20", "--stale", "--reason", "the sensor was recalibrated"], [0, 1, 2]);
  run(dir, ["run", "report/climate"], [0, 1]);
  return dir;
}

export const hostile = {
  html: '<img src=x onerror="window.hacked=1">',
  bidi: "\u202Etxet desrever\u202C \u2066isolated\u2069",
  long: "x".repeat(512),
};

const shell = (script) => `run:\n  command: [sh, -c, ${JSON.stringify(script)}]\n`;

// lab is a small project in which tasks fail, wait and retry. With evil, its names and texts contain HTML and scripts.
export function lab({ evil = false } = {}) {
  const text = (nasty, nice) => JSON.stringify(evil ? nasty : nice);
  const dir = join(folder("lab"), "lab");
  write(dir, {
    "servo.yaml": `name: lab
defaults: {timeout: 10m}
pools: {narrow: 1}
max_parallelism: 8
workers: {concurrency: 4, memory_limit: 512MB, threads: 1}
channels:
  log: {file: {path: alerts.jsonl}}
alerts:
  - {name: failures, on: [task_failed, check_failed, recovered], to: [log], group: 10m}
schedules:
  nightly:
    cron: "30 2 * * *"
    timezone: Europe/Paris
    run: {assets: [mart/sales], upstream: stale}
  hourly:
    cron: "0 * * * *"
    paused: true
    run: {assets: [raw/orders], partitions: latest}
`,
    "assets/raw/orders.sql": `/* servo
description: Orders of ten days.
owners: [sales@example.com]
tags: [raw]
partitions: {daily: {start: 2025-01-01, end: 2025-01-10}}
*/
SELECT getvariable('date') AS day, i AS id, i * 3 AS amount
FROM range(1000) AS t(i)
`,
    "assets/raw/prices.yaml": `description: ${text(hostile.html, "Prices of three markets.")}
owners: [${text(hostile.bidi, "sales@example.com")}]
tags: [raw]
retries: {max_attempts: 2, initial_delay: 1s}
partitions:
  market: {static: [eu, ${text("<b>us</b>", "us")}, ${text(hostile.bidi, "jp")}, ${text(hostile.long.slice(0, 256), "uk")}]}
${shell(`echo '${evil ? hostile.html : "reading prices"}'; printf '\\033[31mred\\033[0m and \\033[2Jcleared\\n'; case "$SERVO_PARTITION_MARKET" in eu) echo price >"$SERVO_OUTPUT/prices.csv"; echo 1 >> "$SERVO_OUTPUT/prices.csv";; *) echo 'error: the source answered ${evil ? "<script>window.hacked=1</script>" : "503 Service Unavailable"}' >&2; exit 1;; esac`)}`,
    "assets/raw/clicks.yaml": `description: Clicks of a web shop, read slowly.
pool: narrow
partitions:
  hour: {static: [h0, h1, h2, h3, h4, h5]}
${shell(`echo starting; for i in 1 2 3 4 5 6 7 8 9 10; do echo "batch $i of 10"; sleep \${SLOW:-0.02}; done; echo n > "$SERVO_OUTPUT/clicks.csv"; echo 1 >> "$SERVO_OUTPUT/clicks.csv"`)}`,
    ...(evil
      ? {
          "assets/raw/nasty.sql": `/* servo
description: ${text(`${hostile.html} ${hostile.long}`, "")}
owners: [${text(hostile.long, "")}]
tags: [nasty]
*/
SELECT '${hostile.html}' AS "${hostile.html.replaceAll('"', '""')}", '${hostile.bidi}' AS bidi, '${hostile.long}' AS long,
  chr(27) || '[2J' || chr(7) || '<script>window.hacked=1</script>' AS escape, {'a': ['${hostile.html}']} AS nested,
  9007199254740993 AS big
`,
        }
      : {}),
    "assets/clean/orders.sql": `/* servo
description: Orders without test orders.
partitions: {daily: {start: 2025-01-01, end: 2025-01-10}}
checks:
  - unique: [id]
  - range: {column: amount, min: 0}
*/
SELECT day, id, amount FROM raw.orders WHERE id > 10
`,
    "assets/mart/sales.sql": `/* servo
description: Sales of each day.
tags: [mart]
*/
SELECT day, count(*) AS orders, sum(amount) AS amount
FROM clean.orders
GROUP BY ALL
`,
    "assets/mart/bad.sql": `/* servo
description: Its check always fails.
checks:
  - range: {column: orders, max: 0}
*/
SELECT day, orders FROM mart.sales
`,
    "assets/mart/after.sql": `-- Depends on an asset that fails.
SELECT * FROM mart.bad
`,
    "assets/mart/slow.yaml": `description: Runs until it is cancelled.
${shell('i=0; while true; do i=$((i+1)); echo "line $i"; sleep 0.2; done')}`,
  });
  run(dir, ["validate"]);
  run(dir, ["run", "raw/orders", "clean/orders", "mart/sales", "mart/bad", "mart/after", "raw/prices", "-p", "all"], [1]);
  if (evil) run(dir, ["run", "raw/nasty"]);
  run(dir, ["run", "raw/clicks", "-p", "hour=h0", "-p", "hour=h1", "-p", "hour=h2"], [0, 1]);
  run(dir, ["run", "raw/orders", "-p", "date=2025-01-03..2025-01-04"]);
  return dir;
}

// serve starts `servo dev`, and returns the address that logs a browser in. program is the build of servo to start.
export async function serve(dir, env = {}, program = servo) {
  const child = spawn(program, ["-C", dir, "dev", "--listen", "127.0.0.1:0"], { env: { ...process.env, NO_COLOR: "1", ...env } });
  processes.push(child);
  let said = "";
  const login = await new Promise((resolve, reject) => {
    const hear = (chunk) => {
      said += chunk;
      const found = /(http:\/\/127\.0\.0\.1:\d+\/login\?code=\S+)/.exec(said);
      if (found) resolve(found[1]);
    };
    child.stdout.on("data", hear);
    child.stderr.on("data", hear);
    child.on("exit", (code) => reject(new Error(`servo dev exited with ${code}:\n${said}`)));
  });
  return {
    login,
    origin: new URL(login).origin,
    dir,
    said: () => said,
    stop: () =>
      new Promise((resolve) => {
        child.on("exit", resolve);
        child.kill("SIGINT");
      }),
  };
}

const browsers = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? browsers.find(existsSync);
  if (!executablePath) throw new Error("Chromium is missing: install it (apt-get install chromium fonts-dejavu), or name it in CHROMIUM");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"] });
}

export const wide = { width: 1280, height: 860 };
export const narrow = { width: 390, height: 844 };

// open returns a page that is logged in. The page's list `problems` collects its errors.
export async function open(browser, login, { theme = "light", size = wide } = {}) {
  const context = await browser.newContext({ viewport: size, colorScheme: theme, timezoneId: "Europe/Paris", reducedMotion: "reduce" });
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of (401|404|409|400)/.test(message.text())) page.problems.push(message.text());
  });
  await page.goto(login);
  return page;
}

// base is the address of the workspace of a page that is logged in.
export const base = (page) => page.url().split("/").slice(0, 6).join("/");

// goTo opens a screen of the workspace, and waits until it shows data.
export async function goTo(page, path) {
  await page.goto(`${base(page)}/${path}`);
  await page.waitForSelector("main h1");
  await page.waitForFunction(() => !document.querySelector("[aria-busy=true]"));
}

// sees waits until the page shows a text.
export async function sees(page, text) {
  try {
    await page.waitForFunction((text) => document.querySelector("body").innerText.includes(text), text);
  } catch (cause) {
    const shown = await page.evaluate(() => document.querySelector("body").innerText);
    throw new Error(`The page does not show ${JSON.stringify(text)}. It shows:\n${shown}`, { cause });
  }
}

// problemsOf returns the errors that a page has reported so far, and forgets them.
export const problemsOf = (page) => page.problems.splice(0);

// violations returns what is wrong on a page: violations of accessibility, content that does not fit, and names that
// were executed as scripts.
export async function violations(page) {
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.map((v) => `${v.id}: ${v.nodes.slice(0, 2).map((n) => n.html).join(" ")}`);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  if (overflow > 0) found.push(`${overflow} px too wide`);
  if (await page.evaluate(() => window.hacked)) found.push("a name was executed");
  return found.map((text) => `${new URL(page.url()).pathname}: ${text}`);
}

// manyAssets is a project of some hundred assets in several namespaces. Each asset reads some of the assets before it,
// which the function reads chooses.
export function manyAssets(count, namespaces = 8, reads = (i) => [1, 7, 40].map((d) => i - d - (i % 3))) {
  const dir = join(folder("many"), "many");
  const key = (i) => [`n${i % namespaces}`, `a${String(i).padStart(4, "0")}`];
  const files = { "servo.yaml": "name: many\n" };
  for (let i = 0; i < count; i++) {
    const from = [...new Set(reads(i).filter((j) => j >= 0 && j < i))].map((j) => `SELECT * FROM ${key(j).join(".")}`).join(" UNION ALL ");
    files[`assets/${key(i).join("/")}.sql`] = `${from || "SELECT 1 AS x"}\n`;
  }
  write(dir, files);
  return dir;
}

// broken is a project in which a check blocks outputs, a batch fails, and a query is wrong.
export function broken() {
  const dir = join(folder("broken"), "broken");
  const days = "partitions: {daily: {start: 2025-01-01, end: 2025-01-04}}";
  write(dir, {
    "servo.yaml": "name: broken\n",
    "assets/raw/days.sql": `/* servo
${days}
*/
SELECT getvariable('date') AS day, i AS id FROM range(3) AS t(i)
`,
    "assets/clean/held.sql": `/* servo
${days}
quarantine: {expires: 7d}
checks: [{name: small, range: {column: id, max: 1}}]
*/
SELECT day, id FROM raw.days
`,
    "assets/clean/batched.sql": `/* servo
${days}
batch: all
checks: [{name: few, range: {column: n, max: 2}}]
*/
SELECT date, dayofmonth(date) AS n FROM (SELECT unnest(getvariable('date_keys')) AS date)
`,
    "assets/mart/wrong.sql": `/* servo
${days}
*/
SELECT day, error('the query is wrong') AS x FROM raw.days
`,
  });
  run(dir, ["validate"]);
  run(dir, ["run", "raw/days", "-p", "2025-01-01..2025-01-02"]);
  run(dir, ["run", "clean/held", "-p", "2025-01-01..2025-01-02"], [1]);
  run(dir, ["run", "clean/batched", "-p", "2025-01-01..2025-01-03"], [1]);
  run(dir, ["run", "mart/wrong", "-p", "2025-01-01"], [1]);
  return dir;
}
