"""What the rules see, family by family, and what they must not be alarmed by."""

import tomllib

import pytest

from belljar.policy import PRESETS, Policy, Verdict
from belljar.policy.learning import Observed, learn, parse_told

STRICT = Policy.preset("strict")


def rules(code, policy=STRICT):
    return {finding.rule for finding in policy.check(code).findings}


def said(code, policy=STRICT):
    return [finding.message for finding in policy.check(code).findings]


# --- no false alarms -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('a')",
        "from re import compile\ncompile('a')",
        "df.eval('c = a + b')",
        "df.query('price > @limit and name == \"x\"')",
        "model.eval()",
        "def open(x): return x\nopen('a')",
        "def f(open): return open('a')",
        "open = lambda x: x\nopen(1)",
        "class Door:\n    def open(self): pass\nDoor().open()",
        "door.open()",
        "import io, pandas as pd\npd.read_csv(io.StringIO('a'))",
        "import io\nbuffer = io.BytesIO()\nfigure.savefig(buffer)",
        "df.to_csv()",
        "df.to_json(orient='records')",
        "text = df.to_csv(None)",
        "getattr(x, 'real')",
        "self.__class__.__name__",
        "class A:\n    def __init__(self):\n        super().__init__()",
        "'{0.real} {x[key]} {{0.__class__}}'.format(1, x=y)",
        "f'{x.real:>{width}}'",
        "print('import os; eval(x)')  # exec(y)",
        "exec_ = 1\nevaluate = 2\nmy_eval(3)",
        "import json\njson.loads('{}')",
        "import timeit\ndef f(): pass\ntimeit.timeit(f)\ntimeit.timeit(lambda: 1)",
        "from scipy import signal\nsignal.butter(3, 0.1)",
        "import numpy as np\nnp.random.rand(3)\nnp.lib.stride_tricks.sliding_window_view(a, 3)",
        "from urllib.parse import urlparse",
        "größe = 1",
        "x = 'ﬁne'  # ﬁne",
        "print(f'R² {score:.2f}, CO₂ {share}')",
        "if 'report' in locals():\n    signal = report",
        "if 'data' not in globals() or 'x' in vars():\n    data = {}",
        "a, b, c = locals()['x'], globals().get('x'), vars().get('x', 0)",
        "import operator\noperator.attrgetter('real.imag')(x)",
        "%matplotlib inline\nx = 1",
        "await tool('x')",
    ],
)
def test_honest_code_raises_no_alarm(code):
    report = STRICT.check(code)
    assert report.verdict is Verdict.allow, report.summary()


def test_globals_gives_the_variable_of_the_module_not_the_local_one():
    code = "import os\nx = os.system\ndef f():\n    x = print\n    globals()['x']('id')\n"
    policy = Policy.from_dict({"imports": {"allow": ["os"]}})
    assert [each.line for each in policy.check(code).findings if each.rule == "BJ601"] == [2, 5]


def test_yaml_with_a_safe_loader_is_not_an_alarm():
    policy = Policy.from_dict({"rules": {"BJ102": "off"}})
    assert not rules("import yaml\nyaml.load(x, Loader=yaml.SafeLoader)", policy)
    assert rules("import yaml\nyaml.load(x)", policy) == {"BJ702"}


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "eval(x)\ndef eval(y): pass",
        "if 0:\n    eval = print\neval(x)",
        "def eval(y): pass\ndel eval\neval(x)",
        "try:\n    1/0\nexcept Exception as eval: pass\neval(x)",
        "eval = eval\neval(x)",
        "def f():\n    global eval\n    eval = print\neval(x)",
        "class A:\n    eval = print\neval(x)",
    ],
)
def test_a_builtin_is_hidden_only_by_what_surely_hides_it(code):
    assert "BJ201" in rules(code)


def test_an_alias_is_reported_where_it_is_used_and_where_it_is_made():
    findings = STRICT.check("run = exec\n\nrun('x')").findings
    assert [(each.rule, each.line) for each in findings] == [("BJ201", 1), ("BJ201", 3)]


def test_code_in_a_constant_text_is_read_too():
    assert rules("exec('import socket')") == {"BJ201", "BJ101"}
    assert rules("exec('exec(\"import socket\")')") == {"BJ201", "BJ101"}


def test_a_star_import_makes_every_name_suspect():
    assert {"BJ103", "BJ601"} <= rules("from os import *\nsystem('id')")


def test_names_of_earlier_cells_mean_what_they_usually_mean():
    assert rules("os.system('id')") == {"BJ601"}
    assert rules("pd.read_csv('/etc/passwd')") == {"BJ403"}
    assert rules("subprocess.run(['id'])") == {"BJ601"}
    assert rules("def f(os): os.system('id')") == set()


