// The dashboard in a browser with 10,000 tasks while 100 events a second arrive for 30 s: how long frames take, and how
// much of its time the page's main thread is busy. Run by tests/tools/bench-dashboard.sh.

import { browse, crowd, launcher } from "../tests/tools/dashboard/stage.mjs";

const TASKS = Number(process.env.TASKS ?? 10_000);
const SECONDS = Number(process.env.SECONDS ?? 30);
const EVENTS_PER_SECOND = 100;
const LIMIT = 20;

const daemon = await crowd(TASKS);
const browser = await browse();
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
await page.goto(`${daemon.url}/#/agents`);
await page.locator(".row").first().waitFor();
const debug = await page.context().newCDPSession(page);
await debug.send("Performance.enable");
const busy = async () => {
  const { metrics } = await debug.send("Performance.getMetrics");
  return metrics.find(({ name }) => name === "TaskDuration").value;
};

// Counted at the daemon's own stream: what the page was sent, not what was meant.
let events = 0;
const counting = new AbortController();
const stream = await fetch(`${daemon.url}/v1/events`, { signal: counting.signal });
const reading = (async () => {
  let rest = "";
  for await (const piece of stream.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    events += lines.filter((line) => line.startsWith("event: task.")).length;
  }
})().catch(() => {});

await page.evaluate(() => {
  window.frames_ = [];
  let last = performance.now();
  const frame = (now) => {
    window.frames_.push(now - last);
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
});
const launch = await launcher(daemon, ["@say done", "@think 200\n@say done"]);
const [began, busyBefore, eventsBefore] = [performance.now(), await busy(), events];
// As many launches as make the events: a task has some three, so the pace follows what was counted.
let launched = TASKS;
while (performance.now() - began < SECONDS * 1000) {
  const due = ((performance.now() - began) / 1000) * EVENTS_PER_SECOND;
  if (events - eventsBefore < due) await launch(launched++);
  else await new Promise((resolve) => setTimeout(resolve, 2));
}
const seconds = (performance.now() - began) / 1000;
const frames = (await page.evaluate(() => window.frames_)).sort((one, other) => one - other);
const share = ((await busy()) - busyBefore) / seconds;
const at = (percent) => frames[Math.min(frames.length - 1, Math.floor((frames.length * percent) / 100))].toFixed(1);
const rate = ((events - eventsBefore) / seconds).toFixed(0);
console.log(`dashboard, ${TASKS} tasks, ${rate} events/s for ${seconds.toFixed(0)} s:`);
console.log(`  frame time p50 ${at(50)} ms, p95 ${at(95)} ms (limit ${LIMIT}), p99 ${at(99)} ms, of ${frames.length} frames`);
console.log(`  main thread busy ${(share * 100).toFixed(1)} %`);
counting.abort();
await reading;
await browser.close();
process.exit(Number(at(95)) <= LIMIT ? 0 : 1);
