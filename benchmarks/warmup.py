"""Which statements of a warm-up pay: faults and processor time that each saves over a corpus.

    scripts/bench warmup [--python PATH] [--rehearsal]

A fork of a process that has imported numpy, pandas and matplotlib runs the warm-up. It then forks
once for each cell of `warmup_corpus`. What such a fork copies and computes is the cost of a cell.
Compared are: no warm-up, the present one, each candidate alone, and all candidates without it.
With `--rehearsal` the fork itself runs the code before its cell, as a guest of a pool does.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import io
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

PREPARE = """
import io, json, re, traceback, numpy, pandas, matplotlib.pyplot
frame = pandas.DataFrame({"a": [2, 1, 2], "b": ["x", "y", "x"], "c": [0.5, None, 1.5]})
frame["d"] = pandas.date_range("2024-01-01", periods=3)
"""
CANDIDATES = {
    "shown": "repr(frame), frame.to_html(), frame._repr_html_()",
    "describe": "frame.describe()",
    "columns": "frame[frame.a > 1][['a', 'b']], frame.assign(e=frame.a * 2), frame.head()",
    "sums": "frame['a'].sum(), frame['c'].mean(), frame.isna().sum()",
    "groupby": "frame.groupby('b')['a'].sum(), frame.groupby('b').agg({'a': 'mean', 'c': 'max'})",
    "merge": "frame.merge(frame, on='a'), pandas.concat([frame, frame])",
    "sort": "frame.sort_values('b'), frame.nlargest(1, 'a')",
    "counts": "frame['b'].value_counts()",
    "dates": "pandas.to_datetime(pandas.Series(['2024-01-02'])), frame['d'].dt.year, "
    "frame.set_index('d')['a'].resample('MS').sum()",
    "strings": "frame['b'].str.upper().str.strip().str.replace('x', 'z')",
    "missing": "frame['c'].fillna(0), frame.dropna(), frame.drop_duplicates()",
    "pivot": "frame.pivot_table(index='b', values='a', aggfunc='sum')",
    "rolling": "frame['a'].rolling(2).mean()",
    "apply": "frame['a'].apply(lambda x: x), frame.apply(lambda row: row['a'], axis=1)",
    "corr": "frame[['a', 'c']].corr()",
    "csv": "pandas.read_csv(io.StringIO('a,b\\n1,x\\n')), frame.to_csv(), frame.to_dict('records')",
    "json": "frame.to_json(), pandas.read_json(io.StringIO('[{\"a\": 1}]'))\n"
    "json.dumps(json.loads('[1]'), indent=1)",
    "arrays": "numpy.linalg.solve(numpy.eye(2), numpy.ones(2)), numpy.linalg.svd(numpy.eye(2)), "
    "numpy.random.default_rng(0).normal(size=2), numpy.random.normal(size=2), "
    "numpy.percentile(numpy.linspace(0, 1, 3), 50), numpy.polyfit([0, 1, 2], [0, 1, 2], 1)",
    "line": "figure, axes = matplotlib.pyplot.subplots(); axes.plot([1, 2], label='a'); "
    "axes.set_title('a'); axes.legend(); figure.savefig(io.BytesIO(), format='png'); "
    "matplotlib.pyplot.close(figure)",
    "bars": "figure, axes = matplotlib.pyplot.subplots(1, 2); axes[0].bar(['a'], [1]); "
    "axes[1].scatter([1], [1]); axes[1].hist([1, 2]); figure.tight_layout(); "
    "figure.savefig(io.BytesIO(), format='png'); matplotlib.pyplot.close(figure)",
    "frame_plot": "frame['a'].plot(); matplotlib.pyplot.savefig(io.BytesIO())\n"
    "matplotlib.pyplot.close()",
    "error": "try:\n    frame['z']\nexcept KeyError:\n    traceback.format_exc()",
    "asyncio": "import asyncio\nasync def nothing(): pass\nasyncio.run(nothing())",
    "plain": "import collections, dataclasses, datetime, statistics\n"
    "collections.Counter('ab').most_common(), re.findall('a', 'b'), statistics.stdev([1, 2])\n"
    "dataclasses.make_dataclass('A', ['a'])(1) == 1",
}


def run_cell(code: str) -> None:
    """As a worker would: the last expression is shown, an error is formatted."""
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            repr(value)
            if hasattr(value, "_repr_html_"):
                value._repr_html_()
        sys.stdout.flush()
    except Exception:
        traceback.format_exc()


def in_fork(work: Callable[[], object]) -> tuple[object, float, int]:
    """What it returns, and the processor time in ms and the faults of a fork that does it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            told = json.dumps(work()).encode()
            with open(writing, "wb") as file:
                file.write(told)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:
        told = file.read()
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"a fork ended with {status}")
    return json.loads(told), (used.ru_utime + used.ru_stime) * 1000, used.ru_minflt


