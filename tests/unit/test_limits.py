import contextlib
import copy
import dataclasses
import doctest
import inspect
import pickle
import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar import limits as limits_module
from belljar.backends import base
from belljar.backends.base import GuestSpec
from belljar.backends.isolation import Layer
from belljar.environment.environment import Environment
from belljar.errors import InvalidOption, LimitNotEnforceable
from belljar.limits import RULES, Limits, format_size, parse_size
from belljar.sandbox.options import make_options

SIZES = ["memory", "workspace", "tmp", "output"]


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(limits_module).failed == 0


# Sizes


@given(st.integers(0, 2**64))
def test_a_formatted_size_is_parsed_back_to_the_same_number(n):
    assert parse_size(format_size(n), field="memory") == n


@given(st.text() | st.from_regex(r"\s*[\d.]+\s*[kmgtKMGTib]*\s*"))
def test_any_text_is_a_size_or_an_invalid_option(text):
    with contextlib.suppress(InvalidOption):
        assert parse_size(text, field="memory") >= 0


@given(st.integers(0, 10**6), st.sampled_from(["k", "m", "g", "t"]), st.sampled_from(["b", "ib"]))
def test_case_space_and_suffix_do_not_change_a_size(n, unit, suffix):
    size = parse_size(f"{n}{unit}", field="tmp")
    assert parse_size(f" {n} {unit.upper()}{suffix} ", field="tmp") == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10b", 10),
        ("10", 10),
        ("64k", 65536),
        ("512M", 2**29),
        ("1.5g", 3 * 2**29),
        ("1TiB", 2**40),
    ],
)
def test_units_are_multiples_of_1024(text, size):
    assert parse_size(text, field="memory") == size


@pytest.mark.parametrize(
    "value",
    [
        *("", "m", "-1", "1.5", "1.5b", "1e6", "1_000", "1 0k", "10ib", "0x10", "nan", "inf", "1p"),
        *("1\u212a", "٣k", "1k\x00", "9" * 5000, "1." + "0" * 5000 + "k"),
        *(-1, -(10**5000), True, None, 1.0, b"1k", [10**5000]),
    ],
    ids=lambda value: type(value).__name__,  # an integer of 5,000 digits cannot be printed
)
def test_what_is_not_a_size_is_refused(value):
    with pytest.raises(InvalidOption, match=r"^tmp=.* is not a size") as caught:
        parse_size(value, field="tmp")
    assert len(str(caught.value)) < 300


def test_a_fraction_of_a_byte_is_rounded_down():
    assert parse_size("0.1k", field="tmp") == 102


# Limits


def test_the_defaults_are_the_documented_ones():
    assert Limits() == Limits(
        memory="512m",
        cpus=1.0,
        processes=64,
        open_files=256,
        workspace="256m",
        tmp="100m",
        output="1m",
        timeout=30.0,
        host_time=60.0,
        lifetime=None,
        idle=None,
    )


def test_sizes_given_as_text_are_read_as_bytes():
    assert Limits(memory="1g", tmp=65536).to_dict() == {
        **Limits().to_dict(),
        "memory": 2**30,
        "tmp": 65536,
    }


def test_limits_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Limits().memory = 1


def test_limits_are_keyword_only():
    with pytest.raises(TypeError):
        Limits("512m")


