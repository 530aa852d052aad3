"""The cells of our own around generated code. They run in the guest, and are believed nothing.

Generated code leans on names that PandasAI puts before it (pd, np, plt; and what the serializer of
pandasai_docker happened to import), and on a directory for charts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

CHARTS = "exports/charts"  # PandasAI writes this directory into the code; below the workspace
FIGURE = f"{CHARTS}/figure.png"

_MODULES = {
    "pd": "pandas",
    "np": "numpy",
    "plt": "matplotlib.pyplot",
    **{name: name for name in ("base64", "datetime", "json", "os", "tarfile")},
}

# Between two executions: whatever still runs is ended (a signal to -1 spares init and its sender),
# and files and shared memory go. It fails if something stays.
SCRUB = """
kill -9 -1
chmod -R u+rwx /workspace /tmp /dev/shm 2>/dev/null
for place in /workspace /dev/shm /tmp; do
    cd "$place" || continue
    for found in ..?* .[!.]* *; do
        [ -e "$found" ] || [ -L "$found" ] || continue
        rm -rf -- "./$found" || exit 1
    done
done
ipcrm -a 2>/dev/null
for kind in shm msg sem; do
    [ ! -r /proc/sysvipc/$kind ] || [ "$(wc -l < /proc/sysvipc/$kind)" -le 1 ] || exit 1
done
"""

# savefig("/home/me/chart.png") cannot work in here. pandasai_docker put another path into the text
# of the code; here the text stays, and a picture whose directory cannot be made goes to CHARTS.
_SAVING = f"""
def __belljar_saving():
    import functools, os
    from matplotlib.figure import Figure
    plain = Figure.savefig

    @functools.wraps(plain)
    def savefig(self, fname, *args, **kwargs):
        if isinstance(fname, (str, os.PathLike)):
            folder = os.path.dirname(os.fspath(fname))
            try:
                os.makedirs(folder or ".", exist_ok=True)
                writable = os.access(folder or ".", os.W_OK)
            except OSError:
                writable = False
            if not writable:
                fname = os.path.join({CHARTS!r}, os.path.basename(os.fspath(fname)))
        return plain(self, fname, *args, **kwargs)

    Figure.savefig = savefig

__belljar_saving()
del __belljar_saving
"""

# A result that cannot travel: a figure instead of the path of its picture.
FINISH = f"""
if isinstance(result, dict) and result.get("type") == "plot":
    __belljar_figure = getattr(result.get("value"), "figure", result.get("value"))
    if hasattr(__belljar_figure, "savefig"):
        __belljar_figure.savefig({FIGURE!r})
        result = dict(result, value={FIGURE!r})
    elif hasattr(result.get("value"), "__fspath__"):
        result = dict(result, value=str(result["value"]))
"""


def preparation(code: str, environment: Mapping[str, object]) -> str:
    """The cell that runs before `code`: modules it may mention, and the directory for charts."""
    modules = dict(_MODULES)
    for name, value in environment.items():
        if isinstance(value, ModuleType) and name.isidentifier():
            modules[name] = value.__name__
    lines = [f"import os as __belljar_os\n__belljar_os.makedirs({CHARTS!r}, exist_ok=True)"]
    # Only what is mentioned: in an image of the caller's an import may be slow, or impossible.
    lines += [
        f"try:\n    import {module} as {name}\nexcept ImportError:\n    pass"
        for name, module in modules.items()
        if name in code and all(part.isidentifier() for part in module.split("."))
    ]
    if "savefig" in code or "plot" in code:
        saving = _SAVING.strip().replace("\n", "\n    ")
        lines.append(f"try:\n    {saving}\nexcept ImportError:\n    pass")
    return "\n".join([*lines, "del __belljar_os"])
