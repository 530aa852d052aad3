"""The policy as data, and the promises of check() whatever the text."""

import json
import resource
import sys
import time
import tomllib
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.errors import InvalidOption
from belljar.policy import PRESETS, RULES, Caps, Finding, Policy, Report, Verdict
from belljar.policy.document import Document

# --- data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_the_way_through_data(name):
    policy = Policy.preset(name)
    again = Policy.from_dict(json.loads(json.dumps(policy.to_dict())))
    assert again == policy
    assert again.digest == policy.digest
    assert Policy.from_dict(tomllib.loads(policy.to_toml())) == policy


def test_each_preset_is_another_policy():
    assert len({Policy.preset(name).digest for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize("suffix", ["toml", "json", "yaml", "yml"])
def test_a_policy_is_read_by_the_suffix_of_its_file(tmp_path, suffix):
    text = {
        "toml": 'extends = "strict"\nname = "mine"\n[imports]\nallow = ["os"]\n',
        "json": '{"extends": "strict", "name": "mine", "imports": {"allow": ["os"]}}',
    }.get(suffix, "extends: strict\nname: mine\nimports:\n  allow: [os]\n")
    if suffix.startswith("y"):
        pytest.importorskip("yaml")
    path = tmp_path / f"p.{suffix}"
    path.write_text(text)
    policy = Policy.coerce(path)
    assert (policy.name, policy.document.imports.allow) == ("mine", ("os",))
    assert Policy.coerce(str(path)) == policy


BOMB = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n".join(["a0: &a0 [x, x, x]", *BOMB]), "alias"),
        ("a: &a [*a]", "alias"),
        ("rules: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("!!timestamp 9999-99-99", "is not YAML"),
    ],
)
def test_yaml_that_would_take_too_much_is_refused_unread(tmp_path, text, problem):
    pytest.importorskip("yaml")
    path = tmp_path / "p.yaml"
    path.write_text(text)
    began = time.thread_time()
    with pytest.raises(InvalidOption, match=problem):
        Policy.load(path)
    assert time.thread_time() - began < 5


def test_toml_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("rules = " + "[" * 50_000)
    with pytest.raises(InvalidOption, match="is not TOML"):
        Policy.load(path)


def test_a_missing_yaml_library_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "p.yaml"
    path.write_text("name: x")
    with pytest.raises(InvalidOption, match="pip install pyyaml"):
        Policy.load(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"improts": {}}, "did you mean 'imports'"),
        ({"rules": {"BJ999": "deny"}}, "unknown rule"),
        ({"rules": {"eval-exce": "deny"}}, "did you mean 'eval-exec'"),
        ({"rules": {"BJ201": "denied"}}, "did you mean 'deny'"),
        ({"rules": {"BJ001": "off"}}, "always denies"),
        ({"extends": "stict"}, "did you mean 'strict'"),
        ({"unknown": "maybe"}, "allow"),
        ({"imports": {"allow": "os"}}, "list of texts"),
        ({"limits": {"bytes": 0}}, "above 0"),
        ({"limits": {"byte": 1}}, "did you mean 'bytes'"),
        ({"schema": 2}, "schema 2"),
        ({"imports": []}, "is a table"),
        ([], "a table of settings"),
    ],
)
def test_a_mistake_in_a_policy_is_an_error_that_names_it(data, said):
    with pytest.raises(InvalidOption, match=said):
        Policy.from_dict(data)


def test_coerce_takes_what_the_sandbox_takes():
    strict = Policy.preset("strict")
    assert Policy.coerce("strict") is strict
    assert Policy.coerce(strict) is strict
    assert Policy.coerce({"extends": "strict"}) == strict
    with pytest.raises(InvalidOption, match="did you mean 'strict'"):
        Policy.coerce("strct")
    with pytest.raises(InvalidOption, match="not int"):
        Policy.coerce(3)
    with pytest.raises(InvalidOption, match="cannot read"):
        Policy.coerce("/nowhere/p.toml")


def test_rules_may_be_named_and_extend_a_preset():
    policy = Policy.from_dict({"extends": "strict", "rules": {"eval-exec": "note"}})
    report = policy.check("eval('1')")
    assert report.verdict is Verdict.allow
    assert [finding.severity for finding in report.findings] == ["note"]


def test_the_digest_is_of_the_content():
    one = Policy.from_dict({"extends": "strict"})
    other = Policy.from_dict({"extends": "strict", "paths": {"allow": ["./**"]}})
    assert one.digest == Policy.preset("strict").digest != other.digest


