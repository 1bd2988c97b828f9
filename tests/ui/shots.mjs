// Writes a picture of each screen: node tests/ui/shots.mjs [FOLDER [SCREEN]]. Without a folder, it writes the
// pictures that the documentation shows.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { base, cleanUp, lab, launch, narrow, open, root, serve, weather, wide } from "./harness.mjs";

const target = process.argv[2] ?? join(root, "docs", "ui");
mkdirSync(target, { recursive: true });

const only = process.argv[3];
const documented = ["overview", "overview-dark", "run-failed", "run-live", "assets", "asset", "run-narrow", "run-failed-narrow", "sql", "graph", "data"];
const wanted = (name) => (process.argv[2] ? !only || name.startsWith(only) : documented.includes(name));

const monthly = `-- How warm were the months?
SELECT strftime(date, '%Y-%m') AS month, city, count(*) AS days,
  round(avg(temp_mean_c), 1) AS mean_c, max(temp_max_c) AS warmest_c,
  count(*) FILTER (frost) AS days_of_frost
FROM clean.daily
GROUP BY ALL
ORDER BY mean_c DESC`;

const showGraph = (page) => page.locator("[id^='node ']").first().waitFor();

const showTasks = (page) => page.getByRole("heading", { name: "Tasks" }).evaluate((heading) => window.scrollTo(0, heading.offsetTop - 80));

async function showResult(page) {
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("[role=cell]").first().waitFor();
  await page.getByText("clean.daily").first().waitFor();
}

async function main() {
  const browser = await launch();
  const server = await serve(lab(), { SLOW: "1" });
  const climate = await serve(weather());
  const login = async (s, options) => {
    const answer = await fetch(`${s.origin}/v1/logins`, { method: "POST", headers: headers(s), body: "{}" });
    return open(browser, (await answer.json()).url, options);
  };
  const first = await login(server);
  const api = async (path, body) =>
    first.evaluate(
      async ([path, body]) =>
        (
          await fetch(path, body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {})
        ).json(),
      [path, body],
    );
  const runs = (await api("/v1/runs")).runs;
  const failed = runs.find((r) => r.state === "FAILED");
  const live = await api("/v1/runs", { assets: ["raw/clicks", "mart/slow"], partitions: ["hour=h3", "hour=h4", "hour=h5"] }).catch(() => undefined);
  const big = await login(climate);
  const climateRuns = (await big.evaluate(async () => (await fetch("/v1/runs")).json())).runs;
  const year = climateRuns.reduce((a, b) => (a.tasks_total > b.tasks_total ? a : b));

  const screens = [
    ["overview", server, ""],
    ["runs", server, "runs"],
    ["run", server, `runs/${failed.run_id}`, showTasks],
    ["run-failed", server, `runs/${failed.run_id}?task=mart%2Fbad`],
    ["run-live", server, live?.run_id ? `runs/${live.run_id}?task=mart%2Fslow&panel=log` : undefined],
    ["run-large", climate, `runs/${year.run_id}`],
    ["run-table", server, `runs/${failed.run_id}?view=table`],
    ["assets", climate, "assets"],
    ["asset", climate, "assets/clean/daily?partition=%7B%22date%22%3A%222012-03-06%22%7D"],
    ["asset-code", climate, "assets/analytics/monthly?tab=code"],
    ["asset-grid", server, "assets/raw/prices"],
    ["schedules", server, "schedules?schedule=nightly"],
    ["backfills", server, "backfills"],
    ["graph", server, "assets?view=graph", showGraph],
    ["graph-groups", server, "assets?view=graph&level=groups", showGraph],
    ["lineage", climate, "assets/analytics/monthly?tab=lineage", showGraph],
    ["data", climate, "assets/clean/daily?tab=data", (page) => page.locator("[role=cell]").first().waitFor()],
    ["sql", climate, `sql?${new URLSearchParams({ q: monthly })}`, showResult],
  ];
  for (const [theme, size, suffix] of [
    ["light", wide, ""],
    ["dark", wide, "-dark"],
    ["light", narrow, "-narrow"],
    ["dark", narrow, "-narrow-dark"],
  ]) {
    const pages = new Map();
    for (const [name, s, path, prepare] of screens) {
      if (path === undefined || !wanted(`${name}${suffix}`)) continue;
      if (!pages.has(s)) pages.set(s, await login(s, { theme, size }));
      const page = pages.get(s);
      await page.goto(`${base(page)}/${path}`);
      await page.waitForSelector("main h1");
      await page.waitForFunction(() => !document.querySelector("[aria-busy=true]") && !document.querySelector("main")?.textContent?.includes("Loading"));
      await prepare?.(page);
      await page.waitForTimeout(400);
      await page.screenshot({ path: join(target, `${name}${suffix}.png`) });
      for (const problem of page.problems.splice(0)) console.error(`${name}${suffix}: ${problem}`);
    }
    if (wanted("palette") && suffix === "") {
      const page = pages.get(server);
      await page.keyboard.press("Control+k");
      await page.keyboard.type("cl");
      await page.screenshot({ path: join(target, "palette.png") });
    }
    for (const page of pages.values()) await page.context().close();
  }
  await browser.close();
}

function headers(s) {
  const { token } = JSON.parse(readFileSync(join(s.dir, ".servo", "owner.json"), "utf8"));
  return { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
}

try {
  await main();
} finally {
  cleanUp();
}
