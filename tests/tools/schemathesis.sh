#!/usr/bin/env bash
# Fuzzes a real daemon from its OpenAPI document, with valid and invalid requests: no response may be a 5xx or
# contradict the document. The event stream never ends and is left to tests/it/http/events.rs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

install_python schemathesis 4.32.5
start_daemon
# check NAME ARGUMENTS…: runs schemathesis, and prints its output only on failure.
check() {
  echo "schemathesis: $1"
  timeout 180 "$tool/bin/schemathesis" "${@:2}" >"$place/out" 2>&1 || { cat "$place/out"; exit 1; }
  tail -n 1 "$place/out"
}
all=(run "$url/v1/openapi.json" --checks all --seed 5165 --request-timeout 10 --no-color)
check "anything at all" "${all[@]}" --max-examples 20 --exclude-path /v1/events
# Generated ids hardly ever exist, so the routes with an id run again with an existing one.
printf '[parameters]\n"path.id" = "%s"\n' "$(run list --json | sed -n 's/.*"sessionID": *"\([^"]*\)".*/\1/p' | head -1)" \
  >"$place/task.toml"
printf '[parameters]\n"path.id" = "mine"\n' >"$place/group.toml"
check "a task there is" --config-file "$place/task.toml" "${all[@]}" --max-examples 10 \
  --include-path-regex '^/v1/tasks/\{id\}'
check "a group there is" --config-file "$place/group.toml" "${all[@]}" --max-examples 10 \
  --include-path '/v1/task-groups/{id}'
