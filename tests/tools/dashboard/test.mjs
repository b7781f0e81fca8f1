// Sentences about the dashboard, each tried in a browser against a real daemon.

import assert from "node:assert/strict";

import { axe, browse, Daemon, until } from "./stage.mjs";

const daemon = await Daemon.start();
const browser = await browse();
const failures = [];
/** Taken first and used last: by then it is older than a minute, and nobody had to wait for that. */
const old = { address: await daemon.address(), at: Date.now() };

async function it(sentence, test, options = {}) {
  if (!sentence.includes(process.env.ONLY ?? "")) return;
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const problems = [];
  page.on("pageerror", (error) => problems.push(`${error}`));
  page.on("console", (line) => /Content Security Policy/.test(line.text()) && problems.push(line.text()));
  page.on("dialog", (dialog) => {
    problems.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(daemon.url) && !request.url().startsWith("data:")) problems.push(request.url());
  });
  try {
    await test(page, context);
    assert.deepEqual(problems, [], "no error, no dialog, nothing from elsewhere");
    console.log(`ok: ${sentence}`);
  } catch (error) {
    failures.push(sentence);
    console.error(`FAILED: ${sentence}\n${error.stack}\n${page.url()}\n${await page.locator("body").innerText().catch(() => "")}`);
  } finally {
    await context.close();
  }
}

const open = (page, address = "") => page.goto(`${daemon.url}/${address}`);
const signIn = async (page, address = "#/agents") => {
  await page.goto(await daemon.address());
  await page.getByRole("button", { name: "Launch…" }).waitFor();
  await page.goto(`${daemon.url}/${address}`);
};
const row = (page, task) => page.locator(`.row[data-id="${task.sessionID}"]`);
const group = (page, name) => page.locator(`.group[data-group="${name}"]`);
const stateOf = async (task) => (await daemon.get(`/v1/tasks/${task.sessionID}`)).status;
const asks = async (task) =>
  (await daemon.get("/v1/permissions")).permissions.filter((ask) => ask.sessionID === task.sessionID);

await it("without any task the page says how to launch one", async (page) => {
  await open(page);
  await page.getByText("No agents yet").waitFor();
  await page.getByText("asyncagents run --agent explore").waitFor();
  for (const [view, words] of [["timeline", "No agents yet"], ["batches", "No batches yet"], ["stats", "No task ended in this time."]]) {
    await open(page, `#/${view}`);
    await page.getByText(words).first().waitFor();
  }
  assert.equal(await page.getByText("none in this time").count(), 4, "of each chart");
});

const done = await daemon.launch(
  "Find the login", '@tool read {"path":"src/login.rs"}\n@spend 1200 0.05\n@say It is in **src/login.rs**, see `check`.',
  "--agent", "explore", "--batch", "mine");
const failed = await daemon.launch("Fail", "@fail overloaded", "--agent", "build", "--batch", "mine");
const hanging = await daemon.launch("Hang about", '@tool grep {"pattern":"x"}\n@hang', "--agent", "build");
await daemon.run("wait", done.sessionID, failed.sessionID).catch(() => {});

await it("the agents view groups tasks and counts them, searches and filters", async (page) => {
  await open(page);
  await row(page, hanging).waitFor();
  await row(page, done).waitFor();
  assert.match(await group(page, "working").innerText(), /Working\s*1/);
  assert.match(await group(page, "done").innerText(), /Done\s*2/);
  assert.equal(await row(page, failed).getByRole("img", { name: "failed" }).count(), 1);
  await page.getByRole("searchbox").fill("LOGIN");
  await until("the others are gone", async () => (await page.locator(".row").count()) === 1);
  await page.getByRole("searchbox").fill("");
  await row(page, failed).waitFor();
  await page.getByLabel("Any agent").selectOption("build");
  await until("one agent's are left", async () => (await row(page, done).count()) === 0);
  await row(page, hanging).waitFor();
  await page.getByLabel("Any status").selectOption("error");
  await until("one is left", async () => (await page.locator(".row").count()) === 1);
  await open(page, "#/agents?batch=mine");
  await until("the batch is left", async () => (await page.locator(".row").count()) === 2);
  await open(page, "#/agents?parent=nobody");
  await page.getByText("No task matches").waitFor();
  await open(page, "#/agents?host=scripted");
  await until("all three are shown", async () => (await page.locator(".row").count()) === 3);
});

