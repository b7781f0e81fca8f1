# A command's attempts to escape. Prints `broken PROPERTY` for each guarantee it could break; the test itself
# checks for files that must not have been written.
broken() { echo "broken $1"; }

grep -rqs CANARY ~/.ssh ~/.aws ~/.config/gh && broken Credentials
grep -qs . "$STORE/token" && broken OwnFiles
grep -qs CANARY "$OTHER/file" && broken Temporary
cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | grep -q "$SECRET" && broken Environment
(exec 3< "/proc/$SENTINEL/mem") 2>/dev/null && broken Environment
[ -d "/proc/$SENTINEL" ] && broken View
kill -0 "$SENTINEL" 2>/dev/null && broken Signals
if grep -q '^CapEff:.*[1-9a-f]' /proc/self/status; then
    broken Capabilities
elif mount -o remount,rw / 2>/dev/null; then
    broken Capabilities
fi
# Test without writing: these settings apply to the whole machine.
settings=$(find -L /proc -maxdepth 5 -type f -writable ! -path '/proc/[0-9]*' ! -path '/proc/*self/*' 2>/dev/null | head -3)
[ "$settings" ] && { broken Outside; echo "can be written: $settings"; }
unshare -Urm bash -c "umount -l '$ROOT' /tmp; mount -o remount,rw /; echo x >> '$ROOT/outside/file'; \
    cat '$ROOT/.ssh/id_test'" 2>/dev/null | grep -q CANARY && broken Namespaces

# Every useful request, over socket and port, also with the token.
curl -s -o /dev/null --unix-socket "$STORE/asyncagents.sock" http://localhost/v1/health && broken Socket
# Exit code 28 is a time-out: the connection was accepted, and the service never responds.
curl -s -m 1 --unix-socket "$OTHER/service.sock" http://localhost/
[ $? = 28 ] && broken Services
ask() {
    local code
    code=$(curl -s -m 5 -o answer -w '%{http_code}' "$@")
    case $code in 403 | 000) ;; *) broken Api; echo "$code: $*" ;; esac
}
socket=(--unix-socket "$STORE/asyncagents.sock")
for door in socket port; do
    if [ $door = socket ]; then
        set -- "${socket[@]}" -H 'content-type: application/json'; base=http://localhost
    else
        set -- -H "authorization: Bearer $TOKEN" -H 'content-type: application/json'; base=http://127.0.0.1:$PORT
    fi
    ask "$@" $base/v1/health
    ask "$@" $base/v1/tasks
    ask "$@" $base/v1/events
    ask "$@" $base/v1/permissions
    ask "$@" -d '{"allow": true}' $base/v1/permissions/$ASK
    ask "$@" -d '{"description": "x", "prompt": "x", "agent": "general", "caller": {"sessionID": "cli"}}' $base/v1/tasks
    ask "$@" -d '{}' $base/v1/daemon/stop
    ask "$@" -H 'accept: application/json, text/event-stream' -d '{"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}' $base/mcp
    ask "$@" $base/v1/tasks/$PARKED
done
env -i /usr/bin/setsid -w /usr/bin/curl -s -m 5 -o answer -w '%{http_code}\n' \
    "http://127.0.0.1:$PORT/v1/tasks" | grep -q 200 && broken Api
# Connections whose local end is hard to find: from an address of the machine that is not loopback, with a
# descriptor that only one thread has, and with one that is in transit in a message while the daemon looks for
# it.
for address in $(hostname -I 2>/dev/null); do
    ask --interface "$address" -H "authorization: Bearer $TOKEN" "http://127.0.0.1:$PORT/v1/tasks"
done
cat > hide.py <<'END'
import ctypes, socket, sys, threading
port, token = int(sys.argv[1]), sys.argv[2]
def ask(connection):
    connection.sendall(f"GET /v1/tasks HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n".encode())
    if connection.recv(100).startswith(b"HTTP/1.1 200"):
        print("broken Api")
def in_a_thread():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
    ask(socket.create_connection(("127.0.0.1", port)))
