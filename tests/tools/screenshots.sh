#!/usr/bin/env bash
# The pictures in docs/: the built program on a terminal in tmux, drawn as SVG.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tests/tools/install-tmux.sh
build_program
tools="$PWD/tests/tools"
docs="$PWD/docs"
mkdir -p "$docs"
place="$(mktemp -d /tmp/aat.XXXXXX)"
mkdir "$place/bin" "$place/tmp"
cp "${CARGO_TARGET_DIR:-target}/debug/asyncagents" "$place/bin/"
mkdir "$place/asyncagents"
git archive HEAD src README.md Cargo.toml | tar -x -C "$place/asyncagents"
cd "$place/asyncagents"

# The program and tmux, with a clean environment; agents run on this host.
host=embedded
run() {
  env -i PATH="$place/bin:/usr/bin:/bin" HOME="$place" TMPDIR="$place/tmp" LANG=C.UTF-8 TERM=xterm-256color \
    ASYNCAGENTS_HOME="$place/home-$host" ASYNCAGENTS_HOST="$host" ASYNCAGENTS_API_PORT=0 "$@"
}
screen() { run tmux -L "aashots$$" "$@"; }
finish() {
  screen kill-server >/dev/null 2>&1 || true
  for host in embedded scripted; do run asyncagents daemon stop >/dev/null 2>&1 || true; done
  rm -rf "$place"
}
trap finish EXIT

# until_shows TEXT
until_shows() {
  for _ in $(seq 300); do
    screen capture-pane -p -S - -t shot 2>/dev/null | grep -qF -- "$1" && return 0
    sleep 0.1
  done
  give_up "the screen never showed: $1" "$(screen capture-pane -p -S - -t shot)"
}

# shot NAME COLUMNS ROWS COMMAND TEXT: runs a command until the screen shows a text, and draws the screen.
shot() {
  screen new-session -d -s shot -x "$2" -y "$3" sh -c "$4; exec cat"
  until_shows "$5"
  { printf '\033[32m$\033[0m \033[1m%s\033[0m\n' "$4"; screen capture-pane -e -p -S - -t shot; } |
    sed "s#$place#~#g" | python3 "$tools/ansi_to_svg.py" "$4" > "$docs/$1.svg"
  screen kill-session -t shot
}

# Where there is nothing to ask about, the demo brings a sample.
mkdir "$place/empty"
cd "$place/empty"
shot demo 92 100 "asyncagents demo" "asyncagents mcp install"
cd "$place/asyncagents"

id="$(run asyncagents run --agent explore --description 'find how notifications are signed' \
  'Where is a webhook signed?')"
run asyncagents wait --quiet "$id"
shot output 92 40 "asyncagents output $id" "╰"

host=scripted
task() { run asyncagents run --agent "$1" --description "$2" "$3"; }
first="$(task explore 'find where the login is handled' $'@tool grep {}\n@tool read {}\n@spend 8400 0.0312\n@say src/auth.rs')"
task general 'run the tests on both databases' '@fail the model server is overloaded' >/dev/null
old="$(task build 'rename the field everywhere' '@hang')"
run asyncagents wait --quiet "$first"
run asyncagents cancel "$old" >/dev/null
task oracle 'review the migration' $'@spend 15200 0.2104\n@tool read {}\n@slow-tool grep 600000' >/dev/null
task build 'make the search case-insensitive' $'@tool read {}\n@tool edit {}\n@spend 4100 0.0188\n@slow-tool bash 600000' >/dev/null
task build 'upgrade the dependencies' $'@tool read {}\n@ask bash npm install --save-exact left-pad\n@say done' >/dev/null
for _ in $(seq 100); do
  [ "$(run asyncagents list --status running | grep -cE 'running, (tool|blocked)')" = 3 ] && break
  sleep 0.1
done
# So that there is some time to show.
sleep 3
shot list 100 20 "asyncagents list" "find where the login"
shot wait 120 20 "asyncagents wait" "running, blocked"