await it("a launch, a request and an end are shown as they happen, and the title says who needs input", async (page) => {
  await open(page);
  await row(page, hanging).waitFor();
  const task = await daemon.launch("Ask for it", "@ask bash ls docs\n@say seen");
  await row(page, task).getByText("bash ls docs").waitFor();
  await group(page, "input").waitFor();
  await page.waitForFunction(() => document.title.startsWith("(1) "));
  assert.equal(await row(page, task).getByRole("button").count(), 0, "read-only");
  await daemon.run("deny", task.sessionID);
  await row(page, task).getByRole("img", { name: "failed" }).waitFor();
  await page.waitForFunction(() => !document.title.startsWith("("));
});

await it("a task shows its conversation, result, facts, events and relatives, and grows while it is watched", async (page) => {
  await open(page, `#/task/${done.sessionID}`);
  await page.locator(".result strong", { hasText: "src/login.rs" }).waitFor();
  await page.locator(".result code", { hasText: "check" }).waitFor();
  await page.locator("details.tool", { hasText: "read" }).locator("summary").click();
  await page.locator("details.tool pre", { hasText: "src/login.rs" }).first().waitFor();
  for (const text of ["1,200", "$0.05", "explore", "launched", /completed after/]) await page.getByText(text).first().waitFor();
  const live = await daemon.launch("Grow", '@think 100\n@tool read {"path":"first"}\n@ask bash second\n@say third');
  await open(page, `#/task/${live.sessionID}`);
  await page.locator("details.tool", { hasText: "first" }).waitFor();
  await page.locator(".head .asking code", { hasText: "bash second" }).waitFor();
  await daemon.run("approve", live.sessionID);
  await page.locator(".result", { hasText: "third" }).waitFor();
  await page.getByText("approved (cli, cli)").waitFor();
  await open(page, "#/task/ses_nobody");
  await page.getByText("No such task").waitFor();
});

