# PandasAI has an interpreter and packages of its own: it is for Python 3.11 and earlier, and bound
# to numpy 1, pandas 2 and others of their time. Source setup.sh first, and call `setup`.
#
#   prepare_pandasai    makes .venv/pandasai with the project, its extra `pandasai` and what the
#                       tests import; sets PANDASAI_PYTHON, or why, and fails

PANDASAI_VENV=$VENV/pandasai
PANDASAI_PYTHON=$PANDASAI_VENV/bin/python
# pandasai-docker: what ours is compared with, by its signatures and by the clock.
PANDASAI_TOOLS=(pandasai-docker==0.1.4 hypothesis nbformat polars pytest pytest-timeout trio tzdata)

find_python_for_pandasai() {
    local candidate
    for candidate in "$(readlink -f "$VENV/bin/python")" python3.11 python3; do
        if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
        then
            echo "$candidate"
            return
        fi
    done
    return 1
}

pandasai_stamp() { # what the installation depends on
    echo "$ROOT" && "$1" -V && cat "$ROOT/pyproject.toml" "${BASH_SOURCE[0]}"
}

install_pandasai() { # PYTHON
    say "installing Belljar and PandasAI into .venv/pandasai"
    rm -f "$PANDASAI_VENV/.belljar-setup"
    "$1" -m venv --clear --without-pip "$PANDASAI_VENV" &&
        uv_install "$PANDASAI_PYTHON" --editable "$ROOT[pandasai]" "${PANDASAI_TOOLS[@]}"
}

prepare_pandasai() {
    local python
    python=$(find_python_for_pandasai) || {
        why="PandasAI needs Python 3.11, which is not on this machine"
        return 1
    }
    # One at a time: two settings may be started at once.
    exec 7<"$VENV"
    flock 7
    if [ "$(pandasai_stamp "$python")" != "$(cat "$PANDASAI_VENV/.belljar-setup" 2>/dev/null)" ]; then
        install_pandasai "$python" || {
            why="the installation of PandasAI failed; the lines above say why"
            return 1
        }
        pandasai_stamp "$python" >"$PANDASAI_VENV/.belljar-setup"
    fi
    exec 7<&-
}
