#!/usr/bin/env bash
# Installs the official Python MCP client for its tests and benchmark. Sets `tool`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_python mcp 2.3.0
