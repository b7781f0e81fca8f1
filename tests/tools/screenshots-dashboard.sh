#!/usr/bin/env bash
# Pictures of the dashboard, of a real daemon with real tasks: those of the README into docs/, or with a directory
# as the argument every view at three widths, in light and dark, with 0, 5 and 10,000 tasks.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/install-chromium.sh"

build_program
PLAYWRIGHT="$tools/node_modules" CHROMIUM="$chromium" \
  PROGRAM="$(realpath "${CARGO_TARGET_DIR:-target}/debug/asyncagents")" \
  timeout 600 node tests/tools/dashboard/screenshots.mjs "$@"
