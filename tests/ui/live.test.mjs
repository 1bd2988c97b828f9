// Tests of how the page follows changes: node --test tests/ui/live.test.mjs
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { cleanUp, goTo, lab, launch, open, problemsOf, run, sees, serve } from "./harness.mjs";

let browser;
let server;
let page;

before(async () => {
  browser = await launch();
  server = await serve(lab());
  page = await open(browser, server.login);
  await page.waitForSelector("main h1");
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const quiet = (on = page) => assert.deepEqual(problemsOf(on), [], "the page reported errors");
const api = (path) => page.evaluate(async (path) => (await fetch(path)).json(), path);

test("a page asks again for what the server could not answer", async () => {
  await goTo(page, "assets/raw/orders");
  await sees(page, "10 of 10 partitions fresh");
  let refused = 0;
  await page.route("**/v1/assets/**", (route) => {
    refused++;
    return route.fulfill({ status: 503, json: { title: "Unavailable", detail: "the server is starting" } });
  });
  run(server.dir, ["partitions", "mark", "raw/orders", "-p", "date=2025-01-06", "--stale", "--reason", "late orders"], [0, 1, 2]);
  const { revision } = await api("/v1/runs");
  await sees(page, `revision ${revision}`);
  while (refused < 2) await page.waitForResponse((answer) => answer.status() === 503);
  await page.unroute("**/v1/assets/**");
  await sees(page, "9 of 10 partitions fresh, 1 stale.");
  await page.getByRole("link", { name: "date=2025-01-06" }).waitFor();
  await page.waitForFunction(() => !document.querySelector("main [role=alert]"));
  page.problems.splice(0); // the browser logs the 503
  quiet();
});

test("what a strip says about the partition under the pointer follows changes", async () => {
  await goTo(page, "assets/raw/orders");
  await page.locator("canvas").hover({ position: { x: 5, y: 5 } });
  await sees(page, "2025-01-01: fresh");
  run(server.dir, ["partitions", "mark", "raw/orders", "-p", "date=2025-01-01", "--stale", "--reason", "late orders"], [0, 1, 2]);
  await sees(page, "2025-01-01: stale");
  quiet();
});

for (const [hours, of] of [[1, "ahead"], [-1, "behind"]]) {
  test(`a browser whose clock is ${of} shows the times of the server`, async () => {
    const one = await open(browser, run(server.dir, ["ui"]).trim());
    await one.waitForSelector("main h1");
    await one.clock.setSystemTime(Date.now() + hours * 3_600_000);
    await goTo(one, "runs");
    const made = one.locator("main time").first();
    await one.waitForFunction(() => /^(just now|\d+ (s|min) ago)$/.test(document.querySelector("main time").innerText));
    assert.doesNotMatch(await made.innerText(), /^([3-9]\d|\d{3,}) min/);
    await goTo(one, "sql");
    await one.getByLabel("state of").selectOption("10");
    const typed = Date.parse(await one.getByLabel("Revision or time").inputValue());
    assert.ok(Math.abs(Date.now() - 600_000 - typed) < 60_000, new Date(typed).toISOString());
    quiet(one);
    await one.context().close();
  });
}

test("tabs share the settings", async () => {
  const other = await page.context().newPage();
  await other.goto(page.url());
  await other.waitForSelector("main h1");
  await goTo(page, "runs");
  await goTo(other, "runs");
  await page.bringToFront();
  await page.keyboard.press("z"); // times in UTC
  await other.bringToFront();
  await other.waitForFunction(() => !document.querySelector("main time").title.includes("·"));
  await other.keyboard.press("d");
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
  assert.deepEqual(await page.evaluate(() => JSON.parse(localStorage.getItem("servo.settings"))), { theme: "dark", utc: true });
  await other.close();
  quiet();
});

test("a run whose start got no answer is started once", async () => {
  const runs = async () => (await api("/v1/runs?page_size=1000")).runs.length;
  const before = await runs();
  await goTo(page, "assets/raw/clicks");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "Start a run" });
  await dialog.getByLabel("Materialize").selectOption("");
  await dialog.getByRole("textbox", { name: /^Partitions/ }).fill("hour=h0");
  await page.route("**/v1/runs", async (route) => {
    await route.fetch(); // the server starts the run, and its answer is lost
    await route.abort();
  }, { times: 1 });
  await dialog.getByRole("button", { name: "Start the run" }).click();
  await dialog.getByRole("alert").waitFor();
  await dialog.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/runs\/\w{26}/);
  await page.waitForFunction(() => /^succeeded/.test(document.querySelector("main").innerText));
  assert.equal(await runs(), before + 1);
  // The same request in another dialog is another run.
  await goTo(page, "assets/raw/clicks");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await dialog.getByLabel("Materialize").selectOption("");
  await dialog.getByRole("textbox", { name: /^Partitions/ }).fill("hour=h0");
  await dialog.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/runs\/\w{26}/);
  assert.equal(await runs(), before + 2);
  page.problems.splice(0); // the browser logs the lost answer
});

