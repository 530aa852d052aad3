"""Notes that tell the author of the code what to do, and state only what the host knows."""

import json

import pytest

import belljar
from belljar import ErrorInfo, Execution, Limits, Logs, Outcome, Result, Usage
from belljar.sandbox import advice
from belljar.sandbox.sandbox import AsyncSandbox


def failed(name, value="", outcome=Outcome.error):
    return Execution(
        outcome=outcome,
        text=None,
        value=None,
        results=(),
        stdout="",
        stderr="",
        logs=Logs(stdout=(), stderr=()),
        error=ErrorInfo(name=name, value=value, traceback=""),
        exit_code=None,
        signal=None,
        execution_count=1,
        usage=Usage(wall=1.0, cpu=None, peak_memory=None, output_bytes=0),
        state_preserved=True,
        truncated=False,
    )


def notes(name, value="", outcome=Outcome.error, **options):
    sandbox = AsyncSandbox(**{"environment": "python", "backend": "native", **options})
    return list(advice.notes(failed(name, value, outcome), sandbox._options, 30.0))


@pytest.mark.parametrize(
    ("module", "package"),
    [("seaborn", "seaborn"), ("cv2", "opencv-python-headless"), ("yaml", "pyyaml")],
)
def test_a_missing_module_names_the_package_and_both_ways_to_add_it(module, package):
    (note,) = notes("ModuleNotFoundError", f"No module named '{module}'")
    assert f"no module {module!r}" in note
    assert "environment 'python' has only the standard library" in note
    assert f'packages=["{package}"] (command line: --with {package})' in note


def test_a_missing_module_names_what_the_environment_has():
    (note,) = notes("ModuleNotFoundError", "No module named 'no_such'", environment="data")
    assert "environment 'data' has " in note
    assert "numpy" in note
    many = belljar.Environment("many", packages=[f"p{n:02}" for n in range(40)])
    (note,) = notes("ModuleNotFoundError", "No module named 'x'", environment=many)
    assert "p14 and 25 more" in note


def test_a_part_of_a_package_that_is_there_is_not_to_be_added():
    assert notes("ModuleNotFoundError", "No module named 'sklearn.x'", environment="data") == []


def test_a_module_of_the_standard_library_is_no_package():
    (note,) = notes("ModuleNotFoundError", "No module named 'tkinter'")
    assert "standard library" in note
    assert "--with" not in note


@pytest.mark.parametrize("name", ["x y", "--index-url=http://evil", "\u202eabc", "a" * 99])
def test_what_is_no_name_of_a_module_suggests_no_package(name):
    assert notes("ModuleNotFoundError", f"No module named '{name}'") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gaierror", "[Errno -3] Temporary failure in name resolution"),
        ("URLError", "<urlopen error [Errno -2] Name or service not known>"),
        ("ConnectionError", "HTTPSConnectionPool(host='api.example.com', port=443): Max retries"),
        ("ConnectError", "[Errno -2] Name or service not known"),
        ("OSError", "[Errno 101] Network is unreachable"),
    ],
)
def test_a_network_error_says_that_there_is_no_network_and_what_to_do(name, value):
    (note,) = notes(name, value)
    assert "the sandbox has no network" in note
    assert "--put FILE" in note


def test_nothing_is_said_of_networks_where_there_is_one_or_a_server_refused():
    assert notes("gaierror", "x", network="open", backend="docker") == []
    assert notes("ConnectionRefusedError", "[Errno 111] Connection refused") == []


@pytest.mark.parametrize(
    ("name", "value", "limit", "option"),
    [
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "5", "processes"),
        ("RuntimeError", "can't start new thread", "5", "processes"),
        ("OSError", "[Errno 24] Too many open files: 'x'", "40", "open_files"),
    ],
)
def test_a_count_that_is_used_up_names_its_limit(name, value, limit, option):
    (note,) = notes(name, value, limits=Limits(processes=5, open_files=40))
    assert limit in note
    assert f"Limits({option}=...)" in note


def test_a_full_workspace_names_its_size_and_the_options():
    limits = Limits(workspace="1m")
    (note,) = notes("OSError", "[Errno 28] No space left on device", limits=limits)
    assert "/workspace holds 1m" in note
    assert "--workspace-size" in note


@pytest.mark.parametrize(
    ("outcome", "limit", "option"),
    [
        (Outcome.timeout, "the time limit was 30 s", "--timeout"),
        (Outcome.out_of_memory, "the memory limit is 512m", "--memory"),
        (Outcome.output_limit, "the output limit is 1m", "--output"),
    ],
)
def test_a_limit_is_named_with_the_option_that_raises_it(outcome, limit, option):
    (note,) = notes("KeyboardInterrupt", outcome=outcome)
    assert note.startswith(limit)
    assert option in note


