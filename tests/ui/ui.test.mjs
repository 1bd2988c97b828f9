// Tests of the web page in Chromium, on a project that really runs: node --test tests/ui
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { axeSource, base, cleanUp, lab, launch, narrow, open, run, serve, violations, wide } from "./harness.mjs";

let browser;
let server;
let page;

before(async () => {
  browser = await launch();
  server = await serve(lab({ evil: true }), { SLOW: "0.3" });
  page = await open(browser, server.login);
  await page.waitForSelector("main h1");
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const go = async (path, on = page) => {
  await on.goto(`${base(on)}/${path}`);
  await on.waitForSelector("main h1");
  await on.waitForFunction(() => !document.querySelector("[aria-busy=true]"));
};
const sees = (text, on = page) => on.waitForFunction((text) => document.querySelector("body").innerText.includes(text), text);
const api = (path, body) =>
  page.evaluate(
    async ([path, body]) => {
      const init = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
      return (await fetch(path, init ?? {})).json();
    },
    [path, body],
  );
const quiet = (on = page) => assert.deepEqual(on.problems.splice(0), [], "the page reported errors");

test("a code logs one browser in, once", async () => {
  const stranger = await open(browser, server.login);
  await sees("This browser is not logged in", stranger);
  assert.equal((await stranger.request.get(`${server.origin}/v1/runs`)).status(), 401);
  await stranger.context().close();
  const again = run(server.dir, ["ui"]).trim();
  const second = await open(browser, again);
  await sees("failures need attention", second);
  await second.context().close();
});

test("the overview says what needs a person, and why", async () => {
  await go("");
  await sees("failures need attention");
  await sees("check range_orders: 10 of 10 rows failed");
  await sees("1 asset depends on it");
  await page.getByRole("img", { name: /^[1-9]\d* runs? in the last 24 hours, [1-9]\d* failed$/ }).waitFor();
  await page.getByRole("button", { name: "Retry raw/prices" }).click();
  await sees("A retry repeats the tasks that did not succeed");
  await sees("servo retry");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("aria-label")), "Retry raw/prices", "the focus returns");
  // A retry would check the same data again, so the page proposes a new run, as `servo status` does.
  await page.getByRole("button", { name: "Run again: mart/bad" }).click();
  await sees("A retry would check the same data again");
  await sees("servo run mart/bad --failed-only");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  quiet();
});

test("the first calls are sent before the page's script, and once", async () => {
  const one = await open(browser, run(server.dir, ["ui"]).trim(), { theme: "dark" });
  await sees("failures need attention", one);
  const calls = [];
  one.on("request", (request) => calls.push(new URL(request.url()).pathname));
  const first = await (await one.request.get(one.url())).text();
  assert.match(first, /<header class="early">[\s\S]*Servo/, "the page shows something without its script");
  // The page's script arrives only after the first calls have been sent.
  const sent = one.waitForRequest(/v1\/attention/);
  await one.route("**/assets/index-*.js", async (route) => {
    await sent;
    await route.continue();
  });
  await one.goto(`${base(one)}/`);
  await sees("failures need attention", one);
  assert.equal(calls.filter((path) => path === "/v1/attention").length, 1);
  assert.equal(calls.filter((path) => path === "/v1/assets").length, 1);
  assert.equal(await one.evaluate(() => document.documentElement.dataset.theme), "dark");
  quiet(one);
  await one.context().close();
});

test("the keyboard alone leads from the overview to why a task failed, and to its log", async () => {
  await go("");
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.waitForURL("**/runs");
  await page.getByRole("button", { name: "Failed", exact: true }).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL("**show=failed");
  await page.waitForFunction(() => document.querySelectorAll("main [data-row]").length === 1);
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/runs\/\w{26}/);
  await sees("CHECK_FAILED");
  await page.keyboard.press("v");
  await page.waitForSelector("[role=table]");
  const rows = page.getByRole("button", { name: "mart/bad", exact: true });
  await rows.focus();
  await page.keyboard.press("Enter");
  await sees("Attempt 1 failed with CHECK_FAILED");
  await page.getByRole("tab", { name: "Explain" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector("[role=log]");
  await page.keyboard.press("ArrowRight");
  await sees("TaskFinished");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.body.innerText.includes("TaskFinished"));
  quiet();
});

