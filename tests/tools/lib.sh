# Shared by the scripts here: a cache for tools, outside the tree, and a daemon of their own.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/asyncagents-test"
mkdir -p "$cache"

# give_up WHAT HINT: prints an error and exits.
give_up() {
  echo "error: $1; $2" >&2
  exit 1
}

# install_python PACKAGE VERSION: installs it into a virtual environment of its own. Sets `tool`.
install_python() {
  tool="$cache/$1-$2"
  [ ! -e "$tool/installed" ] || return 0
  rm -rf "$tool"
  timeout 300 python3 -m venv "$tool" || give_up "cannot make a Python environment" \
    "Python 3.11 with venv is needed"
  timeout 300 "$tool/bin/pip" install --quiet --disable-pip-version-check "$1==$2" ||
    give_up "cannot install $1 $2" "is the Python package index reachable?"
  touch "$tool/installed"
}

# Builds the program. With an example, because then the features that only tests need are on for its dependencies, as
# in `cargo test`: without, all of them would be compiled once more.
build_program() {
  timeout 900 cargo build --quiet --bin asyncagents --example conformance ||
    give_up "cannot build asyncagents" "see above"
}

# Starts a daemon with some tasks in a temporary directory, which is stopped when the script exits. Sets
# `url`.
start_daemon() {
  build_program
  program="${CARGO_TARGET_DIR:-target}/debug/asyncagents"
  place="$(mktemp -d /tmp/aat.XXXXXX)"
  trap 'run daemon stop >/dev/null 2>&1; rm -rf "$place"' EXIT
  run run --agent explore --description 'Find the login' '@say done' >/dev/null
  run run --agent build --batch mine --description 'Fail' '@fail overloaded' >/dev/null
  run run --agent build --batch mine --description 'Hang' '@hang' >/dev/null
  url="$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$place/home/server.json")"
}

# Runs the program in a clean environment.
run() {
  timeout 60 env -i PATH="$PATH" HOME="$place" ASYNCAGENTS_HOME="$place/home" \
    ASYNCAGENTS_HOST=scripted ASYNCAGENTS_API_PORT=0 "$program" "$@"
}
