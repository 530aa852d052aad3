# Set-up shared by the scripts: source it, then call one of these. Quick when everything is there.
#
#   setup            makes .venv with the project (editable)
#   setup_tools      and with what tests, checks and benchmarks need
#   setup_docs       and with what builds the site
#   setup_beside ... makes .venv/NAME, for packages that cannot be with the tools
#   uv_install ...   uv pip install, where pip's settings say
#   say, die         progress on stderr; one sentence and out

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$ROOT/.venv

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
[ -t 2 ] || say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The first Python that will do: $PYTHON if given, python3, or a newer one beside an old python3.
find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    [ -z "${PYTHON-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    if command -v "${PYTHON:-python3}" >/dev/null; then
        die "Belljar needs Python 3.11 or later, and ${PYTHON:-python3} is $("${PYTHON:-python3}" -V 2>&1); set PYTHON=/path/to/python."
    fi
    die "There is no ${PYTHON:-python3}: install Python 3.11 or later (Debian: apt install python3 python3-venv)."
}

make_venv() {
    local python
    python=$(find_python) || exit 1
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python has no venv module: install it (Debian: apt install python3-venv)."
    say "making .venv with $("$python" -V)"
    "$python" -m venv --clear "$VENV" || die "$python could not make $VENV."
}

# uv is much faster than pip, which is for uv alone; the project's own code tells it of pip's
# settings.
uv_install() { # PYTHON REQUIREMENT...
    PYTHONPATH=$ROOT/src "$VENV/bin/python" - "$@" <<'PYTHON'
import os, sys
from belljar.environment.uv import find_uv, read_pip_files, uv_settings
env, extra = uv_settings(os.environ, read_pip_files(os.environ), allow_builds=True)
command = ["uv", "pip", "install", "--quiet", *extra, "--python", *sys.argv[1:]]
os.execve(find_uv(), command, env)
PYTHON
}

# The project and its dev tools: install_project PYTHON SOURCE.
install_project() {
    uv_install "$1" --editable "$2" --group "$2/pyproject.toml:dev"
}

# What the installation depends on: it is repeated when one of these changes.
stamp() {
    echo "$ROOT" && "$VENV/bin/python" -V && cat "$ROOT/pyproject.toml"
}

is_done() { # NAME
    [ "$(stamp)" = "$(cat "$VENV/.belljar-$1" 2>/dev/null)" ]
}

setup() {
    [ "$(uname -s)" = Linux ] || die "Belljar's native backend needs Linux, and this is $(uname -s)."
    [ -w "$ROOT" ] || die "$ROOT is not writable: .venv goes there."
    # One at a time: two scripts may be started at once.
    exec 9<"$ROOT"
    flock 9
    # Made again also when the directory has moved: the scripts in it hold its full path.
    if [ "$(head -n 1 "$VENV/.belljar-setup" 2>/dev/null)" != "$ROOT" ] ||
        ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        make_venv
    fi
    if ! is_done setup; then
        say "installing Belljar into .venv"
        PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
            "$VENV/bin/python" -m pip install -qq uv &&
            uv_install "$VENV/bin/python" --editable "$ROOT" ||
            die "The installation into .venv failed; the lines above say why."
        stamp >"$VENV/.belljar-setup"
    fi
    if [ "${1-}" = tools ] && ! is_done tools; then
        say "installing tools for tests and checks into .venv"
        install_project "$VENV/bin/python" "$ROOT" ||
            die "The installation of the tools failed; the lines above say why."
        stamp >"$VENV/.belljar-tools"
    fi
    if [ "${1-}" = docs ] && ! is_done docs; then
        say "installing what builds the site into .venv"
        uv_install "$VENV/bin/python" --group "$ROOT/pyproject.toml:docs" ||
            die "The installation of mkdocs failed; the lines above say why."
        stamp >"$VENV/.belljar-docs"
    fi
    exec 9<&-
}

setup_beside() { # NAME PYTHON REQUIREMENT...; after setup
    local place=$VENV/$1 wanted
    wanted=$(echo "$ROOT" && "$2" -V && echo "${@:3}" && cat "$ROOT/pyproject.toml")
    # One at a time: two settings of the tests may want it at once.
    exec 7<"$VENV"
    flock 7
    if [ "$wanted" != "$(cat "$place/.belljar-setup" 2>/dev/null)" ]; then
        say "installing what $1 needs into .venv/$1"
        rm -f "$place/.belljar-setup"
        "$2" -m venv --clear --without-pip "$place" &&
            uv_install "$place/bin/python" "${@:3}" || return 1
        printf '%s' "$wanted" >"$place/.belljar-setup"
    fi
    exec 7<&-
}

setup_tools() { setup tools; }
setup_docs() { setup docs; }
