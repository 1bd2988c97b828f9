// Tests of the SQL console in Chromium: node --test tests/ui
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { base, cleanUp, goTo, hostile, lab, launch, narrow, open, problemsOf, run, sees, serve, violations, wide } from "./harness.mjs";

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

// write replaces the statement in the editor. It closes the completions, which would take the next Enter.
const write = async (sql) => {
  await page.getByRole("textbox", { name: "SQL" }).focus();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(sql);
};
const ask = async (sql) => {
  await write(sql);
  await page.keyboard.press("Control+Enter");
  await page.getByRole("button", { name: "Run", exact: true }).waitFor();
};
// complete accepts a completion. The editor ignores keys for a moment after it has opened the list.
const complete = async (text) => {
  const option = page.locator("[role=option][aria-selected=true]", { hasText: text });
  await option.waitFor();
  while (await option.isVisible()) await page.keyboard.press("Tab");
};
const cells = () => page.locator("[role=cell]").allInnerTexts();

test("the keyboard alone leads to an answer: complete, run, look at a row", async () => {
  await goTo(page, "runs");
  await page.keyboard.press("g");
  await page.keyboard.press("q");
  await page.waitForURL("**/sql");
  await page.getByText("clean.orders").waitFor(); // the page has loaded the list of tables
  await page.getByRole("textbox", { name: "SQL" }).focus();
  await page.keyboard.type("SELECT * FROM clean.or");
  await complete("orders");
  await page.keyboard.type(" ORDER BY day, am");
  await complete("amount");
  await page.keyboard.press("Control+Enter");
  await sees(page, "the first 1,000 rows");
  assert.match(await page.evaluate(() => location.search), /q=SELECT/, "the address has the statement");
  await page.keyboard.press("Tab"); // moves the focus out of the editor
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: /^Row / }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Read up to 10,000 rows" }).click();
  await sees(page, "9,890 rows");
  assert.ok((await page.locator("[role=row]").count()) < 80, "only the visible rows are drawn");
  await page.getByRole("table", { name: "Rows of the result" }).focus();
  await page.keyboard.press("End");
  await page.getByRole("button", { name: "Show row 9,890" }).waitFor();
  quiet();
});

test("the list of tables has one row for each table, with its columns in order", async () => {
  await goTo(page, "runs");
  const answered = page.waitForResponse((answer) => answer.url().endsWith("/v1/query"));
  await page.goto(`${base(page)}/sql`);
  const { rows, truncated } = await (await answered).json();
  assert.equal(truncated, false);
  const tables = rows.filter(([schema]) => schema !== null);
  assert.equal(new Set(tables.map(([schema, name]) => `${schema} ${name}`)).size, tables.length);
  await page.getByText("clean.orders", { exact: true }).click();
  const list = page.locator("details", { hasText: "clean.orders" }).last();
  assert.deepEqual(await list.getByRole("button").allInnerTexts(), ["Show 100 rows", "day", "id", "amount", "date"].slice(0, await list.getByRole("button").count()));
  assert.match(await list.innerText(), /id\s*BIGINT/);
  quiet();
});

test("the list of tables counts all of them, and finds those that it does not show", async () => {
  await page.route("**/v1/query", async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    for (let i = 0; i < 10_000; i++) json.rows.unshift(["many", `t${i}`, ["id"], ["BIGINT"]]);
    const lines = json.rows.map((row) => JSON.stringify(row)).join(",\n");
    await route.fulfill({ response, body: `{"columns":${JSON.stringify(json.columns)},"rows":[${lines}],"truncated":false}\n` });
  });
  await page.goto(`${base(page)}/sql`);
  await sees(page, "10,005 tables");
  await sees(page, "Search to see the other 9,705 tables.");
  await page.getByLabel("Search tables and columns").fill("t9999");
  await page.getByText("many.t9999").waitFor();
  await page.unroute("**/v1/query");
  quiet();
});

