#!/usr/bin/env bash
# Installs what the tests against a real OpenCode need, once, outside the tree: the program itself and
# ripgrep, without which its search tools do not work offline. Everything comes from npm; install scripts of
# packages are not run.
set -euo pipefail

version=1.18.34
cache=${ASYNCAGENTS_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/asyncagents-test}
place=$cache/oc
program=$place/node_modules/opencode-linux-x64/bin/opencode
limit=${ASYNCAGENTS_INSTALL_SECONDS:-600}

fail() {
    echo "install-opencode: $1" >&2
    exit 1
}

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "the tests know OpenCode for Linux on x86-64 only"

is_installed() {
    [ -x "$program" ] && grep -q "\"version\": *\"$version\"" "$place/node_modules/opencode-linux-x64/package.json"
}

has_ripgrep() {
    command -v rg >/dev/null 2>&1 || [ -x "$place/node_modules/@vscode/ripgrep-linux-x64/bin/rg" ]
}

# install PACKAGE PURPOSE
install() {
    command -v npm >/dev/null 2>&1 || fail "npm is needed to install $1 ($2)"
    mkdir -p "$place"
    echo "install-opencode: installing $1 into $place" >&2
    timeout "$limit" npm install --ignore-scripts --no-audit --no-fund --loglevel=error \
        --prefix "$place" "$1" >&2 ||
        fail "npm could not install $1 ($2) within $limit s; is the registry reachable?"
}

if is_installed && has_ripgrep; then
    exit 0
fi

# A lock, because two test runs may start at the same time.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock -w "$limit" 9 || fail "another installation did not end within $limit s"

is_installed || install "opencode-linux-x64@$version" "the server under test"
is_installed || fail "$program is not there after its installation"
has_ripgrep || install "@vscode/ripgrep-linux-x64@1.18.0" "the search tools of the server"
has_ripgrep || fail "ripgrep is not there after its installation"
