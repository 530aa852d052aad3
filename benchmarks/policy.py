"""How right the policy's rules are, and what they cost: precision, recall, shares denied, speed.

`scripts/bench policy` measures, writes tests/security/policy_corpus/measured.json and the tables of
docs/guide/policy.md from it; `--show` only prints. Three corpora:

- risky: snippets written for it, with the rules that are right for each (policy_corpus)
- benign: small programs written for it, labelled likewise (some do open a file)
- real code: the standard library and the packages of this environment, read in place; nobody has
  labelled it, so it tells how often a rule fires and what is denied, not who is right
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import json
import platform
import re
import statistics
import sysconfig
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from belljar.policy import PRESETS, RULES, Policy, Report

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "security" / "policy_corpus"
MEASURED = CORPUS / "measured.json"
PAGE = ROOT / "docs" / "guide" / "policy.md"
LEFT_OUT = {"test", "tests", "idle_test", "lib2to3"}  # files that are broken on purpose
LARGE = 200  # lines; below, the fixed cost of a check is most of it


def snippets(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((CORPUS / kind).glob("*.toml")):
        for snippet in tomllib.loads(path.read_text("utf-8"))["snippet"]:
            found.append({"family": path.stem, **snippet})
    return found


def real_code() -> Iterator[Path]:
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    for root in (library, packages):
        for path in sorted(root.rglob("*.py")):
            parts = set(path.relative_to(root).parts)
            if not parts & LEFT_OUT and not (root == library and "site-packages" in parts):
                yield path


def read(path: Path) -> str | None:
    try:
        return importlib.util.decode_source(path.read_bytes())
    except (SyntaxError, UnicodeDecodeError, OSError):
        return None


# -- the labelled corpora -----------------------------------------------------------------------


def labelled() -> dict[str, Any]:
    """Precision and recall of each rule under `strict`, where all rules speak."""
    strict = Policy.preset("strict")
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    verdicts: dict[str, dict[str, Counter[str]]] = {}
    for kind in ("risky", "unseen", "benign"):
        verdicts[kind] = {name: Counter() for name in PRESETS}
        for snippet in snippets(kind):
            for name in PRESETS:
                report = Policy.preset(name).check(snippet["code"])
                verdicts[kind][name][_word(report)] += 1
            if kind == "unseen":
                continue  # it has a table of its own
            found = {finding.rule for finding in strict.check(snippet["code"]).findings}
            wanted = set(snippet["rules"])
            right.update(found & wanted)
            wrong.update(found - wanted)
            missed.update(wanted - found)
    rules = {
        identity: {"right": right[identity], "wrong": wrong[identity], "missed": missed[identity]}
        for identity in RULES
        if right[identity] + wrong[identity] + missed[identity]
    }
    return {
        "rules": rules,
        "verdicts": {
            kind: {name: dict(sorted(counts.items())) for name, counts in presets.items()}
            for kind, presets in verdicts.items()
        },
        "unseen_first": dict(Counter(snippet["first"] for snippet in snippets("unseen"))),
        "families": len({snippet["family"] for snippet in snippets("risky")}),
    }


def _word(report: Report) -> str:
    return str(report.verdict)


# -- real code ----------------------------------------------------------------------------------


def parse(code: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(code)


def cost(work: Callable[[], object]) -> float:
    """Processor time, the best of three: others use this machine too."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def measure_real(step: int) -> dict[str, Any]:
    paths = [path for number, path in enumerate(real_code()) if number % step == 0]
    denied: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    costs: list[float] = []
    parses: list[float] = []
    files = lines = 0
    for path in paths:
        code = read(path)
        if code is None:
            continue
        files += 1
        for name in PRESETS:
            report = Policy.preset(name).check(code)
            denied[name] += report.verdict == "deny"
            if name == "strict":
                fired.update({finding.rule for finding in report.findings})
                lines += report.lines
                if report.lines >= LARGE:
                    costs.append(cost(functools.partial(Policy.preset(name).check, code)))
                    parses.append(cost(functools.partial(parse, code)))
                    costs[-1] *= 1_000_000 / report.lines
                    parses[-1] *= 1_000_000 / report.lines
    return {
        "files": files,
        "lines": lines,
        "every": step,  # one file in so many
        "python": platform.python_version(),
        "denied": dict(denied),
        "fired": dict(sorted(fired.items())),
        "ms_per_1000_lines": {
            "median": round(statistics.median(costs), 1),
            "parsing": round(statistics.median(parses), 1),
            "p90": round(sorted(costs)[int(len(costs) * 0.9)], 1),
            "files": len(costs),
        },
    }


