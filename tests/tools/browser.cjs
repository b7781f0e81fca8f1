// Opens a page on another port of this machine and one of another site, and calls the API from
// both.
const assert = require("node:assert/strict");
const http = require("node:http");
const { chromium } = require("playwright-core");

const api = process.env.API;

async function main() {
  const site = http.createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end("<!doctype html><title>another site</title>");
  });
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
      // DNS rebinding: another site's name that resolves to loopback.
      `--host-resolver-rules=MAP evil.example 127.0.0.1`,
    ],
  });
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${site.address().port}/`);
    const origin = await page.evaluate(() => location.origin);
    assert.notEqual(origin, api);

    const listed = await page.evaluate(async (api) => {
      const response = await fetch(`${api}/v1/tasks`);
      return { status: response.status, page: await response.json() };
    }, api);
    assert.equal(listed.status, 200);
    assert.deepEqual(
      listed.page.tasks.map((task) => task.description), ["Hang", "Fail", "Find the login"]);

    const snapshot = await page.evaluate((api) => new Promise((resolve, reject) => {
      const events = new EventSource(`${api}/v1/events`);
      events.addEventListener("snapshot", (event) => {
        events.close();
        resolve(JSON.parse(event.data));
      });
      events.onerror = () => reject(new Error("the stream failed"));
    }), api);
    assert.equal(snapshot.total, 3);
    console.log("ok: a page of this machine reads the API and the stream");

    const hanging = listed.page.tasks[0].sessionID;
    const body = JSON.stringify({ caller: { sessionID: "cli" }, ids: [hanging] });
    const attempts = await page.evaluate(async ({ api, body }) => {
      const attempt = async (options) => {
        try {
          return (await fetch(`${api}/v1/cancel`, { method: "POST", body, ...options })).status;
        } catch {
          return "blocked";
        }
      };
      return {
        simple: await attempt({ headers: { "content-type": "text/plain" } }),
        blind: await attempt({ mode: "no-cors" }),
        json: await attempt({ headers: { "content-type": "application/json" } }),
        token: await attempt({ headers: { authorization: "Bearer guess" } }),
        deleted: await attempt({ method: "DELETE" }),
      };
    }, { api, body });
    assert.deepEqual(
      attempts, { simple: 405, blind: 0, json: 405, token: "blocked", deleted: "blocked" });
    const after = await page.evaluate(
      async ({ api, id }) => (await fetch(`${api}/v1/tasks/${id}`)).json(), { api, id: hanging });
    assert.equal(after.status, "running");
    console.log("ok: it cannot change anything");

    await page.goto(`http://evil.example:${site.address().port}/`);
    const strange = await page.evaluate(async (api) => {
      const response = await fetch(`${api}/v1/tasks`);
      const stream = await new Promise((resolve) => {
        const events = new EventSource(`${api}/v1/events`);
        events.addEventListener("snapshot", () => resolve("read"));
        events.onerror = () => resolve("refused");
      });
      return { status: response.status, fields: Object.keys(await response.json()), stream };
    }, api);
    assert.deepEqual(strange, { status: 403, fields: ["error", "status"], stream: "refused" });
    console.log("ok: a page of another site reads nothing");

    const foreign = new URL(api);
    foreign.hostname = "evil.example";
    const refused = await page.goto(`${foreign.origin}/v1/tasks`);
    assert.equal(refused.status(), 403);
    console.log("ok: a foreign host name is refused");
  } finally {
    await browser.close();
    site.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
