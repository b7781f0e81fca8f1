#!/usr/bin/env bash
# Installs tmux, through which the tests drive OpenCode's terminal interface.
set -euo pipefail
command -v tmux >/dev/null 2>&1 && exit 0
(timeout 120 apt-get update -qq && timeout 200 apt-get install -y -qq --no-install-recommends tmux) \
    >/dev/null || {
    echo "install-tmux: cannot install tmux; install it by hand" >&2
    exit 1
}