# -- tables -------------------------------------------------------------------------------------


def tables(data: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/guide/policy.md by the name of their marker."""
    return {
        "verdicts": _verdict_table(data),
        "accuracy": _accuracy_table(data),
        "rules": _rule_table(),
    }


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def _verdict_table(data: dict[str, Any]) -> str:
    real, verdicts = data["real"], data["labelled"]["verdicts"]
    total = {kind: sum(verdicts[kind]["strict"].values()) for kind in verdicts}
    speed = real["ms_per_1000_lines"]
    rows = [
        f"| preset | risky ({total['risky']}): denied or unknown "
        f"| unseen ({total['unseen']}): denied or unknown | benign ({total['benign']}): denied "
        f"| real code ({real['files']} files): denied |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in PRESETS:
        stopped = {
            kind: verdicts[kind][name].get("deny", 0) + verdicts[kind][name].get("unknown", 0)
            for kind in ("risky", "unseen")
        }
        rows.append(
            f"| `{name}` | {_share(stopped['risky'], total['risky'])} "
            f"| {_share(stopped['unseen'], total['unseen'])} "
            f"| {_share(verdicts['benign'][name].get('deny', 0), total['benign'])} "
            f"| {_share(real['denied'].get(name, 0), real['files'])} |"
        )
    first = data["labelled"]["unseen_first"]
    rows += [
        "",
        f"At first contact `strict` stopped {first['stopped']} of the {total['unseen']} unseen "
        f"snippets ({_share(first['stopped'], total['unseen'])}).",
        "",
        f"A check under `strict` took {speed['median']} ms of processor time per 1,000 lines, of "
        f"which {speed['parsing']} ms are `ast.parse` (medians of the {speed['files']} files with "
        f"at least {LARGE} lines, each the best of three; "
        f"90th percentile {speed['p90']} ms; {real['lines']:,} lines in all; "
        f"Python {real['python']}).",
    ]
    return "\n".join(rows)


def _accuracy_table(data: dict[str, Any]) -> str:
    rows = [
        "| rule | name | labelled | recall | precision | files of real code it fires in |",
        "|---|---|--:|--:|--:|--:|",
    ]
    files, fired = data["real"]["files"], data["real"]["fired"]
    for identity, rule in RULES.items():
        counts = data["labelled"]["rules"].get(identity)
        if counts is None and identity not in fired:
            continue
        right, wrong, missed = (
            (counts["right"], counts["wrong"], counts["missed"]) if counts else (0, 0, 0)
        )
        rows.append(
            f"| {identity} | {rule.name} | {right + missed} | {_share(right, right + missed)} "
            f"| {_share(right, right + wrong)} | {_share(fired.get(identity, 0), files)} |"
        )
    return "\n".join(rows)


def _rule_table() -> str:
    presets = {name: Policy.preset(name) for name in PRESETS}
    rows = [
        "| rule | name | what it says | " + " | ".join(f"`{name}`" for name in PRESETS) + " |",
        "|---|---|---|" + "---|" * len(PRESETS),
    ]
    for rule in RULES.values():
        actions = " | ".join(policy.actions[rule.id] for policy in presets.values())
        said = rule.message.replace("{name}", "…")
        rows.append(f"| {rule.id} | {rule.name} | {said} | {actions} |")
    return "\n".join(rows)


def written(page: str, made: dict[str, str]) -> str:
    """The page with its tables replaced, each between its two markers."""
    for name, table in made.items():
        pattern = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise LookupError(f"docs/guide/policy.md has no marker for {name}")
        page = pattern.sub(lambda match, new=table: f"{match[1]}{new}\n{match[2]}", page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=6, help="only each Nth file of real code")
    parser.add_argument("--show", action="store_true", help="write nothing")
    args = parser.parse_args()
    data = {"labelled": labelled(), "real": measure_real(args.every)}
    made = tables(data)
    print(made["verdicts"], made["accuracy"], sep="\n\n")
    if not args.show:
        MEASURED.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
        PAGE.write_text(written(PAGE.read_text("utf-8"), made), "utf-8")


if __name__ == "__main__":
    main()
