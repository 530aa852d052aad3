# A Docker engine for a machine that is ours to set up, such as that of CI. Source setup.sh first.
#
#   install_engine     Debian's packages: the engine, gVisor's runsc, debootstrap for the base image,
#                      strace, by which tests break things, and python3-venv, if they are missing
#   start_engine       unless one answers already; needs no init system
#   register_runsc     with the engine that answers
#   stop_engine        only the one that start_engine started

ENGINE_LOG=/var/log/belljar-dockerd.log
engine_pid=""

engine_answers() { timeout 20 docker info >/dev/null 2>&1; }

install_engine() {
    local program missing=()
    for program in dockerd:docker.io runsc:runsc debootstrap:debootstrap strace:strace; do
        command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
    done
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
        apt-get install -qy --no-install-recommends ca-certificates "${missing[@]}"
}

start_engine() {
    engine_answers && return
    say "starting dockerd; its log is $ENGINE_LOG"
    # Its own session: a Ctrl-C that ends the tests must leave it time to end their containers.
    setsid dockerd >"$ENGINE_LOG" 2>&1 </dev/null &
    engine_pid=$!
    local tries
    for tries in {1..120}; do
        engine_answers && return
        kill -0 "$engine_pid" 2>/dev/null || break
        sleep 0.5
    done
    tail -n 30 "$ENGINE_LOG" >&2
    die "dockerd did not start; the end of $ENGINE_LOG is above."
}

# In the engine's own settings, which it reads again when told: so it does not matter who started
# it, and what else is in them stays. runsc has no network in it: it would not start otherwise
# where it takes the container's network for the host's (gVisor of 2022 on Linux 6.x), and guests
# have none anyway. Its platform is the one it chooses itself.
register_runsc() {
    docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"' && return
    local pid
    pid=$(cat /var/run/docker.pid 2>/dev/null) || die "The engine that answers is not dockerd of this machine: register runsc with it."
    say "registering runsc"
    python3 - /etc/docker/daemon.json "$(command -v runsc)" <<'PYTHON'
import json, os, sys
path, runsc = sys.argv[1:]
settings = {}
if os.path.exists(path):
    with open(path) as file:
        settings = json.load(file)
settings.setdefault("runtimes", {})["runsc"] = {"path": runsc, "runtimeArgs": ["--network=none"]}
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path + ".new", "w") as file:
    json.dump(settings, file, indent=4)
os.replace(path + ".new", path)
PYTHON
    kill -HUP "$pid"
    local tries
    for tries in {1..40}; do
        docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"' && return
        sleep 0.25
    done
    die "The engine does not know runsc, though it is in /etc/docker/daemon.json."
}

stop_engine() {
    [ -n "$engine_pid" ] || return 0
    kill "$engine_pid" 2>/dev/null || true
    wait "$engine_pid" 2>/dev/null || true
    engine_pid=""
}