await it("a fork shows what it inherited", async (page) => {
  const fork = await daemon.launch("Forked", "@say forked", "--fork", done.sessionID);
  await open(page, `#/task/${fork.sessionID}`);
  await page.getByText(/characters of the parent's conversation/).waitFor();
});

await it("the timeline shows tasks side by side with their tool calls, and zooms", async (page) => {
  const slow = await daemon.launch("Slow tool", "@slow-tool bash 1200\n@say slow");
  await daemon.run("wait", slow.sessionID);
  await open(page, "#/timeline");
  const lane = page.locator(".lane", { hasText: "Slow tool" });
  await lane.waitFor();
  const width = async () => (await lane.locator(".span").boundingBox()).width;
  const before = await width();
  for (let n = 0; n < 4; n++) await page.getByRole("button", { name: "Zoom in" }).click();
  await until("the bar is wider, or has left", async () => (await lane.count()) === 0 || (await width()) > before * 1.5);
  await page.getByRole("button", { name: "Fit" }).click();
  await lane.waitFor();
  await until("its call is drawn", async () => {
    const call = lane.locator(".call");
    if ((await call.count()) === 0) {
      await page.keyboard.press("+");
      return false;
    }
    return true;
  });
  await page.locator(".parallel").waitFor();
});

await it("a batch shows how far it is, what it cost and its members", async (page) => {
  await open(page, "#/batches");
  await page.getByRole("link", { name: "mine" }).click();
  await page.getByRole("heading", { name: "mine" }).waitFor();
  for (const text of ["2 / 2", "50 %", "$0.05", "1.2k"]) await page.getByText(text, { exact: true }).waitFor();
  assert.equal(await page.locator(".members li").count(), 2);
});

await it("timeline, batch and figures follow what happens", async (page, context) => {
  const [timeline, batch, stats] = [page, await context.newPage(), await context.newPage()];
  await open(timeline, "#/timeline");
  await open(stats, "#/stats");
  const first = await daemon.launch("Watched first", "@hang", "--batch", "watched");
  await open(batch, "#/batch/watched");
  await batch.getByText("0 / 1", { exact: true }).waitFor();
  const launched = stats.locator(".figure", { hasText: "Launched" }).locator("dd");
  const before = Number(await launched.innerText());
  await timeline.locator(".lane", { hasText: "Watched first" }).waitFor();
  await daemon.launch("Watched second", "@say over", "--batch", "watched");
  await timeline.locator(".lane", { hasText: "Watched second" }).waitFor();
  await batch.locator(".members li", { hasText: "Watched second" }).waitFor();
  await batch.getByText("1 / 2", { exact: true }).waitFor();
  await until("it is counted", async () => Number(await launched.innerText()) > before);
  await daemon.run("cancel", first.sessionID);
  await batch.getByText("2 / 2", { exact: true }).waitFor();
});

await it("stats show figures over time by agent and model, the queue and its limits", async (page) => {
  await open(page, "#/stats");
  for (const title of ["Launches", "Ends", "Tokens", "Cost", "By agent", "By model", "Queue and limits"]) {
    await page.getByRole("heading", { name: title, exact: true }).waitFor();
  }
  await page.getByRole("link", { name: "explore" }).waitFor();
  await page.getByText("Each parent: at most 10 at work, 1,000 waiting").waitFor();
  await page.getByRole("button", { name: "24 h" }).click();
  await page.getByRole("img", { name: /Launches: \d+ in all/ }).waitFor();
});

await it("without a code the page is read-only and says so", async (page) => {
  await open(page, `#/task/${hanging.sessionID}`);
  await page.getByText("Read-only.").waitFor();
  await page.getByRole("heading", { name: "Hang about" }).waitFor();
  assert.equal(await page.getByRole("button", { name: /Launch|Cancel|Send|Approve/ }).count(), 0);
  await page.keyboard.press("x");
  await page.keyboard.press("n");
  assert.equal(await page.locator("dialog").count(), 0);
});

await it("a code is used once, leaves the address, and a used or invented one is refused", async (page, context) => {
  const address = await daemon.address();
  await page.goto(address);
  await page.getByRole("button", { name: "Launch…" }).waitFor();
  assert.equal(new URL(page.url()).hash, "");
  const token = await page.evaluate(() => sessionStorage.getItem("asyncagents-token"));
  assert.match(token, /^[0-9a-f]{32}$/);
  for (const refused of [address, `${daemon.url}/#code=${"0".repeat(32)}`]) {
    const other = await context.newPage();
    await other.goto(refused);
    await other.getByText("this code was used before or is older than a minute").waitFor();
    await other.getByText("Read-only.").waitFor();
    await other.close();
  }
  await page.reload();
  await page.getByRole("button", { name: "Launch…" }).waitFor();
});

await it("a code pasted into an open page signs it in, leaves the address, and the view stays", async (page) => {
  await open(page, "#/stats");
  await page.getByText("Read-only.").waitFor();
  const address = await daemon.address();
  await page.evaluate((hash) => { location.hash = hash; }, new URL(address).hash);
  await page.getByRole("button", { name: "Launch…" }).waitFor();
  assert.equal(new URL(page.url()).hash, "#/stats");
  await page.getByRole("heading", { name: "Stats" }).first().waitFor();
});

await it("the keys answer no request that the list does not show", async (page) => {
  const task = await daemon.launch("Asks twice", "@ask bash shown\n@say over");
  await until("it asks", async () => (await asks(task)).length === 1);
  // One more of the same task, as agents have whose tools run in parallel.
  await page.route("**/v1/permissions", async (route) => {
    const { permissions } = await (await route.fetch()).json();
    const more = permissions.filter((ask) => ask.sessionID === task.sessionID).map((ask) => ({ ...ask, id: "per_more", what: "bash hidden" }));
    await route.fulfill({ json: { permissions: [...permissions, ...more] } });
  });
  const answered = [];
  page.on("request", (request) => request.method() === "POST" && request.url().includes("/v1/permissions/") && answered.push(request.url()));
  await signIn(page);
  await row(page, task).getByText("2 requests: open the task to answer").waitFor();
  await row(page, task).locator("a.main").focus();
  await page.keyboard.press("a");
  await page.getByRole("heading", { name: "Asks twice" }).waitFor();
  assert.deepEqual([answered, (await asks(task)).length], [[], 1]);
  await page.unroute("**/v1/permissions");
  await daemon.run("deny", task.sessionID);
});

await it("requests are approved and denied from the list, with their door on record", async (page) => {
  await signIn(page);
  const yes = await daemon.launch("Wants yes", "@ask bash make\n@say made");
  await row(page, yes).getByRole("button", { name: "Approve" }).click();
  await row(page, yes).getByRole("img", { name: "completed" }).waitFor();
  const [answer] = (await daemon.get(`/v1/tasks/${yes.sessionID}`)).answers;
  assert.deepEqual([answer.what, answer.allowed, answer.door, answer.by], ["bash make", true, "dashboard", "cli"]);
  const no = await daemon.launch("Wants no", "@ask bash rm\n@say removed");
  await row(page, no).getByRole("button", { name: "Deny" }).click();
  await row(page, no).getByRole("img", { name: "failed" }).waitFor();
});

await it("a task is launched, sent a message, cancelled and resumed from the page", async (page) => {
  await signIn(page);
  await page.getByRole("button", { name: "Launch…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Prompt").fill("From the page\n@stream 2 50\n@hang");
  await dialog.getByLabel("Agent").fill("general");
  await dialog.getByLabel("Directory").fill(daemon.place);
  await dialog.getByRole("button", { name: "Launch" }).click();
  await page.getByRole("heading", { name: "From the page" }).waitFor();
  const id = decodeURIComponent(new URL(page.url()).hash.slice("#/task/".length));
  await page.locator(".events li", { hasText: "started" }).waitFor();
  await page.getByRole("button", { name: "Send…" }).click();
  await dialog.getByLabel("Message").fill("look at src only");
  await dialog.getByLabel("Message").press("Control+Enter");
  await page.getByText("Sent.").waitFor();
  await page.locator(".events li", { hasText: "message sent" }).getByText("look at src only").waitFor();
  await page.getByRole("button", { name: "Cancel…" }).click();
  await dialog.getByRole("button", { name: "Cancel it" }).click();
  await page.locator(".head .label", { hasText: "cancelled" }).waitFor();
  assert.equal(await stateOf({ sessionID: id }), "cancelled");
  await page.locator(".events li", { hasText: "cancelled after" }).waitFor();
  const texts = await page.locator(".events li > span").allInnerTexts();
  assert.deepEqual(texts.map((text) => text.split(/\s/)[0]), ["launched", "started", "message", "cancelled"]);
  await page.goto(`${daemon.url}/#/task/${done.sessionID}`);
  await page.getByRole("button", { name: "Resume…" }).click();
  await dialog.getByLabel("Prompt").fill("@say again");
  await dialog.getByRole("button", { name: "Resume" }).click();
  await page.locator(".result", { hasText: "again" }).waitFor();
  assert.equal((await daemon.get(`/v1/tasks/${done.sessionID}`)).resumeCount, 1);
  await until("both runs are told of", async () => {
    const texts = (await page.locator(".events li > span").allInnerTexts()).map((text) => text.split(/\s/)[0]);
    return texts.join(" ").startsWith("launched started completed") && texts.join(" ").includes("resumed started completed");
  });
});

await it("all agents of a batch are cancelled together, after a question that names them", async (page) => {
  const tasks = [];
  for (const n of [1, 2]) tasks.push(await daemon.launch(`Together ${n}`, "@hang", "--batch", "together"));
  await signIn(page, "#/batch/together");
  await page.getByRole("button", { name: "Cancel all…" }).click();
  const dialog = page.getByRole("dialog", { name: "Cancel 2 tasks?" });
  for (const text of ["Together 1", "Together 2", /They stop now/]) await dialog.getByText(text).waitFor();
  await dialog.getByRole("button", { name: "Cancel them" }).click();
  await until("both are cancelled", async () => (await Promise.all(tasks.map(stateOf))).join(" ") === "cancelled cancelled");
  await page.getByText("2 / 2", { exact: true }).waitFor();
});

await it("a failed task is launched again, and the new one is shown", async (page) => {
  await signIn(page, `#/task/${failed.sessionID}`);
  await page.getByRole("button", { name: "Retry" }).click();
  await page.getByText("Launched again.").waitFor();
  const id = decodeURIComponent(new URL(page.url()).hash.slice("#/task/".length));
  assert.notEqual(id, failed.sessionID);
  await page.getByRole("heading", { name: "Fail" }).waitFor();
  assert.equal((await daemon.get(`/v1/tasks/${id}`)).description, "Fail");
  await page.locator(".facts").getByRole("link", { name: failed.sessionID }).click();
  await page.locator(".facts").getByText("Retried by").waitFor();
  assert.equal(await page.locator(".facts").getByRole("link", { name: id }).count(), 1);
});

await it("what the daemon refuses is said and changes nothing", async (page) => {
  await signIn(page);
  await page.keyboard.press("n");
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Prompt").fill("x");
  await dialog.getByLabel("Agent").fill("general");
  await dialog.getByLabel("Directory").fill(daemon.place);
  await dialog.getByLabel("Host").fill("nowhere");
  const { totalTasks } = await daemon.get("/v1/stats");
  await dialog.getByRole("button", { name: "Launch" }).click();
  await page.locator(".message.error", { hasText: "nowhere" }).waitFor();
  assert.equal((await daemon.get("/v1/stats")).totalTasks, totalTasks);
});

await it("all is done with the keyboard", async (page) => {
  await signIn(page);
  const task = await daemon.launch("By keyboard", "@ask bash keys\n@hang");
  await row(page, task).getByRole("button", { name: "Approve" }).waitFor();
  await page.keyboard.press("j");
  await page.locator(".row.selected").waitFor();
  assert.equal(await page.locator(".row.selected").getAttribute("data-id"), task.sessionID);
  await page.keyboard.press("j");
  await until("the next is selected", async () => (await page.locator(".row.selected").getAttribute("data-id")) !== task.sessionID);
  await page.keyboard.press("k");
  await page.keyboard.press("a");
  await until("it is answered", async () => (await asks(task)).length === 0);
  await row(page, task).getByRole("img", { name: /waiting|starting|streaming/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "By keyboard" }).waitFor();
  await page.keyboard.press("s");
  await page.getByRole("dialog").getByLabel("Message").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("x");
  await page.getByRole("button", { name: "Cancel it" }).waitFor();
  await page.keyboard.press("Enter");
  await until("it is cancelled", async () => (await stateOf(task)) === "cancelled");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("Escape");
  await page.getByRole("searchbox").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("keyboard");
  await until("one is left", async () => (await page.locator(".row").count()) === 1);
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("approve or deny").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("2");
  await page.getByRole("heading", { name: "Timeline" }).waitFor();
  const denied = await daemon.launch("Denied by keyboard", "@ask bash no\n@say over");
  await page.keyboard.press("1");
  await row(page, denied).getByRole("button", { name: "Deny" }).waitFor();
  await row(page, denied).locator("a.main").focus();
  await page.locator(`.row.selected[data-id="${denied.sessionID}"]`).waitFor();
  await page.keyboard.press("d");
  await until("it is denied", async () => (await stateOf(denied)) === "error");
  assert.equal((await daemon.get(`/v1/tasks/${denied.sessionID}`)).answers[0].allowed, false);
});

for (const reducedMotion of ["no-preference", "reduce"]) {
  await it(`with ${reducedMotion === "reduce" ? "reduced motion nothing moves" : "motion what works turns"}`, async (page) => {
    await open(page);
    await row(page, hanging).locator('[data-state="working"]').waitFor();
    const moving = await page.evaluate(() => document.getAnimations().length);
    assert.equal(moving > 0, reducedMotion === "no-preference");
  }, { reducedMotion });
}

const SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)></script>";
const MARKDOWN = [
  "@say", SCRIPT, "[click](javascript:alert(3)) [mail](data:text/html,x) ![i](http://evil.example/i.png)",
  "<a href='javascript:alert(4)'>a</a> <svg onload=alert(5)> **<b onmouseover=alert(6)>bold</b>** `</code><script>alert(7)</script>`",
  "[ok](https://example.com/) \u202egnirts \u001b[31mred",
].join(" ");

await it("hostile descriptions, Markdown and requests are shown as text and do nothing", async (page) => {
  const bad = await daemon.launch(`${SCRIPT} \u202eevil \u001b[2J`, MARKDOWN, "--batch", "<i>batch</i>");
  const asking = await daemon.launch("Forges", "@ask bash echo \u202e\u001b[2K <img src=x onerror=alert(8)>\n@say x");
  await daemon.run("wait", bad.sessionID);
  await signIn(page);
  await row(page, bad).getByText("<script>alert(1)</script>").first().waitFor();
  await row(page, asking).locator("code", { hasText: "\\u{202e}\\u{1b}[2K <img src=x onerror=alert(8)>" }).waitFor();
  for (const view of ["#/timeline", "#/batches", "#/batch/%3Ci%3Ebatch%3C%2Fi%3E", `#/task/${bad.sessionID}`]) {
    await open(page, view);
    await page.locator("h1").first().waitFor();
  }
  const result = page.locator(".result");
  await result.getByText("onerror=alert(2)").waitFor();
  assert.deepEqual(await result.locator("a").evaluateAll((links) => links.map((link) => link.getAttribute("href"))), ["http://evil.example/i.png", "https://example.com/"]);
  assert.equal(await page.locator("main script, main img, main svg[onload], main [onmouseover], main iframe").count(), 0);
  await daemon.run("deny", asking.sessionID);
});

/** The request and its buttons are within their row, which the next one follows. */
const isWhole = async (page, task) => {
  const [row, deny] = [page.locator(`.row[data-id="${task.sessionID}"]`), page.locator(`.row[data-id="${task.sessionID}"] .ask`)];
  const [outer, inner] = [await row.boundingBox(), await deny.boundingBox()];
  assert.ok(inner.y + inner.height <= outer.y + outer.height, `${JSON.stringify(inner)} in ${JSON.stringify(outer)}`);
  assert.ok(outer.y + outer.height - (inner.y + inner.height) < 24, "and leaves no hole");
};

await it("a long request and its buttons stay in their row", async (page) => {
  const asking = await daemon.launch("Asks at length", "@ask bash " + "word".repeat(100) + "\n@say ok");
  await open(page);
  await row(page, asking).locator(".ask").waitFor();
  await isWhole(page, asking);
  await signIn(page);
  await row(page, asking).getByRole("button", { name: "Deny" }).waitFor();
  await isWhole(page, asking);
  await daemon.run("deny", asking.sessionID);
});

await it("at phone width nothing sticks out, and everything can be reached", async (page) => {
  const asking = await daemon.launch("On the phone " + "long ".repeat(30), "@ask bash " + "word".repeat(60) + "\n@say ok");
  await open(page);
  await row(page, asking).locator(".ask").waitFor();
  await isWhole(page, asking);
  await signIn(page);
  await row(page, asking).getByRole("button", { name: "Approve" }).waitFor();
  await isWhole(page, asking);
  const views = ["#/agents", "#/timeline", "#/batches", "#/batch/mine", "#/stats", `#/task/${asking.sessionID}`, `#/task/${done.sessionID}`];
  for (const view of views) {
    await open(page, view);
    await page.locator("h1").first().waitFor({ state: "attached" });
    await until("it is loaded", async () => (await page.getByText("Loading…").count()) === 0);
    const sticking = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(sticking <= 0, `${view}: ${sticking} pixels too wide`);
    const cut = await page.locator(".scroll").evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth).length);
    assert.equal(cut, 0, `${view}: tables are seen whole`);
    const nav = await page.getByRole("navigation", { name: "Views" }).boundingBox();
    assert.ok(nav.x >= 0 && nav.x + nav.width <= 390, `${view}: the navigation is within the page`);
  }
  await open(page, "#/agents?batch=mine&parent=cli");
  await page.locator(".filters .chip").first().waitFor();
  for (const select of await page.locator(".filters select").all()) {
    assert.ok((await select.boundingBox()).width > 100, "filters are read beside others");
  }
  await open(page);
  await row(page, asking).getByRole("button", { name: "Approve" }).click();
  await until("it is answered", async () => (await stateOf(asking)) === "completed");
}, { viewport: { width: 390, height: 844 }, hasTouch: true });

