#!/usr/bin/env bash
# Installs the MCP clients that the tests drive (Claude Code, Codex, Gemini CLI), once, outside the tree, in
# the versions of clients/package-lock.json. Everything comes from npm; install scripts of packages are not
# run. Where the installation fails, the tests that need a client are skipped; in CI they fail.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lock=tests/tools/clients/package-lock.json
place="${ASYNCAGENTS_TEST_CACHE:-$cache}/clients"
limit="${ASYNCAGENTS_INSTALL_SECONDS:-600}"

# refuse WHAT HINT: skips the tests, or fails in CI.
refuse() {
  [ "${CI:-}" != true ] || give_up "cannot install the MCP clients: $1" "$2"
  echo "WARNING: the tests with real MCP clients are SKIPPED: $1; $2" >&2
  exit 0
}

is_installed() {
  cmp -s "$lock" "$place/installed"
}

! is_installed || exit 0
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || refuse "this is no Linux on x86-64" "use one"
command -v npm >/dev/null 2>&1 || refuse "npm is missing" "install Node 20 or newer with npm"

# A lock, because two test runs may start at the same time.
mkdir -p "$place"
exec 9>"$place/lock"
flock -w "$limit" 9 || refuse "another installation did not end within $limit s" "try again"
! is_installed || exit 0
echo "install-clients: installing into $place" >&2
cp tests/tools/clients/package.json "$lock" "$place"
timeout "$limit" npm ci --ignore-scripts --omit=optional --no-audit --no-fund --loglevel=error \
  --prefix "$place" >&2 || refuse "npm failed or took more than $limit s" "is the npm registry reachable?"
cp "$lock" "$place/installed"
