// Measures how long the page takes to show something useful: node tests/ui/measure.mjs
import { base, cleanUp, launch, open, run, serve, weather } from "./harness.mjs";

const samples = 5;
const median = (numbers) => numbers.sort((a, b) => a - b)[Math.floor(numbers.length / 2)];

async function main() {
  const browser = await launch();
  const server = await serve(weather());
  const times = { paint: [], useful: [] };
  const page = await open(browser, server.login);
  await page.waitForSelector("main h1");
  const address = base(page);
  for (let i = 0; i < samples; i++) {
    const one = await open(browser, run(server.dir, ["ui"]).trim());
    await one.waitForSelector("main h1");
    const client = await one.context().newCDPSession(one);
    await client.send("Network.setCacheDisabled", { cacheDisabled: true });
    await client.send("Emulation.setCPUThrottlingRate", { rate: 4 });
    await one.goto(`${address}/`);
    await one.waitForSelector("[aria-label='What needs attention']");
    times.useful.push(await one.evaluate(() => performance.now()));
    times.paint.push(await one.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0));
    await one.context().close();
  }
  for (const [name, all] of Object.entries(times)) console.log(`${name}: median of ${samples}: ${Math.round(median(all))} ms`);
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
  await browser.close();
}

try {
  await main();
} finally {
  cleanUp();
}
