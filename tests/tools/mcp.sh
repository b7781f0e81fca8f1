#!/usr/bin/env bash
# Drives `asyncagents mcp` with the official Python MCP client.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install-mcp.sh"

timeout 900 cargo build --quiet --bin asyncagents || give_up "cannot build asyncagents" "see above"
PROGRAM="$(realpath "${CARGO_TARGET_DIR:-target}/debug/asyncagents")" \
  timeout 300 "$tool/bin/python" -B tests/tools/mcp_client.py "$@"
