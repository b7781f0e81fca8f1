#!/usr/bin/env bash
# `asyncagents mcp`, driven by the official Python client of MCP.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=2.3.0
tool="$cache/mcp-$version"
if [ ! -x "$tool/bin/python" ] || ! "$tool/bin/python" -c 'import mcp' 2>/dev/null; then
  rm -rf "$tool"
  timeout 60 python3 -m venv "$tool" || give_up "cannot make a Python environment" \
    "Python 3.11 with venv is needed"
  timeout 300 "$tool/bin/pip" install --quiet --disable-pip-version-check \
    "mcp==$version" || { rm -rf "$tool"; give_up \
    "cannot install mcp $version" "is the Python package index reachable?"; }
fi

timeout 900 cargo build --quiet --bin asyncagents || give_up "cannot build asyncagents" "see above"
PROGRAM="$(realpath "${CARGO_TARGET_DIR:-target}/debug/asyncagents")" \
  timeout 300 "$tool/bin/python" -B tests/tools/mcp_client.py "$@"
