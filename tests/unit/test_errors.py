import builtins
import doctest
import errno
import pickle
import re

import pytest

from belljar import errors
from belljar.errors import FileError, InvalidOption, SandboxError


def own_classes():
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SandboxError)]


def example(cls):
    keywords = {}
    if issubclass(cls, FileError):
        keywords = {"errno": errno.EIO, "path": "/workspace/a"}
    elif issubclass(cls, errors.ExecutionError):
        keywords = {"execution": "stands for an Execution"}
    return cls("it broke", hint="mend it", **keywords)


def test_the_examples_in_the_docstrings_are_true():
    assert doctest.testmod(errors).failed == 0


def test_the_tree_in_the_docstring_names_every_class_and_no_other():
    drawn = re.findall(r"^\s+[│├└─ ]*\b([A-Z]\w+) {2,}\S", errors.__doc__, re.MULTILINE)
    assert drawn == [c.__name__ for c in own_classes()]


def test_no_class_hides_a_builtin_of_the_same_name():
    assert not [c for c in own_classes() if hasattr(builtins, c.__name__)]


def test_str_is_the_message_and_the_hint_on_its_own_line():
    assert str(SandboxError("it broke", hint="mend it")) == "it broke\n  hint: mend it"
    assert str(SandboxError("it broke")) == "it broke"


@pytest.mark.parametrize("cls", own_classes())
def test_every_error_keeps_message_hint_and_details_through_pickle(cls):
    error = example(cls)
    error.add_note("seen on Tuesday")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "it broke\n  hint: mend it"
    assert again.__dict__ == error.__dict__
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


def test_an_invalid_option_is_a_value_error():
    assert issubclass(InvalidOption, ValueError)


@pytest.mark.parametrize(
    ("number", "builtin"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EEXIST, FileExistsError),
        (errno.ENOTDIR, NotADirectoryError),
        (errno.EISDIR, IsADirectoryError),
        (errno.EACCES, PermissionError),
        (errno.EPERM, PermissionError),
        (errno.ENOSPC, OSError),
    ],
)
def test_a_file_error_is_also_the_builtin_for_its_errno(number, builtin):
    error = errors.file_error(number, "/workspace/a")
    assert isinstance(error, FileError)
    assert isinstance(error, builtin)
    assert (error.errno, error.path, error.filename) == (number, "/workspace/a", "/workspace/a")


def test_a_file_error_says_what_and_where_and_escapes_the_path():
    assert str(errors.file_error(errno.ENOENT, "a\x1b[2J")) == (
        "No such file or directory: 'a\\x1b[2J'"
    )
    assert str(errors.file_error(errno.EIO, "a", "the disk is gone")) == "the disk is gone"


def test_a_time_out_and_a_lack_of_memory_are_caught_as_the_builtins():
    assert issubclass(errors.ExecutionTimeout, TimeoutError)
    assert issubclass(errors.ExecutionOutOfMemory, MemoryError)


def test_a_limit_that_cannot_be_enforced_is_a_backend_that_is_unavailable():
    assert issubclass(errors.LimitNotEnforceable, errors.BackendUnavailable)


def test_an_unknown_option_names_the_nearest_one_whatever_its_case():
    hint = errors.unknown_option("option", "MEMMORY", ["memory", "cpus"]).hint
    assert hint == "did you mean 'memory'? options: memory, cpus"


def test_an_unknown_option_near_to_nothing_only_lists_the_options():
    error = errors.unknown_option("backend", "zzz", iter(["native", "docker"]))
    assert error.message == "unknown backend 'zzz'"
    assert error.hint == "options: native, docker"


def test_a_word_of_a_million_letters_is_refused_at_once_and_not_repeated():
    error = errors.unknown_option("option", "x" * 1_000_000, ["memory"])
    assert len(str(error)) < 200
