// Compares the results of the conformance suite with a list of expected failures, exactly. Usage:
// node compare.mjs NAME RESULTS LIST. A line of the list is the name of a scenario, or `SCENARIO
// CHECK` when the rest of the scenario passes; `#` starts a comment.
import fs from "node:fs";
import path from "node:path";

const [name, results, list] = process.argv.slice(2);
const lines = fs.readFileSync(list, "utf8").split("\n").map((line) => line.replace(/#.*/, "").trim());
const expected = new Set(lines.filter((line) => line !== ""));
const failed = new Map();
let passed = 0;
let scenarios = 0;

for (const folder of fs.readdirSync(results)) {
  const scenario = folder.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT[\d-]+Z$/, "");
  const checks = JSON.parse(fs.readFileSync(path.join(results, folder, "checks.json"), "utf8"));
  const bad = checks.filter((check) => check.status === "FAILURE");
  scenarios += 1;
  passed += checks.filter((check) => check.status === "SUCCESS").length;
  if (bad.length > 0) failed.set(scenario, bad);
}

let wrong = 0;
const met = new Set();
for (const [scenario, checks] of failed) {
  for (const check of checks) {
    const line = [scenario, `${scenario} ${check.id}`].find((line) => expected.has(line));
    met.add(line);
    if (line !== undefined) continue;
    wrong += 1;
    console.error(`${name}: ${scenario}: ${check.id}: ${check.errorMessage ?? ""}`);
  }
}
for (const line of expected) {
  if (met.has(line)) continue;
  wrong += 1;
  console.error(`${name}: ${line}: passes, or is not in the suite any more; take it off ${list}`);
}
// Otherwise a suite that did not run at all would pass.
if (scenarios < 60) {
  wrong += 1;
  console.error(`${name}: only ${scenarios} scenarios ran`);
}
console.log(`${name}: ${passed} checks passed in ${scenarios} scenarios, ${expected.size} fail as expected`);
process.exit(wrong > 0 ? 1 : 0);