for (const colorScheme of ["light", "dark"]) {
  await it(`axe finds nothing serious in ${colorScheme} colours`, async (page) => {
    const asking = await daemon.launch("Accessible", "@ask bash a\n@say ok");
    await signIn(page);
    await row(page, asking).getByRole("button", { name: "Approve" }).waitFor();
    for (const view of ["#/agents", `#/task/${done.sessionID}`, `#/task/${asking.sessionID}`, "#/timeline", "#/batches", "#/batch/mine", "#/stats"]) {
      await open(page, view);
      await page.locator("h1").first().waitFor({ state: "attached" });
      await until("it is loaded", async () => (await page.getByText("Loading…").count()) === 0);
      // Over the debugger's door: the page's policy lets no script in.
      await page.evaluate(`(() => { ${axe} })()`);
      const found = await page.evaluate(async () =>
        (await window.axe.run()).violations.filter(({ impact }) => impact === "serious" || impact === "critical")
          .map(({ id, nodes }) => [id, ...nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.failureSummary}`)]));
      assert.deepEqual(found, [], view);
    }
    await page.keyboard.press("n");
    await page.getByRole("dialog").waitFor();
    const found = await page.evaluate(async () =>
      (await window.axe.run()).violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id }) => id));
    assert.deepEqual(found, [], "the dialog");
    await daemon.run("deny", asking.sessionID);
  }, { colorScheme });
}

await it("colours follow the system, and the button overrules it", async (page) => {
  await open(page);
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.getByRole("button", { name: "Colours: system" }).click();
  await page.getByRole("button", { name: "Colours: light" }).waitFor();
  assert.notEqual(await background(), dark);
  await page.reload();
  await page.getByRole("button", { name: "Colours: light" }).click();
  await page.getByRole("button", { name: "Colours: dark" }).waitFor();
  assert.equal(await background(), dark);
}, { colorScheme: "dark" });

await it("a code that is older than a minute is refused, and the page says so and stays read-only", async (page) => {
  assert.ok(daemon.codes <= 32, "else it gave way to newer ones");
  await until("a minute is over", () => Date.now() - old.at > 60_000, 70_000);
  await page.goto(old.address);
  const message = page.locator(".message.error");
  await message.getByText("this code was used before or is older than a minute; run `asyncagents dash` for a new one").waitFor();
  await page.getByText("Read-only.").waitFor();
  assert.equal(new URL(page.url()).hash, "");
  assert.equal(await page.getByRole("button", { name: "Launch…" }).count(), 0);
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

await it("a daemon that was killed is missed, and the page catches up when it is back, without its token", async (page) => {
  await signIn(page);
  await row(page, hanging).waitFor();
  const element = await row(page, done).elementHandle();
  daemon.kill();
  await page.locator('[data-connection="lost"]').waitFor();
  await row(page, hanging).waitFor();
  await daemon.run("daemon", "start");
  await daemon.find();
  const task = await daemon.launch("After the crash", "@say back");
  await row(page, task).getByRole("img", { name: "completed" }).waitFor();
  await page.locator('[data-connection="live"]').waitFor();
  assert.ok(await element.evaluate((row) => row.isConnected), "rows that are the same stay");
  await page.getByText("Read-only.").waitFor();
});

await browser.close();
if (failures.length) {
  console.error(`${failures.length} failed:\n  ${failures.join("\n  ")}`);
  process.exit(1);
}
process.exit(0);