def test_options_by_two_stars_hide_nothing():
    assert rules("df.to_csv(**options)") == {"BJ404"}
    assert rules("import timeit\ntimeit.timeit(**options)") == {"BJ205"}


def test_many_bindings_hide_nothing():
    code = "".join(f"m = {n}\n" for n in range(20)) + "m = 'os'\n__import__(m)"
    assert {"BJ105", "BJ106"} <= rules(code)
    assert "BJ201" in rules("".join(f"m = f{n}\n" for n in range(20)) + "m = eval\nm(x)")


def test_lines_are_counted_as_python_counts_them():
    for newline in ("\n", "\r\n", "\r"):
        [finding] = STRICT.check(f"x = '\x0c'{newline}y = eval('1')").findings
        assert (finding.line, finding.snippet) == (2, "y = eval('1')")


# --- lists -----------------------------------------------------------------------------------


def test_the_longest_entry_decides():
    policy = Policy.from_dict({"imports": {"allow": ["os.path"], "deny": ["os"]}})
    assert not rules("import os.path", policy)
    assert not rules("from os import path", policy)
    assert rules("from os import path, getpid", policy) >= {"BJ101"}
    assert rules("import os", policy) == {"BJ101"}
    assert rules("import osmium", policy) == {"BJ102"}


def test_another_name_of_a_denied_module_is_denied():
    assert rules("import posix") == {"BJ101"}


def test_names_make_exceptions():
    base = {"rules": {"BJ102": "off"}}
    policy = Policy.from_dict(
        {**base, "names": {"allow": ["os.getcwd"], "deny": ["pandas.read_clipboard", "print"]}}
    )
    assert not rules("import os\nos.getcwd()", policy)
    assert rules("import os\nos.getpid()", policy) == {"BJ604"}
    assert rules("import pandas as pd\npd.read_clipboard()", policy) == {"BJ901"}
    assert rules("print(1)", policy) == {"BJ901"}


# --- paths -----------------------------------------------------------------------------------

PATHS = Policy.from_dict(
    {"rules": {"BJ102": "off"}, "paths": {"allow": ["./**", "/data/*.csv"]}, "unknown": "allow"}
)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('a/b.txt')", set()),
        ("open('./a')", set()),
        ("open('a/../../b')", {"BJ406"}),
        ("open('../b')", {"BJ406"}),
        ("open('/etc/passwd')", {"BJ406"}),
        ("open('/data/x.csv')", set()),
        ("open('/data/../etc/passwd')", {"BJ406"}),
        ("open('/data/deep/x.csv')", {"BJ406"}),
        ("open('~/x')", {"BJ406"}),
        ("open(b'/etc/passwd')", {"BJ406"}),
        ("open(0)", {"BJ406"}),
        ("open('')", set()),
        ("open(name)", {"BJ407"}),
        ("open(file='/etc/passwd')", {"BJ406"}),
        ("f = open", {"BJ407"}),
        ("from pathlib import Path\nPath('a', 'b').read_text()", set()),
        ("from pathlib import Path\n(Path('/') / 'etc').iterdir()", {"BJ406"}),
        ("from pathlib import Path\nPath(x).unlink()", {"BJ407"}),
        ("import pandas as pd\npd.read_csv('sales.csv')", set()),
        ("import pandas as pd\npd.read_csv('/etc/passwd')", {"BJ406"}),
        ("import pandas as pd\npd.read_csv('file:///etc/passwd')", {"BJ406"}),
        ("import pandas as pd\npd.read_csv('https://x.example/a.csv')", {"BJ502"}),
        ("df.to_parquet('out.parquet')", set()),
        ("df.to_parquet('/srv/out.parquet')", {"BJ406"}),
        ("import os\nopen(os.path.join('/etc', 'passwd'))", {"BJ406"}),
        ("p = '/etc'\nopen(f'{p}/passwd')", {"BJ406"}),
        ("import os\nopen(os.path.join('data', '/etc/passwd'))", {"BJ406"}),
        ("from pathlib import Path\n(Path('data') / '/etc/passwd').open()", {"BJ406"}),
        ("from pathlib import Path\nPath('data', '/etc/passwd').open()", {"BJ406"}),
        ("for p in ('a.txt', '/etc/passwd'):\n    open(p)", {"BJ406"}),
        ("p = 'a.txt'\np = input()\nopen(p)", {"BJ407", "BJ605"}),
    ],
)
def test_paths_are_judged_by_where_they_lead(code, expected):
    assert rules(code, PATHS) == expected


# --- the strategy preset ---------------------------------------------------------------------