test("a run starts in a dialog, says what its tasks wait for, shows a live log, and is cancelled", async () => {
  await go("assets");
  await page.keyboard.press("n");
  await page.getByRole("dialog").getByRole("combobox", { name: /^Assets/ }).fill("raw/clicks mart/slow");
  await page.getByLabel("Materialize").selectOption("");
  await page.getByRole("textbox", { name: /^Partitions/ }).fill("hour=h3 hour=h4 hour=h5");
  await sees("servo run raw/clicks mart/slow -p hour=h3 -p hour=h4 -p hour=h5");
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/runs\/\w{26}/);
  await sees("wait for a slot of pool narrow: 1 of 1 in use");
  await page.getByRole("button", { name: /raw\/clicks\[hour=h5\]/ }).click();
  await sees("Waits for a slot in pool narrow");
  await page.getByRole("button", { name: /mart\/slow/ }).first().click();
  await page.getByRole("tab", { name: "Log" }).click();
  await sees("line 2");
  await sees("line 9");
  const hide = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  const opened = page.waitForRequest(/:tail\?offset=[1-9]/); // a hidden page closes the stream, and continues it later
  await hide(true);
  await hide(false);
  await opened;
  await sees("line 12");
  await page.keyboard.press("c");
  await page.getByLabel("Reason").fill("seen enough");
  await page.getByRole("button", { name: "Cancel the run" }).click();
  await page.waitForFunction(() => /^cancelled/.test(document.querySelector("main").innerText));
  quiet();
});

test("an asset says which partitions are stale, and why", async () => {
  await go("assets");
  await page.keyboard.press("/");
  await page.keyboard.type("orders");
  await page.waitForFunction(() => document.querySelectorAll("main [data-row]").length === 2);
  await page.keyboard.press("Escape");
  await go("assets?show=stale");
  await page.getByRole("link", { name: "orders" }).click();
  await page.waitForURL("**/assets/clean/orders");
  await sees("8 of 10 partitions fresh, 2 stale.");
  await page.getByRole("button", { name: "Stale", exact: true }).click();
  await page.getByRole("link", { name: "date=2025-01-03" }).click();
  await sees("raw/orders[date=2025-01-03] is newer");
  await page.getByRole("tab", { name: /Checks/ }).click();
  await sees("unique_id");
  await page.getByRole("tab", { name: "Schema" }).click();
  await sees("BIGINT");
  await page.getByRole("tab", { name: "Code" }).click();
  await sees("FROM raw.orders WHERE id > 10");
  quiet();
});

test("what is stale is materialized, and the overview forgets it", async () => {
  await go("assets/clean/orders");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/runs\/\w{26}/);
  await page.waitForFunction(() => /^succeeded/.test(document.querySelector("main").innerText));
  await go("assets/clean/orders");
  await sees("10 of 10 partitions fresh.");
  quiet();
});

test("a schedule is paused with a reason, and resumed", async () => {
  await go("schedules?schedule=nightly");
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByLabel("Reason").fill("moving the database");
  await page.getByRole("dialog").getByRole("button", { name: "Pause", exact: true }).click();
  await sees("moving the database");
  await go("");
  await sees("moving the database");
  await page.getByRole("button", { name: "Resume schedule nightly" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Resume", exact: true }).click();
  await page.waitForFunction(() => !document.body.innerText.includes("moving the database"));
  quiet();
});

test("the palette finds assets, runs and commands", async () => {
  await go("");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("clean/or");
  await page.waitForFunction(() => document.querySelector("[role=option][aria-selected=true]")?.innerText.includes("clean/orders"));
  await page.keyboard.press("Enter");
  await page.waitForURL("**/assets/clean/orders");
  await page.keyboard.press("?");
  await sees("Search and commands");
  await page.keyboard.press("Escape");
  quiet();
});

test("a page that only reads shows commands instead of actions", async () => {
  const reader = await open(browser, run(server.dir, ["ui"]).trim());
  await reader.route("**/v1/whoami*", async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...(await answer.json()), mode: "read_only" } });
  });
  await go("", reader);
  await sees("read-only", reader);
  await reader.getByRole("button", { name: "Retry raw/prices" }).click();
  await sees("This page shows a bucket and changes nothing. Run the command instead.", reader);
  await sees("servo-cloud retry", reader);
  assert.equal(await reader.getByRole("button", { name: "Retry", exact: true }).count(), 0);
  await reader.setViewportSize(narrow);
  assert.ok(await reader.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth), "the page is too wide");
  quiet(reader);
  await reader.context().close();
});

