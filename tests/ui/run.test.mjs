// Tests of the page of a run: node --test tests/ui/run.test.mjs
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cleanUp, goTo, lab, launch, open, problemsOf, sees, serve } from "./harness.mjs";

let browser;
let page;
let failed; // the id of a run with failed tasks

before(async () => {
  browser = await launch();
  const server = await serve(lab());
  page = await open(browser, server.login);
  await page.waitForSelector("main h1");
  const { runs } = await page.evaluate(async () => (await fetch("/v1/runs?state=FAILED")).json());
  failed = runs.find((r) => r.assets_total > 3).run_id;
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const quiet = (on = page) => assert.deepEqual(problemsOf(on), [], "the page reported errors");

// changed makes the page see another Gantt chart of the run until the test has ended.
const changed = async (t, edit) => {
  const url = `**/v1/runs/${failed}/gantt*`;
  await page.route(url, async (route) => {
    const response = await route.fetch();
    const gantt = await response.json();
    await route.fulfill({ response, json: { ...gantt, ...edit(gantt) } });
  });
  t.after(() => page.unroute(url));
};

// byAsset combines the rows of an asset, as the server does for a run with more than 2,000 tasks.
const byAsset = ({ rows }) => {
  const combined = new Map();
  for (const row of rows) {
    const key = row.key.replace(/\[.*/, "");
    const of = combined.get(key) ?? { ...row, key, tasks: 0, failed: 0, segments: [], error: "", error_code: "", attempt: 0, max_attempts: 0 };
    of.tasks += row.tasks;
    of.failed += row.failed;
    if (row.state === "FAILED") of.state = "FAILED";
    of.segments.push(...row.segments);
    combined.set(key, of);
  }
  const merged = [...combined.values()];
  for (const row of merged) {
    const [first, last] = [row.segments.map((s) => s.from).sort()[0], row.segments.map((s) => s.to).sort().at(-1)];
    row.segments = [{ phase: "SUCCEEDED", from: first, to: last, attempt: 0, tasks: 1389 }];
  }
  return { folded_by: "asset", rows: merged };
};

test("a row of many tasks counts once, and its failed tasks are named and opened", async (t) => {
  await changed(t, byAsset);
  await goTo(page, `runs/${failed}`);
  const most = /at most (\d+) assets? at once/;
  await page.getByText(most).waitFor();
  const [, n] = most.exec(await page.getByText(most).innerText());
  assert.ok(Number(n) >= 1 && Number(n) <= 6, `${n} assets at once`);
  await page.getByRole("button", { name: /^mart\/bad CHECK_FAILED: .*10 of 10 rows failed/ }).click();
  await page.waitForURL("**task=mart**");
  await sees(page, "Attempt 1 failed with CHECK_FAILED");
  await page.getByRole("button", { name: "Close the task" }).click();
  // The panel of a task whose row the chart does not have, as a link from the page of an asset opens it.
  await goTo(page, `runs/${failed}?task=${encodeURIComponent("raw/prices[market=us]")}`);
  await page.getByRole("heading", { name: "raw/prices[market=us]" }).waitFor();
  await page.getByRole("button", { name: /^raw\/orders 10 tasks/ }).click();
  await page.waitForURL("**/assets/raw/orders");
  quiet();
});

test("the chart says which rows it leaves out", async (t) => {
  await changed(t, (gantt) => ({ ...byAsset(gantt), rows_left_out: 8000 }));
  await goTo(page, `runs/${failed}?show=waiting`);
  await sees(page, "No row is waiting");
  await sees(page, "8,000 assets that need less attention are not shown");
  quiet();
});

test("a chart that was zoomed in shows another run as a whole", async () => {
  const { runs } = await page.evaluate(async () => (await fetch("/v1/runs")).json());
  const newer = runs[0].run_id; // the times of the older run are not in its chart
  const origin = page.locator("[class*=axis] span", { hasText: /^0$/ });
  await goTo(page, `runs/${failed}`);
  await origin.waitFor();
  await page.keyboard.press("Control+k");
  await page.keyboard.type(newer.slice(-6));
  await page.getByRole("option", { name: new RegExp(newer.slice(-6)) }).first().waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/runs/${newer}`);
  await origin.waitFor();
  for (let i = 0; i < 3; i++) await page.getByRole("button", { name: "Zoom in" }).click();
  await origin.waitFor({ state: "detached" });
  await page.goBack();
  await page.waitForURL(`**/runs/${failed}`);
  await page.getByRole("heading", { name: failed.slice(-6) }).waitFor();
  await origin.waitFor();
  await page.getByRole("button", { name: "Zoom in" }).click();
  quiet();
});

test("the table counts attempts of tasks, and tasks of assets", async (t) => {
  const cells = async (name) => {
    const row = page.getByRole("row").filter({ has: page.getByRole("button", { name, exact: true }) });
    return (await row.getByRole("cell").allInnerTexts()).map((text) => text.trim());
  };
  await goTo(page, `runs/${failed}?view=table&show=failed`);
  await page.getByRole("columnheader", { name: "Attempts" }).waitFor();
  assert.equal((await cells("mart/after"))[3], "", "a skipped task has no attempt");
  assert.equal((await cells("mart/bad"))[3], "1 of 3");
  await changed(t, byAsset);
  await goTo(page, `runs/${failed}?view=table`);
  await page.getByRole("columnheader", { name: "Tasks" }).waitFor();
  assert.deepEqual((await cells("raw/orders")).slice(1, 4).toSpliced(1, 1), ["succeeded", "10"]);
  assert.deepEqual((await cells("raw/prices")).slice(1, 4).toSpliced(1, 1), ["3 failed", "4"]);
  quiet();
});

test("the chart fills its frame when the window grows", async () => {
  const size = page.viewportSize();
  await page.setViewportSize({ width: 1280, height: 500 });
  await goTo(page, `runs/${failed}`);
  const heights = () =>
    page.evaluate(() => {
      const canvas = document.querySelector("[class*=scroll] canvas");
      return [canvas.clientHeight, canvas.closest("[class*=scroll]").clientHeight];
    });
  const [before] = await heights();
  await page.setViewportSize({ width: 1280, height: 1000 });
  await page.waitForFunction((before) => document.querySelector("[class*=scroll] canvas").closest("[class*=scroll]").clientHeight > before, before);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  const [canvas, frame] = await heights();
  assert.equal(canvas, frame);
  await page.setViewportSize(size);
  quiet();
});

test("only the first button of the mouse selects a task in the chart", async () => {
  await goTo(page, `runs/${failed}`);
  const chart = page.locator("[class*=scroll] canvas");
  await chart.scrollIntoViewIfNeeded();
  await chart.click({ button: "right", position: { x: 40, y: 40 } });
  assert.doesNotMatch(page.url(), /task=/);
  await chart.click({ position: { x: 40, y: 40 } });
  await page.waitForURL("**task=**");
  quiet();
});
