#!/usr/bin/env bash
# In headless Chromium a page of this machine reads the API and the stream and can change nothing, and a
# page of another site cannot even read.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=1.64.1
tool="$cache/playwright-core-$version"
if [ ! -d "$tool/node_modules/playwright-core" ]; then
  mkdir -p "$tool"
  timeout 180 npm install --silent --no-audit --no-fund --prefix "$tool" \
    "playwright-core@$version" || give_up "cannot install playwright-core $version" \
    "Node 20 with npm is needed, and the npm registry"
fi

find_chromium() {
  command -v chromium || command -v chromium-browser || command -v google-chrome
}
if ! find_chromium >/dev/null; then
  (timeout 120 apt-get update -qq && timeout 400 apt-get install -y -qq --no-install-recommends \
    chromium) >"$cache/chromium.log" 2>&1 || give_up "cannot install chromium" \
    "install it by hand; what apt said is in $cache/chromium.log"
fi

start_daemon
NODE_PATH="$tool/node_modules" CHROMIUM="$(find_chromium)" API="$url" \
  timeout 120 node tests/tools/browser.cjs