STRATEGY = Policy.preset("strategy")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import subprocess", "Dangerous import detected: subprocess"),
        ("import os", "Dangerous import detected: os"),
        ("from os import path", "Dangerous import detected: os"),
        ("import socket", "Dangerous import detected: socket"),
        ("import urllib.request", "Dangerous import detected: urllib.request"),
        ("import requests as r", "Dangerous import detected: requests"),
        ("import pathlib", "Dangerous import detected: pathlib"),
        ("import shutil", "Dangerous import detected: shutil"),
        ("eval('1')", "Dangerous function call detected: eval"),
        ("exec('1')", "Dangerous function call detected: exec"),
        ("open('x')", "File operation detected: open"),
        ("e = eval\ne('1')", "Dangerous function call detected: eval"),
        (
            "import pandas as pd\npd.read_csv('/etc/passwd')",
            "File operation detected: pandas.read_csv",
        ),
        (
            "import pandas as pd\npd.io.common.os.system('id')",
            "Dangerous import detected: pandas.io.common.os",
        ),
    ],
)
def test_strategy_says_what_its_document_says(code, message):
    report = STRATEGY.check(code)
    assert not report.allowed
    assert message in said(code, STRATEGY)


@pytest.mark.parametrize(
    "code",
    [
        "import pandas as pd\nimport numpy as np\nsignal = pd.DataFrame({'position': [1.0]})",
        "import re\nre.compile('x')",
        "df.eval('a + b')",
        "df.query('a > 1')",
        "import talib, math, datetime, finlab",
        "def compile(x): return x\ncompile(1)",
        "import threading\nthreading.Thread(target=print).start()",
        "signal = {'sharpe': report.sharpe} if 'report' in locals() else {}",
    ],
)
def test_strategy_allows_what_strategies_do(code):
    assert STRATEGY.check(code).allowed


@pytest.mark.parametrize(
    "code",
    [
        "names = locals()",
        "for name in globals(): print(name)",
        "keep(vars())",
        "locals()[name]",
        "locals().get(name)",
        "locals().get(*names)",
        "locals().get('x', *more)",
        "globals()['x'] = 1",
        "del globals()['x']",
        "'x' in locals() in [Spy()]",  # here the namespace itself is compared
        "'x' in (names := locals())",
        "globals()['__builtins__']",
        "globals().get('__builtins__')",
        "locals()['__loader__']",
        "names = locals\n'x' in names()",
    ],
)
def test_more_than_one_plain_name_of_a_namespace_is_refused(code):
    found = STRATEGY.check(code)
    assert not found.allowed
    assert "BJ308" in {each.rule for each in found.findings}


@pytest.mark.parametrize(
    "table",
    [
        "globals()['pd']",
        "locals()['pd']",
        "vars().get('pd')",
        "globals().get('missing', pd)",
    ],
)
def test_what_a_namespace_gives_is_judged_as_the_variable_is(table):
    report = STRATEGY.check(f"import pandas as pd\n{table}.read_csv('/etc/passwd')")
    assert not report.allowed
    walked = f"import pandas as pd\n{table}.io.common.os.system('id')"
    assert not STRATEGY.check(walked).allowed


def test_a_variable_of_a_function_is_found_in_its_namespace():
    code = "def f():\n    import pandas as q\n    locals()['q'].read_csv('/etc/passwd')"
    assert "File operation detected: pandas.read_csv" in said(code, STRATEGY)


@pytest.mark.parametrize("code", ["threading._os.system('id')", "threading.settrace(f)"])
def test_threads_are_allowed_and_what_they_reach_is_not(code):
    assert not STRATEGY.check(f"import threading\n{code}").allowed


def test_strategy_denies_subclass_walks():
    assert not STRATEGY.check("().__class__.__base__.__subclasses__()").allowed


# --- learning --------------------------------------------------------------------------------


def learned(*codes, base="strict", imported=()):
    observed = [
        Observed(name=f"{number}\n[rules].py", code=code, outcome="ok", imported=imported)
        for number, code in enumerate(codes)
    ]
    found = learn(observed, Policy.preset(base))
    text = found.to_toml()
    assert Policy.from_dict(tomllib.loads(text)) == found.policy
    return found.policy, text


@pytest.mark.parametrize("base", PRESETS)
def test_a_learned_policy_is_written_so_that_it_can_be_read(base):
    code = """import os, json
__import__('we"ird\\nname')
eval(open('x').read())
"""
    policy, text = learned(code, base=base, imported=("json",))
    assert policy.check(code).allowed
    assert not policy.check("import socket").allowed
    assert "ird" in text


def test_a_learned_policy_is_the_smallest():
    code = "import pandas as pd\npd.read_csv('a.csv')"
    policy, _ = learned(code, "x = 1")
    assert policy.document.imports.allow == ("pandas",)
    assert [rule for rule, action in policy.actions.items() if action == "off"] == ["BJ403"]
    assert policy.check("import numpy").verdict is Verdict.deny


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ('["os", "a.b", "os"]', ("os", "a.b")),
        ('["os; import x", 3, null, ""]', ()),
        ("{}", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_only_names_are_taken_from_what_the_guest_tells(told, expected):
    assert parse_told(told) == expected
