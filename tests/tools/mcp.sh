#!/usr/bin/env bash
# Drives `asyncagents mcp` with the official Python MCP client.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install-mcp.sh"

build_program
PROGRAM="$(realpath "${CARGO_TARGET_DIR:-target}/debug/asyncagents")" \
  timeout 300 "$tool/bin/python" -B tests/tools/mcp_client.py "$@"