# --- reports ---------------------------------------------------------------------------------


def test_a_finding_has_its_exact_range():
    [finding] = Policy.preset("data-science").check("x = 1\ny = é + eval('1')\n").findings
    assert isinstance(finding, Finding)
    assert (finding.line, finding.column, finding.end_line, finding.end_column) == (2, 9, 2, 13)
    assert finding.snippet == "y = é + eval('1')"
    assert finding.remedy
    assert finding.to_dict()["rule"] == "BJ201"


def test_a_report_is_plain_data_and_one_line():
    report = Policy.preset("strict").check("import os\nos.system('id')\n")
    assert isinstance(report, Report)
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "deny"
    assert report.summary() == "deny: line 1: the import of os is denied [BJ101], and 1 more"
    assert report.policy == "strict@1.0"
    assert report.lines == 2
    assert not report.allowed


def test_the_policy_says_what_unknown_means():
    data = {"rules": {"BJ102": "off"}}
    code = "getattr(thing, name)"
    for word, allowed in (("allow", True), ("deny", False)):
        report = Policy.from_dict({**data, "unknown": word}).check(code)
        assert (report.verdict, report.allowed) == (Verdict.unknown, allowed)


def test_a_thousand_findings_are_cut_but_still_deny():
    report = Policy.preset("strict").check("eval('1')\n" * 3000)
    assert report.verdict is Verdict.deny
    assert len(report.findings) <= 600


# --- whatever the text -----------------------------------------------------------------------

BOMBS = {
    "not": "not " * 100_000 + "1",
    "minus": "-" * 200_000 + "1",
    "attributes": "a" + ".b" * 100_000,
    "few attributes": "a" + ".b" * 900,
    "calls": "a" + "()" * 100_000,
    "additions": "1" + "+1" * 100_000,
    "texts": "'a'" + "+'a'" * 400,
    "lambdas": "lambda:" * 50_000 + "1",
    "parentheses": "(" * 100_000,
    "brackets": "[" * 190 + "]" * 190,
    "elifs": "if a: pass\n" + "elif a: pass\n" * 20_000,
    "blocks": "\n".join(" " * depth + "if a:" for depth in range(99)) + "\n" + " " * 99 + "pass",
    "NUL": "x = 1\0",
    "lone surrogate": "x = '\ud800'",
    "large": "x = 1\n" * 2_000_000,
    "long line": "x = '" + "a" * 999_000 + "'",
    "decorators": "@a\n" * 20_000 + "def f(): pass",
    "form feed": "\f\f\fx = 1\r\ny = 2\r",
    "bom": "\ufeffimport os",
    "huge number": "9" * 10_000,
    "assigned in circles": "a = b\nb = a\na()\nb.c\n" + "a = b + a\n" * 50,
    "names that double": "".join(f"x{n} = x{n - 1} + x{n - 1}\n" for n in range(1, 60)),
    "choices that double": "".join(f"x{n} = x{n - 1} if y else x{n - 1}\n" for n in range(1, 60)),
    "times": "x = 'a' * 10**9\n__import__('a' * 10**9)\n__import__('%99999999s' % 'a')",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_judged_or_denied_and_never_raises(name):
    for preset in PRESETS:
        report = Policy.preset(preset).check(BOMBS[name])
        assert "BJ006" not in {finding.rule for finding in report.findings}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("not", "BJ003"), ("attributes", "BJ003"), ("few attributes", "BJ003")),
        *(("parentheses", "BJ001"), ("NUL", "BJ007"), ("lone surrogate", "BJ007")),
        *(("large", "BJ002"),),
    ],
)
def test_what_cannot_be_read_is_denied_by_every_preset(name, rule):
    for preset in PRESETS:
        report = Policy.preset(preset).check(BOMBS[name])
        assert [finding.rule for finding in report.findings] == [rule]
        assert not report.allowed


def test_caps_deny():
    code = "x = [1, 2, 3]\n" * 2000
    for limit, rule in (("bytes", "BJ002"), ("lines", "BJ002"), ("nodes", "BJ004")):
        policy = Policy.from_dict({"extends": "permissive", "limits": {limit: 100}})
        assert [finding.rule for finding in policy.check(code).findings] == [rule]
    hurried = Policy.from_dict({"extends": "permissive", "limits": {"seconds": 1e-9}})
    assert [finding.rule for finding in hurried.check(code).findings] == ["BJ005"]


