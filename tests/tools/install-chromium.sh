#!/usr/bin/env bash
# Installs Chromium, and the library that drives it. Sets `chromium` and `tools`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=1.64.1
tools="$cache/playwright-core-$version"
if [ ! -d "$tools/node_modules/axe-core" ]; then
  mkdir -p "$tools"
  timeout 180 npm install --silent --no-audit --no-fund --prefix "$tools" \
    "playwright-core@$version" axe-core@4.14.0 || give_up "cannot install playwright-core $version" \
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
chromium="$(find_chromium)"
