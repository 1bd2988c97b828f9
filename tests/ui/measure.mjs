// Measures how long the page takes to show something useful: node tests/ui/measure.mjs [OTHER_SERVO]
import { loadavg } from "node:os";
import { base, cleanUp, launch, open, run, serve, weather } from "./harness.mjs";

const visits = 15;
const samples = 5;
const median = (numbers) => numbers.sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

// other is another build of servo, such as one from before a change. Its samples alternate with those of bin/servo,
// so that a busy machine affects both.
const other = process.argv[2];

const list = "[aria-label='What needs attention']";

// noteUseful reports when the list is on the screen. It runs in the page, because Playwright's functions that wait for an
// element execute code in the page while it loads, which would be a part of the measured time.
function noteUseful(list) {
  new MutationObserver((_, observer) => {
    if (!document.querySelector(list)) return;
    observer.disconnect();
    // The next frame draws the list. The timeout ends after this frame.
    requestAnimationFrame(() => setTimeout(() => console.debug(`useful ${performance.now()}`)));
  }).observe(document, { childList: true, subtree: true });
}

// firstView measures a visit of the overview with an empty cache and a slow processor.
async function firstView(browser, server, times) {
  const one = await open(browser, run(server.dir, ["ui"]).trim());
  await one.waitForSelector(list);
  const address = base(one);
  const client = await one.context().newCDPSession(one);
  await client.send("Network.setCacheDisabled", { cacheDisabled: true });
  await client.send("Emulation.setCPUThrottlingRate", { rate: 4 });
  await one.addInitScript(noteUseful, list);
  const noted = one.waitForEvent("console", (message) => message.text().startsWith("useful "));
  await one.goto(`${address}/`, { waitUntil: "commit" });
  times.useful.push(Number((await noted).text().split(" ")[1]));
  times.paint.push(await one.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0));
  await one.context().close();
}

async function main() {
  const browser = await launch();
  const server = await serve(weather());
  const builds = [["bin/servo", server], ...(other ? [[other, await serve(weather(), {}, other)]] : [])];
  const times = new Map(builds.map(([name]) => [name, { paint: [], useful: [] }]));
  for (let i = 0; i < visits; i++) for (const [name, one] of builds) await firstView(browser, one, times.get(name));
  for (const [name, of] of times)
    for (const [what, all] of Object.entries(of))
      console.log(`${name}: ${what}: median of ${visits}: ${Math.round(median(all))} ms, from ${Math.round(Math.min(...all))} to ${Math.round(Math.max(...all))}`);
  console.log(`load of the machine: ${loadavg()[0].toFixed(1)}`);
  const page = await open(browser, run(server.dir, ["ui"]).trim());
  await page.waitForSelector("main h1");
  const address = base(page);
  for (const [name, path, ready] of [
    ["runs", "runs", "main [data-row]"],
    ["assets", "assets", "main [data-row]"],
    ["an asset with 1,461 partitions", "assets/clean/daily", "canvas"],
  ]) {
    const all = [];
    for (let i = 0; i < samples; i++) {
      await page.goto(`${address}/${path}`);
      await page.waitForSelector(ready);
      all.push(await page.evaluate(() => performance.now()));
    }
    console.log(`${name}, reloaded, no throttle: ${Math.round(median(all))} ms`);
  }
  await pixels(page, server, address);
  await browser.close();
}

// pixels measures the time from the publish of a revision until the page of a run shows the revision. A second stream
// says when each revision was published.
async function pixels(page, server, address) {
  const [{ run_id }] = JSON.parse(run(server.dir, ["run", "--all", "-p", "date=2012-01-01", "--detach", "-o", "json"]));
  await page.goto(`${address}/runs/${run_id}`);
  await page.waitForSelector("main h1");
  await page.evaluate(() => {
    window.published = new Map();
    window.shown = [];
    let last = 0;
    const note = () => {
      const revision = Number(/revision (\d+)/.exec(document.querySelector("header").innerText)?.[1]);
      if (!revision || revision === last) return;
      last = revision;
      // Two frames later, the change is on the screen.
      requestAnimationFrame(() => requestAnimationFrame(() => window.shown.push([revision, Date.now()])));
    };
    new MutationObserver(note).observe(document.querySelector("header"), { childList: true, characterData: true, subtree: true });
    const source = new EventSource(`/v1/watch`);
    source.addEventListener("changes", (event) => {
      const { revision, published_at } = JSON.parse(event.data);
      window.published.set(revision, Date.parse(published_at));
    });
  });
  for (let i = 0; i < 20; i++) {
    run(server.dir, ["run", "raw/observations"]);
    await page.waitForTimeout(300 + 50 * (i % 5));
  }
  const took = await page.evaluate(() =>
    window.shown.filter(([revision]) => window.published.has(revision)).map(([revision, at]) => at - window.published.get(revision)),
  );
  if (took.length === 0) throw new Error("no revision was seen on the page");
  took.sort((a, b) => a - b);
  console.log(
    `publish to pixels on the page of a run: ${took.length} revisions, median ${median(took)} ms, 90th percentile ${took[Math.floor(took.length * 0.9)]} ms, at most ${took.at(-1)} ms`,
  );
}

try {
  await main();
} finally {
  cleanUp();
}