test("an error names line and column, and marks the place", async () => {
  await goTo(page, "sql");
  await ask("SELECT day,\n  frobnicate\nFROM clean.orders");
  await sees(page, "Line 2, column 3:");
  await page.locator(".servo-error", { hasText: "frobnicate" }).waitFor();
  await page.getByRole("button", { name: "Go to line 2" }).click();
  await page.keyboard.type("amount AS "); // the cursor is at the place of the error
  await page.waitForFunction(() => !document.querySelector("[data-sql]").shadowRoot.querySelector(".servo-error"));
  quiet();
});

test("numbers keep all of their digits, and hostile values are text", async () => {
  await goTo(page, "sql");
  const text = hostile.html.replaceAll("'", "''");
  await ask(`SELECT 9223372036854775807 AS big, 0.1::DECIMAL(38,20) AS exact, '${text}' AS html, chr(27) || '[31m' AS esc, NULL AS nothing, '=1+1' AS formula`);
  await sees(page, "9223372036854775807");
  assert.deepEqual(await cells(), ["9223372036854775807", "0.10000000000000000000", hostile.html, "␛[31m", "NULL", "=1+1"]);
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.match(file.suggestedFilename(), /^query-\d+\.csv$/);
  const lines = readFileSync(await file.path(), "utf8").split("\n");
  assert.equal(lines[0], "big,exact,html,esc,nothing,formula");
  assert.equal(lines[1], `9223372036854775807,0.10000000000000000000,"${hostile.html.replaceAll('"', '""')}",\u001b[31m,,'=1+1`);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.getByRole("button", { name: "JSON" }).click();
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await sees(page, "Copied 1 row");
  const copied = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
  assert.equal(copied[0].big, "9223372036854775807");
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  quiet();
});

