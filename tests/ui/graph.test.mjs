// Tests of the graph of assets and of the tabs that show data and lineage: node --test tests/ui/graph.test.mjs
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cleanUp, goTo, hostile, lab, launch, manyAssets, narrow, open, problemsOf, sees, serve } from "./harness.mjs";

let browser;
let page;

before(async () => {
  browser = await launch();
  const server = await serve(lab({ evil: true }));
  page = await open(browser, server.login);
  await page.waitForSelector("main h1");
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const quiet = (on = page) => assert.deepEqual(problemsOf(on), [], "the page reported errors");
const node = (name, on = page) => on.getByRole("link", { name });
const focused = () => page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? "");

test("the keyboard leads through the graph: from what failed to what it blocks and what it reads", async () => {
  await goTo(page, "assets");
  await page.keyboard.press("v");
  await page.waitForURL("**view=graph");
  await node(/^mart\/ bad failed, reads 1, read by 1$/).waitFor();
  await node(/^mart\/ bad /).focus();
  const tip = () => page.locator("main div[aria-hidden=true]", { hasText: "mart/bad" });
  await tip().waitFor(); // the whole name of the node with the focus, at any scale
  await page.keyboard.press("ArrowRight");
  assert.match(await focused(), /^mart\/ after missing/);
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowLeft");
  assert.match(await focused(), /^mart\/ sales /);
  await page.keyboard.press("f");
  await page.waitForURL("**focus=mart**");
  await sees(page, "Around mart/sales");
  await page.waitForFunction(() => document.querySelectorAll("li > a[id^='node ']").length === 3);
  await page.getByRole("button", { name: "Upstream" }).click();
  await page.getByRole("button", { name: "All", exact: true }).last().click();
  await page.waitForFunction(() => [...document.querySelectorAll("li > a[id^='node ']")].map((a) => a.id).join() === "node raw/orders,node clean/orders,node mart/sales");
  await node(/^clean\/ orders /).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL("**/assets/clean/orders");
  quiet();
});

test("groups open and close, and a filter makes the other assets pale", async () => {
  await goTo(page, "assets?view=graph&level=groups");
  const group = page.getByRole("button", { name: /^mart 4 assets 1 failed/ });
  await group.focus();
  await page.keyboard.press("e");
  await node(/^mart\/ bad /).waitFor();
  assert.equal(await page.getByRole("button", { name: /, group, / }).count(), 2, "the other groups stay closed");
  await page.getByRole("button", { name: "Failed", exact: true }).click();
  await page.waitForFunction(() => getComputedStyle(document.getElementById("node mart/sales")).opacity < 0.5);
  assert.equal(await node(/^mart\/ bad /).evaluate((a) => getComputedStyle(a).opacity), "1");
  await page.getByRole("button", { name: "Close all groups" }).click();
  await group.waitFor();
  quiet();
});

test("an asset shows rows of its newest partition, and what is around it", async () => {
  await goTo(page, "assets/clean/orders");
  await page.getByRole("tab", { name: "Data" }).click();
  await sees(page, "The first 50 rows of date=2025-01-");
  const day = /date=(2025-01-\d\d)/.exec(await page.locator("[role=tabpanel]").innerText())[1];
  await page.locator("[role=cell]", { hasText: day }).first().waitFor();
  assert.equal(await page.getByRole("table", { name: "Rows of the output" }).getAttribute("aria-rowcount"), "51");
  await page.getByRole("link", { name: "Open in SQL" }).click();
  // The asset's screen also has a button Run, and stays until the console has loaded.
  await page.getByRole("heading", { name: "SQL", exact: true }).waitFor();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await sees(page, "50 rows");
  await goTo(page, "assets/mart/after?tab=data");
  await sees(page, "The asset has no output yet");
  await goTo(page, "assets/clean/orders?tab=lineage");
  await node(/^raw\/ orders /).waitFor();
  await node(/^mart\/ bad /).waitFor();
  await page.getByRole("button", { name: "1 step" }).click();
  await node(/^mart\/ bad /).waitFor({ state: "detached" });
  await node(/^mart\/ sales /).click();
  await page.waitForURL("**/assets/mart/sales**");
  quiet();
});

test("rows with scripts are text", async () => {
  await goTo(page, "assets/raw/nasty?tab=data");
  await page.locator("[role=cell]").first().waitFor();
  const cells = await page.locator("[role=cell]").allInnerTexts();
  assert.equal(cells[0], hostile.html);
  assert.equal(cells[3], "␛[2J␇<script>window.hacked=1</script>");
  assert.equal(cells[5], "9007199254740993");
  await page.getByRole("button", { name: "Show row 1", exact: true }).click();
  await sees(page, hostile.long);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  quiet();
});

test("400 assets are shown at once, and more as groups", async () => {
  const big = await open(browser, (await serve(manyAssets(400))).login);
  await big.waitForSelector("main h1");
  await goTo(big, "assets?view=graph");
  await big.waitForFunction(() => document.querySelectorAll("li > a[id^='node ']").length === 400);
  const plane = () => big.evaluate(() => document.getElementById("node n0/a0000").getBoundingClientRect().toJSON());
  const before = await plane();
  await big.mouse.move(640, 700);
  await big.mouse.down();
  await big.mouse.move(540, 650, { steps: 10 });
  await big.mouse.up();
  const moved = await plane();
  assert.deepEqual([Math.round(moved.x - before.x), Math.round(moved.y - before.y)], [-100, -50]);
  await big.getByRole("button", { name: "Closer" }).click();
  assert.ok((await plane()).width > moved.width);
  quiet(big);
  await big.context().close();
  const larger = await open(browser, (await serve(manyAssets(450))).login);
  await larger.waitForSelector("main h1");
  await goTo(larger, "assets?view=graph&level=assets");
  await sees(larger, "so it shows groups");
  await larger.getByRole("button", { name: /^n3 56 assets/ }).click();
  await larger.waitForFunction(() => document.querySelectorAll("li > a[id^='node ']").length === 56);
  quiet(larger);
  await larger.context().close();
});

test("a graph that is too large for the screen begins readably, and is shown as a whole", async () => {
  const star = await open(browser, (await serve(manyAssets(300, 1, () => [0]))).login);
  await star.waitForSelector("main h1");
  await goTo(star, "assets?view=graph");
  const first = star.locator("[id='node n0/a0000']");
  await first.waitFor();
  assert.ok((await first.boundingBox()).width > 100, "the first asset is readable");
  await star.getByRole("button", { name: "The whole graph" }).click();
  const outside = await star.evaluate(() => {
    const frame = document.querySelector("[data-far]").getBoundingClientRect();
    const boxes = [...document.querySelectorAll("[id^='node ']")].map((e) => e.getBoundingClientRect());
    return boxes.filter((b) => b.left < frame.left || b.right > frame.right || b.top < frame.top || b.bottom > frame.bottom).length;
  });
  assert.equal(outside, 0, "nodes outside of the frame");
  quiet(star);
  await star.context().close();
});

test("the graph around an asset that no longer exists leads back to all assets", async () => {
  await goTo(page, "assets?view=graph&focus=raw%2Fgone");
  await sees(page, "asset raw/gone: not found");
  await page.getByRole("button", { name: "Show all assets" }).click();
  await node(/^mart\/ bad /).waitFor();
  quiet();
});

test("the text of a group fits into its node", async () => {
  await goTo(page, "assets?view=graph&level=groups");
  const group = page.getByRole("button", { name: /^raw 4 assets 1 failed, / });
  await group.waitFor();
  const wider = await group.evaluate((e) => {
    const { right, bottom } = e.getBoundingClientRect();
    return [...e.querySelectorAll("span")].filter((s) => s.getBoundingClientRect().right > right || s.getBoundingClientRect().bottom > bottom).length;
  });
  assert.equal(wider, 0);
  quiet();
});

test("a small screen shows the whole graph", async () => {
  const size = page.viewportSize();
  await page.setViewportSize(narrow);
  await goTo(page, "assets?view=graph");
  await node(/^mart\/ after /).waitFor();
  const boxes = await page.locator("[id^='node ']").evaluateAll((nodes) => nodes.map((n) => n.getBoundingClientRect().toJSON()));
  assert.ok(boxes.length > 5);
  for (const box of boxes) assert.ok(box.left >= 0 && box.right <= narrow.width, `a node is at ${box.left} to ${box.right}`);
  await page.setViewportSize(size);
  quiet();
});
