#!/usr/bin/env bash
# The OpenCode plugin: type-checks it, and runs its tests against a daemon.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

typescript=5.9.3
types=20.19.0
tool="$cache/typescript-$typescript-$types"
if [ ! -x "$tool/node_modules/.bin/tsc" ]; then
  mkdir -p "$tool"
  timeout 180 npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$tool" \
    "typescript@$typescript" "@types/node@$types" || give_up "cannot install typescript $typescript" \
    "Node 20 with npm is needed, and the npm registry"
fi

built="$(mktemp -d)"
trap 'rm -rf "$built"' EXIT
timeout 120 "$tool/node_modules/.bin/tsc" -p plugin/tsconfig.json --typeRoots "$tool/node_modules/@types" \
  --outDir "$built"
mv "$built/asyncagents.js" "$built/asyncagents.mjs"
PLUGIN="$built/asyncagents.mjs" timeout 120 node --test --test-force-exit plugin/asyncagents.test.mjs
