#!/usr/bin/env bash
# The dashboard in headless Chromium against a real daemon: every view and action, live updates and reconnection,
# what a page may do without a token, hostile text, phone width, keyboard, accessibility. Before that its types, its
# unit tests and its size.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install-chromium.sh"

# The page is built by `build.rs`, which leaves it out when it cannot: here that is an error.
unset ASYNCAGENTS_SKIP_DASHBOARD
start_daemon
[ -e dashboard/dist/index.html ] || give_up "the dashboard was not built" "see the warnings of cargo build"

# The types of the API are generated, and checked in.
version=7.13.0
tool="$cache/openapi-typescript-$version"
if [ ! -d "$tool/node_modules/openapi-typescript" ]; then
  mkdir -p "$tool"
  timeout 180 npm install --silent --no-audit --no-fund --prefix "$tool" "openapi-typescript@$version" \
    "typescript@5.9.3" || give_up "cannot install openapi-typescript $version" "is the npm registry reachable?"
fi
curl -sf "$url/v1/openapi.json" >"$place/openapi.json"
timeout 60 "$tool/node_modules/.bin/openapi-typescript" "$place/openapi.json" -o "$place/schema.ts" >/dev/null 2>&1
if [ "${1:-}" = --generate ]; then
  cp "$place/schema.ts" dashboard/src/schema.ts
  exit
fi
diff -u dashboard/src/schema.ts "$place/schema.ts" ||
  give_up "dashboard/src/schema.ts is not that of this API" "run tests/tools/dashboard.sh --generate"
echo "ok: the types are those of the API"
(cd dashboard && timeout 60 npm run --silent check) || give_up "the dashboard's types are wrong" "see above"

(cd dashboard && timeout 60 npx --no-install vite build --logLevel error --ssr test/unit.ts --outDir "$place/unit")
timeout 60 node --test "$place/unit/unit.js" >"$place/unit.log" || { cat "$place/unit.log"; exit 1; }
echo "ok: $(sed -n 's/^# pass //p' "$place/unit.log") unit tests"

size=$(cat dashboard/dist/assets/*.js dashboard/dist/assets/*.css dashboard/dist/index.html | gzip -9 | wc -c)
[ "$size" -le 204800 ] || give_up "the dashboard has $size bytes compressed" "200 KB are allowed"
echo "ok: $size bytes compressed"

# A daemon with tasks of its own, always at the same port, because it is killed and started again.
PLAYWRIGHT="$tools/node_modules" CHROMIUM="$chromium" PROGRAM="$(realpath "$program")" \
  timeout 400 node tests/tools/dashboard/test.mjs
