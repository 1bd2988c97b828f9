// Tests of the list of assets: node --test tests/ui/assets.test.mjs
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { cleanUp, goTo, lab, launch, open, problemsOf, sees, serve } from "./harness.mjs";

let browser;
let page;

before(async () => {
  browser = await launch();
  page = await open(browser, (await serve(lab())).login);
  await page.waitForSelector("main h1");
});

after(async () => {
  await browser?.close();
  cleanUp();
});

const quiet = (on = page) => assert.deepEqual(problemsOf(on), [], "the page reported errors");
const drawn = () => page.locator("main a[data-row]").count();

test("a list of many assets counts and finds all of them, and draws some", async () => {
  // The server sends the assets in pages.
  await page.route("**/v1/assets?*", async (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get("page_token")?.slice(5) ?? 0);
    const url = new URL(route.request().url());
    url.searchParams.delete("page_token");
    const response = await route.fetch({ url: url.href });
    const json = await response.json();
    const some = json.assets;
    json.assets = Array.from({ length: 10_000 }, (_, i) => ({ ...some[i % some.length], asset_key: `n${Math.floor((from + i) / 5000)}/a${from + i}` }));
    json.next_page_token = from < 10_000 ? `page ${from + 10_000}` : "";
    await route.fulfill({ response, json });
  });
  await goTo(page, "assets");
  await sees(page, "20,000 assets");
  await sees(page, "5,000 assets"); // of the first namespace
  assert.equal(await drawn(), 500);
  await page.getByRole("button", { name: "Show more of 19,500 other assets" }).click();
  await page.waitForFunction(() => document.querySelectorAll("main a[data-row]").length === 1000);
  await page.getByLabel("Search assets").fill("a19999");
  await page.getByRole("link", { name: "a19999", exact: true }).waitFor();
  assert.equal(await drawn(), 1);
  await page.unroute("**/v1/assets?*");
  quiet();
});
