#!/usr/bin/env bash
# Installs the official Python client of MCP, for its tests and its benchmark. Sets `tool`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_python mcp 2.3.0