test("a statement is cancelled, and the server is free again", async () => {
  await goTo(page, "sql");
  await write("SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("button", { name: "Cancel" }).click();
  await sees(page, "Cancelled.");
  for (const n of [1, 2, 3]) {
    await ask(`SELECT ${n} + 40 AS again`);
    await page.getByRole("cell", { name: String(n + 40) }).waitFor();
  }
  quiet();
});

test("a statement reads the state of an earlier time", async () => {
  await goTo(page, "sql");
  await page.getByLabel("state of").selectOption("exact");
  await page.getByLabel("Revision or time").fill("2001-01-01");
  await ask("SELECT count(*) AS runs FROM runs");
  await sees(page, "no state as of 2000-12-31T23:00:00Z");
  await page.getByLabel("state of").selectOption("");
  await ask("SELECT count(*) AS runs FROM runs");
  const facts = await page.getByRole("status").filter({ hasText: "revision" }).last().innerText();
  const newest = /revision (\d+)/.exec(facts)[1];
  await page.getByLabel("state of").selectOption("exact");
  await page.getByLabel("Revision or time").fill(newest);
  await ask("SELECT count(*) AS runs FROM runs");
  await sees(page, `revision ${newest}`);
  assert.match(await page.evaluate(() => location.search), new RegExp(`at=${newest}`));
  page.problems.splice(0); // the browser logs the 410
});

test("statements are remembered, and a link shows one without running it", async () => {
  await goTo(page, "sql?q=SELECT+42+AS+answer");
  await page.getByRole("textbox", { name: "SQL" }).getByText("answer").waitFor();
  assert.equal(await page.locator("[role=cell]").count(), 0, "a link must not run a statement");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("cell", { name: "42" }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.waitForURL("**/runs");
  await page.goBack();
  await page.getByRole("cell", { name: "42" }).waitFor(); // the result is still there
  await page.getByRole("tab", { name: "History" }).click();
  await page.getByRole("button", { name: /SELECT 42 AS answer/ }).waitFor();
  await page.getByRole("button", { name: "Forget all" }).click();
  await sees(page, "No statement yet");
  quiet();
});

test("a statement that has not run is still there when the person comes back", async () => {
  await goTo(page, "sql?q=SELECT+1+AS+one");
  const editor = page.getByRole("textbox", { name: "SQL" });
  await editor.getByText("one").waitFor();
  await write("SELECT 1 AS one, 2 AS two -- an hour of work");
  await page.getByRole("link", { name: "Runs", exact: true }).click();
  await page.waitForURL("**/runs");
  await page.goBack();
  await editor.waitFor();
  assert.equal(await editor.innerText(), "SELECT 1 AS one, 2 AS two -- an hour of work");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("cell", { name: "2", exact: true }).waitFor();
  await write("SELECT 3 AS three");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("cell", { name: "3", exact: true }).waitFor();
  await page.goBack();
  await editor.getByText("an hour of work").waitFor(); // the address of the statement before
  quiet();
});

test("a time without a zone is a time of the page's zone", async () => {
  await goTo(page, "sql");
  const asked = async (typed) => {
    await page.getByLabel("state of").selectOption("exact");
    await page.getByLabel("Revision or time").fill(typed);
    const sent = page.waitForRequest((request) => request.method() === "POST" && request.url().endsWith("/v1/query"));
    await write("SELECT 1");
    await page.keyboard.press("Control+Enter");
    await page.getByRole("button", { name: "Run", exact: true }).waitFor();
    return (await sent).postDataJSON().as_of;
  };
  assert.equal(await asked("2025-01-15 12:00"), "2025-01-15T11:00:00Z"); // the browser is in Paris
  assert.match(await page.evaluate(() => location.search), /at=2025-01-15T11%3A00%3A00Z/, "a link means the same time everywhere");
  assert.equal(await asked("2025-07-15 12:00:30"), "2025-07-15T10:00:30Z");
  assert.equal(await asked("2025-01-15T12:00:00Z"), "2025-01-15T12:00:00Z");
  assert.equal(await asked("1"), "1");
  await page.locator("main h1").click();
  await page.keyboard.press("z"); // times in UTC
  assert.equal(await asked("2025-01-15 12:00"), "2025-01-15T12:00:00Z");
  await page.locator("main h1").click();
  await page.keyboard.press("z");
  page.problems.splice(0); // the browser logs the 410
});

test("the examples are valid", async () => {
  await goTo(page, "sql");
  await page.getByRole("tab", { name: "Examples" }).click();
  const names = await page.locator("[role=tabpanel] button").allInnerTexts();
  assert.ok(names.length >= 5);
  for (const name of names) {
    await page.getByRole("tabpanel").getByRole("button", { name }).click();
    await page.keyboard.press("Control+Enter");
    await page.getByRole("button", { name: "Run", exact: true }).waitFor();
    await page.getByText(/revision \d+ · /).waitFor();
    assert.equal(await page.locator("[role=alert]").count(), 0, name);
  }
  quiet();
});

test("the example for stale partitions finds those that the page shows", async () => {
  await goTo(page, "sql");
  await page.getByRole("tab", { name: "Examples" }).click();
  await page.getByRole("tabpanel").getByRole("button", { name: "Which partitions are stale, and why?" }).click();
  await page.keyboard.press("Control+Enter");
  await sees(page, "raw/orders is newer");
  const found = (await page.locator("[role=row]").allInnerTexts()).filter((text) => text.includes("is newer"));
  const { assets } = await page.evaluate(async () => (await fetch("/v1/assets")).json());
  assert.equal(found.length, assets.reduce((sum, a) => sum + a.status.stale, 0));
  quiet();
});

for (const [theme, size] of [["light", wide], ["dark", wide], ["light", narrow], ["dark", narrow]]) {
  test(`the console is accessible and fits: ${theme}, ${size.width} px`, async () => {
    const one = await open(browser, run(server.dir, ["ui"]).trim(), { theme, size });
    await one.waitForSelector("main h1");
    await goTo(one, "sql?q=FROM+runs");
    await one.getByText("clean.orders").waitFor();
    const found = await violations(one);
    await one.getByRole("button", { name: "Run", exact: true }).click();
    await one.locator("[role=cell]").first().waitFor();
    found.push(...(await violations(one)));
    await one.locator("[role=rowheader] button").first().click();
    await one.getByRole("dialog").waitFor();
    found.push(...(await violations(one)));
    await one.keyboard.press("Escape");
    await one.getByRole("textbox", { name: "SQL" }).focus();
    await one.keyboard.insertText(" WHERE");
    await one.keyboard.press("Control+Enter");
    await one.waitForSelector("[role=alert]");
    found.push(...(await violations(one)));
    assert.deepEqual(found, []);
    quiet(one);
    await one.context().close();
  });
}