def in_a_message():
    one, other = socket.socketpair()
    connection = socket.socket()
    socket.send_fds(one, [b"x"], [connection.fileno()])
    connection.connect(("127.0.0.1", port))
    connection.close()
    # Give the daemon time to look.
    threading.Event().wait(0.1)
    ask(socket.socket(fileno=socket.recv_fds(other, 1, 1)[1][0]))
for hidden in [in_a_thread] + 5 * [in_a_message]:
    thread = threading.Thread(target=hidden)
    thread.start()
    thread.join()
END
[ $NETWORK = on ] && python3 hide.py "$PORT" "$TOKEN" 2>/dev/null
for verb in "approve $ASK" 'run hello' 'list'; do
    "$PROGRAM" --home "$STORE" $verb > /dev/null 2>&1 && [ $NETWORK = on ] && broken Api
done
until [ -s own ]; do sleep 0.05; done
[ $NETWORK = on ] && curl -s -m 5 -o answer -w 'own task: %{http_code}\n' "http://127.0.0.1:$PORT/v1/tasks/$(cat own)"

(exec 3<> "/dev/tcp/127.0.0.1/$TCP") 2>/dev/null && broken Tcp
(echo x > "/dev/udp/127.0.0.1/$UDP") 2>/dev/null

echo x >> "$ROOT/outside/file"
echo x > "$ROOT/made"
chmod 700 "$ROOT/outside/file" 2>/dev/null
mkdir -p .opencode/agents .git/hooks 2>/dev/null
(
    echo x > .claude/agents/evil.md
    echo x > .opencode/agents/evil.md
    mv .claude .moved && mkdir -p .claude/agents && echo x > .claude/agents/evil.md
    echo x > .git/hooks/pre-commit
    git config core.fsmonitor x
    echo x >> .git/config
    echo ../elsewhere > .git/commondir
    mv .git .gone && mkdir .git && echo x > .git/config
    rm -rf .git/hooks && mkdir -p .git/hooks && echo x > .git/hooks/pre-commit
    ln .git/config linked && echo x >> linked
) 2>/dev/null

perl -e 'my $x = "a" x (400 << 20); exit(length $x == 0)' 2>/dev/null && broken Memory
(head -c 2000000 /dev/zero > big) 2>/dev/null
[ "$(stat -c %s big)" -ge 2000000 ] && broken FileSize
for n in 1 2 3; do head -c 900000 /dev/zero > "many$n"; done
[ "$(cat many? | wc -c)" -gt 2000000 ] && broken Disk
echo "all was tried"
# A process that escapes its guard is no longer recognised as a command. It has escaped when it has its own
# session, which `setsid --fork` does not wait for, so kill the guard only then. The daemon is stopped
# meanwhile where possible, because of a race: it learns of the guard's death before the kernel reparents the
# guard's children, and would usually, but not always, still find and kill them.
env -i /usr/bin/setsid --fork /usr/bin/bash -c "echo x > '$PWD/away1'; for n in {1..100}; do
    /usr/bin/curl -s -m 5 -o /dev/null -w '%{http_code}' -H 'authorization: Bearer $TOKEN' \
        http://127.0.0.1:$PORT/v1/tasks | /usr/bin/grep -q 200 && { echo x > '$PWD/through'; exit; }
    /usr/bin/sleep 0.1
done" > /dev/null 2>&1
env -i /usr/bin/setsid --fork /usr/bin/bash -c "echo x > '$PWD/away2'; exec sleep $SLEEP"
for n in {1..100}; do [ -e away1 ] && [ -e away2 ] && break; sleep 0.1; done
env -i /usr/bin/setsid --fork /usr/bin/bash -c "kill -STOP $DAEMON && stopped=yes
if kill -9 $PPID && [ \$stopped ]; then
    for n in {1..100}; do
        read -r _ _ _ parent _ < /proc/\$\$/stat
        [ \$parent = $PPID ] || break
        /usr/bin/sleep 0.05
    done
fi
kill -CONT $DAEMON
echo x > '$PWD/killed'" > /dev/null 2>&1
for n in {1..100}; do [ -e killed ] && break; sleep 0.1; done
true
