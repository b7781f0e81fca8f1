#!/usr/bin/env bash
# Measures the dashboard in Chromium, with the release build.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/install-chromium.sh"

cargo build --quiet --release --bin asyncagents
PLAYWRIGHT="$tools/node_modules" CHROMIUM="$chromium" \
  PROGRAM="${PROGRAM:-$(realpath "${CARGO_TARGET_DIR:-target}/release/asyncagents")}" \
  timeout 600 node benches/dashboard.mjs