test("the page of an earlier build loads the page of the newer one", async () => {
  // The server has another build: a file that this page names is gone, and the page names another script.
  const newer = async (gone) => {
    await page.route(gone, (route) => route.fulfill({ status: 404, body: "" }));
    await page.route("**/w/default/default/**", async (route) => {
      if (route.request().isNavigationRequest()) {
        await page.unroute(gone); // the newer page names files that exist
        return route.continue();
      }
      const response = await route.fetch();
      return route.fulfill({ response, body: (await response.text()).replaceAll("/assets/index-", "/assets/index-newer-") });
    });
  };
  for (const gone of ["**/assets/assetgraph-*.js", "**/assets/assetgraph-*.css", "**/assets/worker-*.js"]) {
    await goTo(page, "assets");
    await newer(gone);
    await page.keyboard.press("v");
    await page.locator("[id='node mart/sales']").waitFor();
    await page.unroute("**/w/default/default/**");
  }
  page.problems.splice(0); // the browser logs the 404
});

test("a graph whose program is gone says so", async () => {
  await page.route("**/assets/worker-*.js", (route) => route.fulfill({ status: 404, body: "" }));
  await goTo(page, "assets?view=graph").catch(() => {});
  await sees(page, "The graph could not be drawn");
  await page.unroute("**/assets/worker-*.js");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.locator("[id='node mart/sales']").waitFor();
  page.problems.splice(0);
});

test("a statement that has not run outlives a reload", async () => {
  await goTo(page, "sql?q=SELECT+1");
  const editor = page.getByRole("textbox", { name: "SQL" });
  await editor.getByText("SELECT 1").waitFor();
  await editor.focus();
  await page.keyboard.press("Control+End");
  await page.keyboard.insertText(" + 41 AS answer");
  await page.reload();
  await editor.getByText("answer").waitFor();
  assert.equal(await editor.innerText(), "SELECT 1 + 41 AS answer");
  await goTo(page, "sql?q=SELECT+2");
  await editor.getByText("SELECT 2").waitFor(); // another link
  assert.equal(await editor.innerText(), "SELECT 2");
  quiet();
});

test("an asset that has been deleted is not shown as if it existed", async () => {
  await goTo(page, "assets/raw/clicks?tab=lineage");
  await page.locator("[id='node raw/clicks']").waitFor();
  rmSync(join(server.dir, "assets/raw/clicks.yaml"));
  while ((await page.evaluate(async () => (await fetch("/v1/assets/raw/clicks")).status)) !== 404); // the server reloads the project
  run(server.dir, ["partitions", "mark", "raw/orders", "-p", "date=2025-01-09", "--stale", "--reason", "late orders"], [0, 1, 2]);
  await sees(page, "asset raw/clicks: not found");
  assert.equal(await page.getByRole("button", { name: "Run", exact: true }).count(), 0);
  page.problems.splice(0); // the browser logs the 404
});
