#!/usr/bin/env bash
# In headless Chromium, a page from this machine can read the API and the event stream and change nothing, and
# a page from another site cannot even read.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install-chromium.sh"

start_daemon
NODE_PATH="$tools/node_modules" CHROMIUM="$chromium" API="$url" \
  timeout 120 node tests/tools/browser.cjs