def measure(warmup: str, rehearsal: str, cells: dict[str, str], repeats: int) -> dict[str, object]:
    """Costs of the corpus after this warm-up; called in a fork, which becomes the zygote."""
    from belljar.backends.native import shared_pages

    started = time.process_time()
    exec(compile(warmup, "<warmup>", "exec"), {})
    took = (time.process_time() - started) * 1000
    gc.collect()
    shared_pages.make_immortal()
    gc.freeze()
    held = [shared_pages.fill_holes(), shared_pages.fill_holes()]  # noqa: F841

    def guest(code: str) -> list[float]:
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF)
        exec(compile(rehearsal, "<rehearsal>", "exec"), {})
        between = resource.getrusage(resource.RUSAGE_SELF)
        with contextlib.redirect_stdout(io.StringIO()):
            run_cell(code)
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = [each.ru_utime + each.ru_stime for each in (before, between, after)]
        return [
            (spent[2] - spent[1]) * 1000,
            after.ru_minflt - between.ru_minflt,
            (spent[1] - spent[0]) * 1000,
        ]

    costs = {}
    ahead = []
    for name, code in cells.items():
        tries = [in_fork(lambda code=code: guest(code))[0] for _ in range(repeats)]
        costs[name] = [min(each[0] for each in tries), min(each[1] for each in tries)]
        ahead.append(min(each[2] for each in tries))
    return {"warmup": took, "rehearsal": min(ahead), "cells": costs}


def total(result: dict[str, object]) -> tuple[float, int]:
    cells = result["cells"].values()
    return sum(each[0] for each in cells), sum(each[1] for each in cells)


def inside(args: argparse.Namespace) -> None:
    from warmup_corpus import CELLS

    from belljar.backends.native import shared_pages

    warnings.simplefilter("ignore")  # they would be in the way of the figures
    reserved = shared_pages.reserve_arenas()
    for name in ("numpy", "pandas", "matplotlib", "matplotlib.pyplot"):
        importlib.import_module(name)
    del reserved
    warmup, rehearsal = os.environ["WARMUP"], os.environ["REHEARSAL"]
    present = rehearsal if args.rehearsal else warmup
    plans = {"nothing": "", "present": present, "prepare": PREPARE}
    for name, code in CANDIDATES.items():
        plans[f"only {name}"] = f"{PREPARE}\n{code}\n"
    everything = [PREPARE, *CANDIDATES.values()]
    plans["all"] = "\n".join(everything)
    for name, code in CANDIDATES.items():
        plans[f"without {name}"] = "\n".join(each for each in everything if each != code)
    chosen = {name: code for name, code in plans.items() if args.only in (None, name.split()[0])}
    print(f"Python {sys.version.split()[0]}, {len(CELLS)} cells; sums over the corpus")
    print(f"{'plan':24} {'cost ms':>8} {'cells ms':>9} {'faults':>8}")
    for name, code in chosen.items():
        if args.rehearsal:
            work = lambda code=code: measure(warmup, code, CELLS, args.repeats)  # noqa: E731
        else:
            work = lambda code=code: measure(code, "", CELLS, args.repeats)  # noqa: E731
        told = in_fork(work)[0]
        spent, faults = total(told)
        cost = told["rehearsal" if args.rehearsal else "warmup"]
        print(f"{name:24} {cost:8.1f} {spent:9.1f} {faults:8d}", flush=True)
        if args.cells:
            for cell, (ms, count) in told["cells"].items():
                print(f"    {cell:20} {ms:8.1f} {count:8d}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", help="of the environment; else that of `data`")
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--only", help="nothing, present, prepare, only, all or without")
    parser.add_argument("--cells", action="store_true", help="each cell too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args)
    from belljar.environment.environment import BUILTIN, Environment, build
    from belljar.environment.uv_build import site_packages
    from belljar.pool.pooled_sandbox import choose_warmup_code

    data = BUILTIN["data"]
    if args.python:
        data = Environment(extends=data, python=args.python)
    built = build(data)
    here = Path(__file__).parent
    path = [site_packages(built.path, built.interpreter), SOURCE, here]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "MPLBACKEND": "agg",
        "WARMUP": data.warmup,
        "REHEARSAL": choose_warmup_code(data, None),
    }
    command = [built.interpreter.executable, __file__, "--inside", *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=env, check=False).returncode)


if __name__ == "__main__":
    main()
