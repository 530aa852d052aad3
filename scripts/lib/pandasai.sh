# PandasAI has an interpreter and packages of its own: it is for Python 3.11 and earlier, and bound
# to numpy 1, pandas 2 and others of their time. Source setup.sh first, and call `setup`.
#
#   prepare_pandasai    makes .venv/pandasai with the project, its extra `pandasai` and what the
#                       tests import; sets PANDASAI_PYTHON, or why, and fails

PANDASAI_PYTHON=$VENV/pandasai/bin/python
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

prepare_pandasai() {
    local python
    python=$(find_python_for_pandasai) || {
        why="PandasAI needs Python 3.11, which is not on this machine"
        return 1
    }
    setup_beside pandasai "$python" --editable "$ROOT[pandasai]" "${PANDASAI_TOOLS[@]}" || {
        why="the installation of PandasAI failed; the lines above say why"
        return 1
    }
}