test("the page says when the server is gone, keeps what it shows, and comes back", async () => {
  await go("runs");
  await page.route("**/v1/**", (route) => route.abort());
  await page.evaluate(() => window.dispatchEvent(new Event("visibilitychange"))); // the page calls the server at once
  await sees("The server does not answer");
  assert.ok(await page.evaluate(() => document.querySelectorAll("main [data-row]").length > 0));
  await page.unroute("**/v1/**");
  await page.waitForFunction(() => !document.body.innerText.includes("The server does not answer"));
  page.problems.splice(0);
});

const screens = async () => {
  const { runs } = await api("/v1/runs?state=FAILED");
  const failed = runs.at(-1).run_id;
  return [
    "",
    "runs",
    `runs/${failed}?task=mart%2Fbad`,
    `runs/${failed}?view=table`,
    `runs/${failed}?task=${encodeURIComponent("raw/prices[market=eu]")}&panel=log`,
    "assets",
    "assets/raw/prices",
    "assets/clean/orders?tab=code",
    "assets/mart/bad?tab=checks",
    "assets/clean/orders?tab=lineage",
    "assets/raw/nasty",
    "assets/raw/nasty?tab=data",
    "assets/raw/nasty?tab=schema",
    "assets?view=graph",
    "assets?view=graph&level=groups",
    "assets?view=graph&focus=clean%2Forders",
    "schedules?schedule=nightly",
    "backfills",
  ];
};

const row = (name, on) => on.locator("main [data-row]").filter({ hasText: name }).first();
const failedRun = async () => (await api("/v1/runs?state=FAILED")).runs.find((r) => r.assets_total > 3).run_id;
const focused = (on) => on.evaluate(() => document.activeElement?.textContent);

test("on a small screen a task is a sheet over its run", async () => {
  const one = await open(browser, run(server.dir, ["ui"]).trim(), { size: narrow });
  await one.waitForSelector("main h1");
  const id = await failedRun();
  await go("runs", one);
  await one.locator(`main a[href$="/runs/${id}"]`).first().click();
  await one.waitForURL(`**/runs/${id}`);
  await one.getByRole("button", { name: /failed or skipped/ }).click();
  await one.waitForURL("**?show=failed");
  const bad = row("mart/bad", one);
  const sheet = one.getByRole("dialog", { name: "mart/bad" });
  const show = async () => {
    await bad.focus();
    await one.keyboard.press("Enter");
    await sheet.waitFor();
    await sees("Attempt 1 failed with CHECK_FAILED", one);
  };
  const closed = async () => {
    await sheet.waitFor({ state: "detached" });
    assert.equal(new URL(one.url()).search, "?show=failed");
    assert.match(await focused(one), /^mart\/bad/, "the focus returns to the task");
  };

  await show();
  const box = await sheet.boundingBox();
  assert.equal(box.width, narrow.width);
  assert.equal(box.y + box.height, narrow.height, "the sheet ends at the lower edge");
  assert.ok(box.y > 60, "the run stays visible above the sheet");
  for (let i = 0; i < 12; i++) {
    const outside = await one.evaluate(() => document.activeElement !== document.body && !document.activeElement.closest("dialog"));
    assert.ok(!outside, "the focus stays in the sheet");
    await one.keyboard.press("Tab");
  }
  assert.deepEqual(await violations(one), []);
  await one.keyboard.press("Escape");
  await closed();

  await show();
  await one.goBack();
  await closed();

  await show();
  await one.getByRole("tab", { name: "Log" }).click();
  await one.getByRole("searchbox").press("Escape");
  await sheet.waitFor(); // the first Escape leaves the field
  await one.getByRole("button", { name: "Close the task" }).dblclick();
  await closed();

  await row("mart/after", one).focus();
  await one.keyboard.press("Enter");
  await one.getByRole("dialog").getByRole("button", { name: "mart/bad" }).first().click();
  await sheet.waitFor();
  assert.match(await focused(one), /^mart\/bad/, "the focus is on the name of the new task");
  await one.goBack();
  await one.getByRole("dialog").waitFor({ state: "detached" });
  await one.goBack();
  await one.waitForURL("**/runs");

  await go(`runs/${id}?task=mart%2Fbad`, one);
  await sheet.waitFor();
  const ring = () => getComputedStyle(document.activeElement).outlineStyle;
  assert.equal(await one.evaluate(ring), "none", "a link to a task puts no ring around its name");
  await one.keyboard.press("Escape");
  await sheet.waitFor({ state: "detached" });
  assert.equal(new URL(one.url()).pathname.split("/").at(-1), id, "a link to a task closes to its run");
  quiet(one);
  await one.context().close();
});

