// Tests of what the page shows and offers when something has failed: node --test tests/ui
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { broken, cleanUp, goTo, launch, narrow, open, problemsOf, run, sees, serve, violations, wide } from "./harness.mjs";

let browser;
let server;
let page;

before(async () => {
  browser = await launch();
  server = await serve(broken());
  page = await open(browser, server.login);
  await page.waitForSelector("main h1");
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const quiet = (on = page) => assert.deepEqual(problemsOf(on), [], "the page reported errors");
const api = (path) => page.evaluate(async (path) => (await fetch(path)).json(), path);
const latest = async () => (await api("/v1/runs")).runs[0].run_id;

test("a run that no retry can cure proposes a new run, and says why", async () => {
  await goTo(page, `runs/${await latest()}`);
  await sees(page, "A retry would execute the same code again: fix the code");
  await sees(page, "servo run --failed-only");
  assert.equal(await page.getByRole("button", { name: "Retry", exact: true }).count(), 0);
  await page.keyboard.press("r");
  await page.getByRole("dialog", { name: "Start a run" }).waitFor();
  assert.equal(await page.getByLabel("Materialize").inputValue(), "failed");
  await page.keyboard.press("Escape");
  quiet();
});

test("a failed partition counts once, in strip, filter and numbers", async () => {
  await goTo(page, "assets/clean/batched");
  await sees(page, "3 partitions failed");
  const { status } = await api("/v1/assets/clean/batched");
  assert.deepEqual(status, { fresh: 0, stale: 0, missing: 1, failed: 3 });
  await page.getByRole("button", { name: "Failed", exact: true }).click();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 3);
  await page.getByRole("button", { name: "Missing", exact: true }).click();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await page.locator("canvas").hover({ position: { x: 5, y: 5 } });
  await sees(page, "2025-01-01: failed");
  await page.waitForFunction(() => [...document.querySelectorAll("main div")].some((e) => /^fresh\s+stale\s+missing\s+failed$/.test(e.innerText)));
  quiet();
});

test("a partition names the task of its batch, with its log and its checks", async () => {
  await goTo(page, "assets/clean/batched?partition=" + encodeURIComponent('{"date":"2025-01-02"}'));
  await page.getByRole("link", { name: /Failed task in run/ }).click();
  await sees(page, "Checks that did not pass");
  const [{ run_id }] = (await api("/v1/attention")).attention.filter((x) => x.subject === "clean/batched");
  await goTo(page, `runs/${run_id}?panel=log&task=${encodeURIComponent("clean/batched[date=2025-01-02]")}`);
  await page.waitForURL(/2025-01-01\.\.2025-01-03/);
  await sees(page, "check few failed");
  quiet();
});

test("the checks of an asset show the last result with its partition, and the failing rows", async () => {
  await goTo(page, "assets/clean/batched?tab=checks");
  await page.getByRole("cell", { name: /failed date=2025-01-01/ }).waitFor();
  await page.getByRole("button", { name: "Show failing rows of few" }).click();
  await page.getByRole("dialog").locator("[role=cell]", { hasText: "3" }).first().waitFor();
  await page.getByRole("dialog").getByRole("link", { name: "Open in SQL" }).click();
  await page.waitForURL("**/sql?q=*");
  assert.match(new URL(page.url()).searchParams.get("q"), /^FROM failing_rows."clean.batched.few"/);
  quiet();
});

test("an output in quarantine is looked at, approved and rejected", async () => {
  await goTo(page, "");
  await page.getByRole("link", { name: "Review clean/held" }).click();
  await sees(page, "In quarantine: 2 outputs wait for a decision");
  await page.getByRole("button", { name: "Show rows" }).click();
  await page.getByRole("dialog").locator("[role=cell]").first().waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Approve clean/held[date=2025-01-01]" }).click();
  await page.getByLabel("Reason").fill("looked at it");
  await page.getByRole("dialog").getByRole("button", { name: "Approve", exact: true }).click();
  await sees(page, "In quarantine: 1 output waits for a decision");
  await page.getByRole("button", { name: "Reject clean/held[date=2025-01-02]" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Reject", exact: true }).click();
  await page.waitForFunction(() => !document.body.innerText.includes("In quarantine"));
  assert.match(run(server.dir, ["query", "-o", "csv", "SELECT state, reason FROM quarantine ORDER BY state"]), /APPROVED,looked at it\nREJECTED,/);
  const [, made] = run(server.dir, ["query", "-o", "csv", "SELECT run_id FROM quarantine WHERE state = 'APPROVED'"]).split("\n");
  await goTo(page, `runs/${made}`);
  await sees(page, "The output was approved by ");
  await sees(page, ": looked at it");
  await sees(page, "The output was rejected by ");
  quiet();
});

for (const [theme, size] of [["light", wide], ["dark", narrow]]) {
  test(`the screens of failures are accessible and fit: ${theme}, ${size.width} px`, async () => {
    const one = await open(browser, run(server.dir, ["ui"]).trim(), { theme, size });
    await one.waitForSelector("main h1");
    const found = [];
    for (const screen of ["", "assets/clean/held?tab=checks", "assets/clean/batched", "assets/clean/batched?tab=checks", `runs/${await latest()}`]) {
      await goTo(one, screen);
      found.push(...(await violations(one)));
    }
    await goTo(one, "assets/clean/batched?tab=checks");
    await one.getByRole("button", { name: "Show failing rows of few" }).click();
    await one.getByRole("dialog").locator("[role=cell]").first().waitFor();
    found.push(...(await violations(one)));
    assert.deepEqual(found, []);
    quiet(one);
    await one.context().close();
  });
}

test("on a small screen, a selected task is on the screen, and numbers keep their headings", async () => {
  const one = await open(browser, run(server.dir, ["ui"]).trim(), { size: narrow });
  await one.waitForSelector("main h1");
  await goTo(one, `runs/${await latest()}`);
  const name = one.getByRole("button", { name: /mart\/wrong\[date=2025-01-01\]/ }).last();
  await name.click();
  const panel = one.getByRole("heading", { name: "mart/wrong[date=2025-01-01]" });
  await panel.waitFor();
  const { y } = await panel.boundingBox();
  assert.ok(y > 0 && y < narrow.height - 80, `the panel begins at ${y}`);
  await one.keyboard.press("Escape");
  await panel.waitFor({ state: "detached" });
  assert.ok(await name.evaluate((name) => name === document.activeElement), "the focus returns to a name that was tapped");
  await goTo(one, "assets/raw/days");
  const tab = await one.getByRole("tab", { name: "Code" }).boundingBox();
  assert.ok(tab.x + tab.width <= narrow.width, "the last tab is on the screen");
  const heading = await one.locator("td[data-label=Rows]").first().evaluate((e) => getComputedStyle(e, "::before").content);
  assert.match(heading, /Rows/);
  await one.context().close();
});