@pytest.mark.parametrize("name", RULES)
def test_the_ends_of_a_range_are_allowed_and_what_lies_beyond_is_not(name):
    rule = RULES[name]
    for end in (rule.low, rule.high):
        assert getattr(Limits(**{name: end}), name) == end
    for beyond in (rule.low * 0.99, rule.high * 1.01):
        value = beyond if rule.kind == "number" else round(beyond) - (beyond < rule.low)
        with pytest.raises(InvalidOption) as caught:
            Limits(**{name: value})
        assert f"{name}={value}" in caught.value.message
        assert rule.range in caught.value.message


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "value",
    [
        *(True, False, float("nan"), float("inf"), float("-inf")),
        *(10**5000, -(10**5000), -1, "", "x", [1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_limit_takes_nonsense(name, value):
    with pytest.raises(InvalidOption, match=f"^{name}="):
        Limits(**{name: value})


@pytest.mark.parametrize("name", RULES)
def test_only_the_times_may_be_none(name):
    if name in {"timeout", "host_time", "lifetime", "idle"}:
        assert getattr(Limits(**{name: None}), name) is None
    else:
        with pytest.raises(InvalidOption, match=f"^{name}=None"):
            Limits(**{name: None})


@pytest.mark.parametrize("name", ["processes", "open_files"])
def test_a_count_is_a_whole_number(name):
    with pytest.raises(InvalidOption, match="whole number"):
        Limits(**{name: 64.0})


def test_an_error_states_the_range_in_the_units_one_would_write():
    with pytest.raises(InvalidOption, match=re.escape("memory='8m' is out of range")) as caught:
        Limits(memory="8m")
    assert "16m to 1t" in str(caught.value)
    with pytest.raises(InvalidOption, match="or None for no limit"):
        Limits(timeout=0)


def test_an_unknown_limit_names_the_nearest_one():
    with pytest.raises(InvalidOption, match=r"unknown limit 'memmory'\n.*did you mean 'memory'"):
        Limits(memmory="1g")
    with pytest.raises(InvalidOption, match="unknown limit 'self'"):
        Limits.coerce({"self": 1})
    with pytest.raises(InvalidOption, match="unknown limit '7'"):
        Limits.coerce({7: 1})


def test_what_was_passed_is_explicit_even_if_it_is_the_default():
    assert Limits().explicit == frozenset()
    assert Limits(memory="512m", idle=None).explicit == {"memory", "idle"}


def test_explicit_is_no_part_of_equality_hash_and_repr():
    passed, default = Limits(memory="512m"), Limits()
    assert passed == default
    assert hash(passed) == hash(default)
    assert repr(passed) == repr(default)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda limits: pickle.loads(pickle.dumps(limits))]
)
def test_explicit_survives_copy_and_pickle(again):
    limits = Limits(memory="1g", cpus=2)
    assert again(limits) == limits
    assert again(limits).explicit == {"memory", "cpus"}


def test_replace_keeps_the_rest_and_adds_to_what_is_explicit():
    old = Limits(memory="1g")
    new = old.replace(cpus=2, timeout=None)
    assert new == Limits(memory="1g", cpus=2.0, timeout=None)
    assert new.explicit == {"memory", "cpus", "timeout"}
    assert old.explicit == {"memory"}
    with pytest.raises(InvalidOption):
        old.replace(cpu=2)


@pytest.mark.skipif(not hasattr(copy, "replace"), reason="copy.replace() is new in Python 3.13")
def test_copy_replace_is_replace():
    assert copy.replace(Limits(memory="1g"), cpus=2).explicit == {"memory", "cpus"}


def test_coerce_takes_nothing_limits_or_a_mapping_and_refuses_the_rest():
    limits = Limits(memory="1g")
    assert Limits.coerce(limits) is limits
    assert Limits.coerce(None) == Limits()
    assert Limits.coerce({"memory": "1g"}) == limits
    assert Limits.coerce({"memory": "1g"}).explicit == {"memory"}
    assert Limits.coerce(limits.to_dict()) == limits
    for wrong in ("1g", 5, ["memory"], True):
        with pytest.raises(InvalidOption, match=r"^limits="):
            Limits.coerce(wrong)


def test_the_signature_that_people_see_has_every_limit_and_its_default():
    shown = {name: p.default for name, p in inspect.signature(Limits).parameters.items()}
    assert shown == Limits().to_dict()


def test_the_signature_that_type_checkers_see_has_every_limit():
    source = inspect.getsource(Limits)
    typed = source[source.index("def __init__(") : source.index(") -> None: ...")]
    assert re.findall(r"(\w+): (.*) = \.\.\.", typed) == [
        (f.name, "int | str" if f.name in SIZES else f.type)
        for f in dataclasses.fields(Limits)
        if f.name in RULES
    ]


# -- limits that a host cannot enforce -----------------------------------------------------------


def check(state, *, strict=None, **given):
    layer = Layer(name="memory", state=state, detail="no group", remedy="get one")
    spec = GuestSpec(
        id="x", environment=Environment("python"), limits=Limits(**given), strict=strict
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        base.check_limits(spec, [layer], "this host")
    return [str(each.message) for each in said]


def test_best_effort_is_a_warning_for_a_limit_that_was_set_and_silence_for_a_default():
    assert check("best-effort") == []
    (said,) = check("best-effort", memory="64m")
    assert "this host cannot enforce the limit memory: no group" in said
    assert check("best-effort", memory="64m", strict=False) == []
    assert check("enforced", memory="64m", strict=True) == []


@pytest.mark.parametrize(
    ("state", "options"),
    [
        ("best-effort", {"strict": True}),
        ("absent", {"strict": True}),
        ("absent", {"memory": "64m"}),
    ],
)
def test_a_limit_that_nothing_keeps_or_that_must_be_enforced_is_refused(state, options):
    with pytest.raises(LimitNotEnforceable, match="memory") as caught:
        check(state, **options)
    assert caught.value.hint == "get one; strict=False starts without it"
    assert check("absent", memory="64m", strict=False) == []


def test_a_limit_that_was_raised_is_best_effort_without_a_warning():
    assert check("best-effort", memory="2g") == []
    assert check("absent", memory="2g") == []
    assert check("best-effort", memory="512m") != []  # the default, but asked for
    with pytest.raises(LimitNotEnforceable, match="memory"):
        check("best-effort", memory="2g", strict=True)


def test_strict_can_name_the_limits_that_must_be_enforced():
    with pytest.raises(LimitNotEnforceable, match="memory"):
        check("best-effort", memory="2g", strict=frozenset({"memory"}))
    assert check("best-effort", memory="2g", strict=frozenset({"cpus"})) == []
    assert check("best-effort", memory="64m", strict=frozenset({"cpus"})) != []
    assert make_options({"strict": ["memory", "cpus"]}).strict == {"memory", "cpus"}
    with pytest.raises(InvalidOption, match="unknown limit 'memmory'"):
        make_options({"strict": {"memmory"}})
    for wrong in ("memory", 1):
        with pytest.raises(InvalidOption, match="strict is True, False, None or names"):
            make_options({"strict": wrong})


def test_raised_limits_are_those_above_their_default():
    assert Limits().raised == frozenset()
    assert Limits(memory="513m", cpus=1, processes=63, timeout=None).raised == {"memory", "timeout"}
    assert Limits(lifetime=5, idle=None).raised == frozenset()