test("on a small screen chart and table show the names of tasks in full", async () => {
  const one = await open(browser, run(server.dir, ["ui"]).trim(), { size: narrow });
  await one.waitForSelector("main h1");
  const id = await failedRun();
  // A name is cut off if it extends to the right beyond the element that hides its overflow.
  const cut = () =>
    one.locator("main [data-row] bdi").evaluateAll((names) =>
      names
        .filter((name) => name.textContent.length <= 40)
        .filter((name) => {
          const box = [name, name.closest("[role=cell]")].find((e) => e && getComputedStyle(e).overflow === "hidden");
          return !box || box.scrollWidth > box.clientWidth;
        })
        .map((name) => name.textContent),
    );
  await go(`runs/${id}?view=table`, one);
  assert.ok((await one.locator("main [data-row] bdi").count()) > 5);
  assert.deepEqual(await cut(), []);
  await go(`runs/${id}`, one);
  assert.ok((await one.locator("main [data-row] bdi").count()) > 5);
  assert.deepEqual(await cut(), []);
  // A tap on the bar opens its task.
  const first = one.locator("main [data-row]").first();
  const name = await first.locator("bdi").textContent();
  await first.scrollIntoViewIfNeeded();
  const place = await first.boundingBox();
  await one.mouse.click(place.x + place.width / 2, place.y + place.height + 12);
  await one.getByRole("dialog", { name }).waitFor();
  quiet(one);
  await one.context().close();
});

for (const [theme, size] of [
  ["light", wide],
  ["dark", wide],
  ["light", narrow],
  ["dark", narrow],
]) {
  test(`every screen is accessible and fits: ${theme}, ${size.width} px`, async () => {
    const address = run(server.dir, ["ui"]).trim();
    const one = await open(browser, address, { theme, size });
    await one.waitForSelector("main h1");
    const found = [];
    for (const screen of await screens()) {
      await go(screen, one);
      await one.evaluate(axeSource);
      const { violations } = await one.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
      found.push(...violations.map((v) => `${screen}: ${v.id}: ${v.nodes.slice(0, 2).map((n) => n.html).join(" ")}`));
      const overflow = await one.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      if (overflow > 0) found.push(`${screen}: ${overflow} px too wide`);
      const problem = await one.evaluate(() => document.querySelector("main [role=alert]")?.innerText);
      if (problem) found.push(`${screen}: ${problem}`);
      if (await one.evaluate(() => window.hacked)) found.push(`${screen}: a name was executed`);
    }
    assert.deepEqual(found, []);
    quiet(one);
    await one.context().close();
  });
}

test("open dialogs are accessible", async () => {
  for (const [keys, name] of [["n", "Start a run"], ["?", "Keys"], ["Control+k", "Search and commands"]]) {
    await go("");
    await page.keyboard.press(keys);
    await page.getByRole("dialog", { name }).waitFor();
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => window.axe.run(document.querySelector("dialog"), { resultTypes: ["violations"] }));
    assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes[0].html}`), [], name);
    await page.keyboard.press("Escape");
  }
  quiet();
});