def test_a_missing_file_is_told_how_files_come_in():
    (note,) = notes("FileNotFoundError", "[Errno 2] No such file or directory: 'sales.csv'")
    assert "files.write()" in note
    assert "sales.csv" not in note
    assert notes("FileNotFoundError", "[Errno 2] No such file or directory: '/etc/x'") == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("[Errno 2] No such file or directory: 'sales.csv'", "sales.csv"),
        ("[Errno 2] No such file or directory: './a/b.csv'", "a/b.csv"),
        ("sales.csv not found.", "sales.csv"),
        ("[Errno 2] No such file or directory: '/etc/shadow'", None),
        ("[Errno 2] No such file or directory: '../x'", None),
        ("[Errno 2] No such file or directory: 'a/../../x'", None),
        ("[Errno 2] No such file or directory: 'a//x'", None),
        ("[Errno 2] No such file or directory: 'a\x1b[2Jx'", None),
        ("[Errno 2] No such file or directory: ''", None),
        ("anything else", None),
    ],
)
def test_only_plain_relative_paths_are_taken_from_an_error(value, path):
    error = ErrorInfo(name="FileNotFoundError", value=value, traceback="")
    assert advice.missing_file(error) == path


@pytest.mark.contract("native", "docker", "gvisor")
def test_notes_of_a_real_failure_are_in_the_execution_its_text_and_json(sandbox):
    execution = sandbox.run_code("import seaborn_is_not_here")
    assert any('packages=["seaborn_is_not_here"]' in note for note in execution.notes)
    assert "[the code found no module 'seaborn_is_not_here'" in str(execution)
    assert json.loads(execution.to_json())["notes"] == list(execution.notes)
    execution = sandbox.run_code("import urllib.request as u\nu.urlopen('http://example.com')")
    assert any("no network" in note for note in execution.notes)


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_workspace_that_is_full_says_its_limit(make_sandbox):
    sandbox = make_sandbox(limits={"workspace": "1m"})
    execution = sandbox.run_code(
        "for n in range(10):\n    open(f'f{n}', 'wb').write(bytes(500_000))"
    )
    assert any("/workspace holds 1m" in note for note in execution.notes), execution


def test_code_that_runs_to_its_end_has_no_such_notes(sandbox):
    assert sandbox.run_code("try:\n    import no_such\nexcept ImportError:\n    pass").notes == ()


# -- what an Execution offers -----------------------------------------------------------------


def test_images_are_the_pictures_in_their_order():
    parts = [
        {"image/png": b"p", "image/jpeg": b"j"},
        {"text/plain": "no picture"},
        {"image/jpeg": b"j"},
        {"image/svg+xml": "<svg/>"},
    ]
    results = tuple(Result(raw=raw, is_main_result=False) for raw in parts)
    execution = belljar.Execution(**{**vars(failed("X")), "results": results})
    assert execution.images == [b"p", b"j", b"<svg/>"]


def test_output_is_stdout_and_stderr_in_one():
    execution = belljar.Execution(**{**vars(failed("X")), "stdout": "a\n", "stderr": "b\n"})
    assert execution.output == "a\nb\n"


@pytest.mark.contract("native", "docker", "gvisor")
def test_a_repr_that_is_too_long_is_cut_and_said(make_sandbox):
    sandbox = make_sandbox(limits={"output": "1k"})
    execution = sandbox.run_code("'\u00e4' * 5000")
    assert execution.ok
    assert execution.truncated
    assert execution.text.endswith("\u00e4\u2026")
    assert len(execution.text.encode()) <= 1024
    assert any("cut after 1k" in note for note in execution.notes)


# -- names that are not there -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "meant"),
    [
        (lambda: failed("X"), "stdot", "stdout"),
        (lambda: failed("X"), "image", "images"),
        (lambda: Result(raw={}, is_main_result=True), "pngs", "png"),
        (lambda: failed("X").error, "valu", "value"),
        (lambda: belljar.Sandbox(), "run_cod", "run_code"),
        (lambda: belljar.Sandbox(), "run", "run_code"),
        (lambda: belljar.AsyncSandbox(), "comands", "commands"),
        (lambda: belljar.Sandbox().files, "writ", "write"),
        (lambda: belljar.Sandbox().commands, "runs", "run"),
        (lambda: belljar, "Sandbx", "Sandbox"),
    ],
)
def test_a_name_that_is_not_there_names_the_nearest(make, name, meant):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean '{meant}'"):
        getattr(make(), name)


def test_a_private_name_and_one_like_no_other_suggest_nothing():
    for name in ("_stdout", "__deepcopy__", "zzzzzz"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(failed("X"), name)


def test_dir_of_belljar_is_its_public_names():
    assert set(dir(belljar)) == {
        *belljar.__all__,
        *("config", "events", "functions", "observe", "policy"),
    }
