"""Notes for the author of code that failed: what the sandbox has and has not, and what to do. And
what to tell a model of the sandbox before it writes any code.

What the guest says (the name and the text of an exception) only decides which note is given. What
a note states is known to the host: the limits, the packages of the environment, that there is no
network. Nothing here looks at the host's files, so that code cannot ask for them by failing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from belljar.backends.linux.guest_view import HOME
from belljar.backends.mounts import Scratch
from belljar.functions.registry import Registry
from belljar.limits import format_size
from belljar.protocol import messages
from belljar.results.execution import ErrorInfo, Execution, Outcome
from belljar.sandbox.options import Options
from belljar.text import format_bytes, one_line

SHOWN = 15  # packages of an environment that are named
_MODULE = re.compile(r"No module named '([A-Za-z_]\w{0,63})((?:\.\w{1,64}){0,10})'", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Of Python itself, and of numpy, which leaves the quotes out.
_FILE = re.compile(r"No such file or directory: '([^'\\]{1,255})'|([^'\\]{1,255}) not found\.")

# Modules that are installed under another name.
DISTRIBUTIONS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "Levenshtein": "levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "talib": "ta-lib",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}

_NETWORK_ERRORS = frozenset(
    (
        *("gaierror", "herror", "URLError", "ConnectionError", "ConnectTimeout", "ConnectError"),
        *("ProxyError", "NewConnectionError", "MaxRetryError", "NameResolutionError"),
        *("ClientConnectorError", "ClientConnectorDNSError", "ServerNotFoundError"),
        *("APIConnectionError", "EndpointConnectionError", "TransportError"),
    )
)
_NETWORK_WORDS = (
    *("Network is unreachable", "Temporary failure in name resolution"),
    *("Name or service not known", "Failed to resolve", "nodename nor servname"),
)
# Errno 27 is what one file gets; sqlite and numpy have words of their own.
_PROCESS_WORDS = ("[Errno 11] Resource temporarily unavailable", "can't start new thread")
_FULL_WORDS = ("[Errno 27]", "No space left on device", "disk is full", "Not enough free space")


def notes(execution: Execution, options: Options, timeout: float | None) -> Iterator[str]:
    """What to do about how a run ended. `timeout`: that of the run, in seconds."""
    limits, error = options.limits, execution.error
    if execution.outcome is Outcome.timeout and timeout is not None:
        yield (
            f"the time limit was {timeout:g} s: allow more with timeout=..., or "
            "Limits(timeout=...) (command line: --timeout SECONDS)"
        )
    elif execution.outcome is Outcome.out_of_memory:
        yield (
            f"the memory limit is {format_size(limits.memory)}: use less at once, or allow more "
            "with Limits(memory=...) (command line: --memory SIZE)"
        )
    elif execution.outcome is Outcome.output_limit:
        yield (
            f"the output limit is {format_size(limits.output)}: print less, or allow more with "
            "Limits(output=...) (command line: --output SIZE)"
        )
    elif execution.outcome is Outcome.error and error is not None:
        yield from _notes_of_error(error, options)


def _notes_of_error(error: ErrorInfo, options: Options) -> Iterator[str]:
    if error.name in ("ModuleNotFoundError", "ImportError"):
        module = missing_module(error)
        note = None if module is None else _missing_module(module, options)
        if note is not None:
            yield note
    elif error.name == "SyntaxError" and "'return' outside function" in error.value:
        yield "run_code(code, allow_return=True) lets code return its value at the top level"
    elif any(word in error.value for word in _FULL_WORDS):
        limits = options.limits
        yield (
            f"room for files is limited: {options.workdir} holds {format_size(limits.workspace)}, "
            f"/tmp {format_size(limits.tmp)}; allow more with Limits(workspace=..., tmp=...) "
            "(command line: --workspace-size SIZE, --tmp SIZE)"
        )
    elif any(word in error.value for word in _PROCESS_WORDS):
        yield (
            f"{options.limits.processes} processes and threads may be alive at once: end some, or "
            "allow more with Limits(processes=...) (command line: --processes TASKS)"
        )
    elif "[Errno 24]" in error.value:
        yield (
            f"a process may have {options.limits.open_files} open files: close some, or allow more "
            "with Limits(open_files=...) (command line: --open-files FILES)"
        )
    elif options.network == "none" and _is_network_error(error):
        yield (
            "the sandbox has no network: fetch the data on the host and put it in, with put(), "
            "files.write() or a host function (command line: --put FILE)"
        )
    elif missing_file(error) is not None:
        yield (
            f"the code finds the files that are in {options.workdir}: put others there first, "
            "with files.write() or files.upload() (command line: --put FILE)"
        )


def missing_module(error: ErrorInfo) -> str | None:
    """The module that the code says it has not found: its first part, a plain name."""
    found = _MODULE.match(error.value)
    return None if found is None or error.name != "ModuleNotFoundError" else found[1]


def missing_file(error: ErrorInfo) -> str | None:
    """The relative path that the code says it has not found: without `..`, and printable."""
    found = _FILE.search(error.value) if error.name == "FileNotFoundError" else None
    path = "" if found is None else found[1] or found[2]
    parts = path.removeprefix("./").split("/")
    if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        return None  # absolute paths have an empty part
    return "/".join(parts)


def _is_network_error(error: ErrorInfo) -> bool:
    if "refused" in error.value:  # by a server of the code's own: that is no matter of networks
        return False
    return error.name in _NETWORK_ERRORS or any(word in error.value for word in _NETWORK_WORDS)


def _missing_module(module: str, options: Options) -> str | None:
    said = f"the code found no module {module!r}"
    if module in sys.stdlib_module_names:
        return f"{said}: it belongs to the standard library of some Pythons, but not of this one"
    if options.docker.image is not None or options.docker.dockerfile is not None:
        return f"{said}: the sandbox has what its image has; install it there"
    environment = options.environment
    names = [_NAME.match(package.rpartition("/")[2]) for package in environment.packages]
    packages = [name[0] for name in names if name is not None]
    package = DISTRIBUTIONS.get(module, module)
    if re.sub(r"[-_.]+", "-", package).lower() in packages:
        return None  # it is there, and the code misses a part of it, or says what is not so
    more = len(packages) - SHOWN
    listed = ", ".join(packages[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{said}: environment {environment.name!r} has {listed or 'only the standard library'}; "
        f'add it with packages=["{package}"] (command line: --with {package})'
    )


# -- before any code ------------------------------------------------------------------------------

MOST_FUNCTIONS = 30
MOST_MOUNTS = 10
_LINE = 200  # characters of one function


def describe_sandbox(options: Options, backend: str, functions: Registry | None) -> str:
    """What a system prompt should say of a sandbox, in a few lines."""
    limits, docker = options.limits, options.docker
    image = docker.image is not None or docker.dockerfile is not None
    python = "Python, with the packages of a container image" if image else None
    python = python or options.environment.describe(versions=backend != "docker")
    said = [
        f"The code runs in a sandbox on Linux: {python}.",
        "Variables, imports and files stay from one run to the next.",
        "There is no network." if options.network == "none" else "There is a network.",
        f"The current directory is {options.workdir}, which holds {format_bytes(limits.workspace)}"
        f"; /tmp and the home {HOME} hold {format_bytes(limits.tmp)}.",
    ]
    for mount in [each for each in options.mounts if not isinstance(each, Scratch)][:MOST_MOUNTS]:
        said.append(f"{mount.guest} has files of the host{', read-only' * mount.read_only}.")
    seconds = "no time limit" if limits.timeout is None else f"{limits.timeout:g} s a run"
    said.append(
        f"Limits: {seconds}, {format_bytes(limits.memory)} of memory, "
        f"{format_bytes(limits.output)} of output, {limits.processes} processes."
    )
    if options.policy is not None:
        said.append("Code is checked against a policy before it runs.")
    return "\n".join([*said, *_describe_functions(functions)])


def _describe_functions(functions: Registry | None) -> Iterator[str]:
    specs = [] if functions is None else functions.specs()
    if specs:
        yield "The code can call these functions, without an import:"
    for spec in specs[:MOST_FUNCTIONS]:
        call = f"{spec['name']}{messages.build_signature(spec)}"
        doc = str(spec["doc"] or "").strip().partition("\n")[0]
        prefix = "await " if "awaitable" in spec else ""
        yield f"- {prefix}{one_line(call, _LINE)}{doc and f': {one_line(doc, _LINE)}'}"
    if (more := len(specs) - MOST_FUNCTIONS) > 0:
        yield f"- and {more} more"