def test_a_check_that_fails_denies(monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("belljar.policy.check.survey", broken)
    report = Policy.preset("permissive").check("x = 1")
    assert [finding.rule for finding in report.findings] == ["BJ006"]
    assert not report.allowed


@pytest.mark.parametrize("rule", ["BJ001", "BJ004", "BJ006"])
def test_no_document_turns_a_rule_off_that_says_code_was_not_checked(monkeypatch, rule):
    if rule == "BJ006":
        monkeypatch.setattr("belljar.policy.check.survey", lambda *args: 1 / 0)
    code = {"BJ001": "def", "BJ004": "x = 1\n" * 200, "BJ006": "x = 1"}[rule]
    report = Policy(Document(rules={rule: "off"}, limits=Caps(nodes=50))).check(code)
    assert [finding.rule for finding in report.findings] == [rule]
    assert not report.allowed


@pytest.mark.parametrize("name", PRESETS)
def test_a_builtin_behind_many_other_values_of_its_name_is_still_found(name):
    rebound = [f"if flag == {number}: getattr = math.a{number}" for number in range(40)]
    code = "\n".join(["import math", "flag = 1", *rebound, "getattr(x, '__globals__')"])
    report = Policy.preset(name).check(code)
    assert "BJ301" in [finding.rule for finding in report.findings]
    assert not report.allowed


def test_what_is_not_text_is_denied():
    assert not Policy.preset("permissive").check(b"x = 1").allowed


def test_a_syntax_error_has_its_position():
    [finding] = Policy.preset("permissive").check("x = 1\nif x\n    y = 2\n").findings
    assert (finding.rule, finding.line, finding.column) == ("BJ001", 2, 4)
    assert "expected ':'" in finding.message


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads it")
def test_newer_syntax_gets_a_hint():
    [finding] = Policy.preset("permissive").check("type Number = int | float\n").findings
    assert finding.rule == "BJ001"
    assert "Python 3.12" in finding.remedy


def test_checking_runs_nothing(tmp_path):
    mark = tmp_path / "mark"
    code = f"""
@(lambda f: open({str(mark)!r}, "w"))
def f(x=open({str(mark)!r}, "w")) -> open({str(mark)!r}, "w"): pass
exec("open({str(mark)!r}, 'w')")
import antigravity
"""
    Policy.preset("strict").check(code)
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_warnings_of_the_code_stay_its_own():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Policy.preset("strict").check(r"x = '\d' if 1or 2 else 3").allowed


WORDS = """import os from as eval exec ( ) [ ] { } . , : = := == + * ** @ -> lambda def class
f" ' \\ {x.__class__} 0 1 1e999 x y self __ __class__ __import__ getattr format join chr
if else for in while try except finally with async await yield return global nonlocal del
match case type pd.read_csv df.query open sys.modules é ｅ # % ! ?"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\n    ", "\t", "\0", "\ud800", "\u202e"])


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.text(), st.lists(PIECES, max_size=30).map(" ".join)))
def test_check_never_raises(text):
    for preset in ("permissive", "strict"):
        report = Policy.preset(preset).check(text)
        assert "BJ006" not in {finding.rule for finding in report.findings}
        for finding in report.findings:
            assert finding.rule in RULES
            assert finding.line >= 1
            assert finding.end_line >= finding.line
        json.dumps(report.to_dict())


@pytest.mark.parametrize(
    "code",
    [
        "x = [['a'] * 10000] * 10000\ny = x * 10",
        "x = [[['a'] * 1000] * 1000] * 1000\ny = x + x",
        f"x = '{'ab' * 9000}é'.encode('punycode')\nexec(x)",
        "x = 'a'\n" + "x = x.replace('a', 'a' * 300)\n" * 40 + "exec(x)",
        "'ｏｓ'," * 20000,
        "# ｏｓ\n" * 20000,
        "x = '" + "\u202e" * 40000 + "'",
        "x = 'a' * 90000\nexec(f'" + "{x}" * 20000 + "')",
    ],
    ids=["lists", "deeper", "codec", "replace", "texts", "comments", "controls", "joined"],
)
def test_a_short_code_cannot_make_the_host_work_for_long(code):
    """In processor time and memory: each of these once took a minute, or gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.thread_time()
    Policy.preset("strict").check(code)
    assert time.thread_time() - began < 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
