"""The worker: runs cells in one namespace, and may die of what they do.

Init and the host believe nothing of what it says but its own result: init learns from the kernel
how it ended, and init and the host keep the limits. It holds no secret and no descriptor of init.

Longer than other files: a cell is read best from its start to its end in one place.
"""

import _signal  # type: ignore[import-not-found]  # signal itself makes an enum of every answer
import ast
import builtins
import contextlib
import fcntl
import inspect
import json
import mmap
import os
import random
import signal
import socket
import sys
import traceback
import types
import warnings
from typing import Any, Callable, Dict, List, NoReturn, Optional, Set, Tuple

from ..protocol import messages, values, wire
from ..protocol.buffers import close_all
from . import display, figures, fork_state, functions, streams
from .streams import SourceCache
from .worker_channel import WorkerChannel

SOURCE = "<belljar>"  # the name of every file of Belljar in the guest starts with this
MAX_TRACEBACK = 32 * 1024  # characters
MAX_MESSAGE = 8 * 1024
_VALUE = "__belljar_value__"
_RETURN = "__belljar_return__"
SMALL = 4096  # bytes of a result that is sent together with the end of its cell
# Values that are shown as their repr() alone.
_SCALAR = frozenset((bool, int, float, complex, str, bytes))
_PLAIN = _SCALAR | {list, tuple, dict, set, frozenset}
FEW = 100  # items
SHORT = 200  # characters
_input = builtins.input


class Worker:
    """Made once, before the fork, where that is possible: `serve` has what is left to do."""

    def __init__(self) -> None:
        self._channel = WorkerChannel()
        self._in_cell = False
        self._early = False  # the next cell was interrupted before it began
        self._reserve = _reserve_memory()
        self._loop: Any = None  # of asyncio, made for the first cell that awaits
        self._streams = streams.install_streams()
        self._threads = streams.list_threads()
        self._module = _main_module()
        self._sources = SourceCache()
        self._files: Set[str] = set()  # names of cells that came from files
        self.on_interrupt = self._on_interrupt  # one object, to recognise the handler
        self._last: Any = None  # `_`: the last value, as at Python's prompt
        self._parked: Optional[fork_state.Snapshot] = None  # set in a fork that runs no cells
        self._functions: Dict[str, Tuple[Any, Any]] = {}  # name -> spec and stub
        self._forked = False
        self._pyplot_show: Any = None  # what replaced it
        self._named: Set[Tuple[int, int]] = set()  # open files in the workspace
        display.install(self._show, self._show_figures, self._make_finish())
        builtins.input = _no_input
        builtins.print = streams.print_whole
        sys.argv = [""]
        if "" not in sys.path:
            sys.path.insert(0, "")

    def serve(self, control: socket.socket, setup: Dict[str, Any]) -> NoReturn:
        """Serve cells until init closes the socket."""
        self._channel.begin(control, setup)
        self._output_limit = int(setup["output"])
        self._result_limit = int(setup["result"])
        self._value_limit = int(setup["values"])
        self._workspace = setup["workspace"]
        self._remade = "archive_size" in setup  # the workspace is, after another branch was active
        _reseed()
        signal.signal(signal.SIGINT, self.on_interrupt)
        os.chdir(self._workspace)
        try:
            while True:
                self._serve_next()
        except EOFError:
            pass
        finally:
            os._exit(0)

    def forget_interrupt(self) -> None:
        """One that came before the fork was not for this worker."""
        self._early = False

    def _serve_next(self) -> None:
        frame, fds = self._channel.next()
        if frame.kind == wire.SYNC:
            self._early = False  # an interrupt that came too late is not for the next cell
            self._channel.send_idle(wire.SYNCED, 0, None, frame.payload)
        elif frame.kind == wire.FUNCTIONS:
            self._define_functions(frame.header["functions"])
        elif frame.kind == wire.FORK and fds:
            self._fork(fds[0])
        elif frame.kind == wire.FORK:
            self._channel.send(wire.FORKED, 0, {"error": "the code has too many open files"})
        elif frame.kind == wire.WAKE:
            self._wake()
        else:
            self._serve_cell(frame, fds)

    def _define_functions(self, specs: List[Dict[str, Any]]) -> None:
        """Define host functions, except those that are defined already: the code may have used
        their names for something else. Remove those that are not in the list."""
        namespace, before, self._functions = self._module.__dict__, self._functions, {}
        for spec in specs:
            name = spec["name"]
            known, stub = before.pop(name, (None, None))
            if known != spec:
                stub = functions.make_stub(spec, self._channel.call, self._channel.call_async)
                namespace[name] = stub
            self._functions[name] = spec, stub
        for name, (_, stub) in before.items():
            if namespace.get(name) is stub:
                del namespace[name]

    def _serve_cell(self, frame: wire.Frame, fds: List[int]) -> None:
        leftover = streams.find_new_threads(self._threads)
        tasks = self._loop is not None and fork_state.has_tasks(self._loop)
        count = frame.header["pipes"]
        pipes, rest = fds[:count], fds[count:]
        if min(pipes, default=3) < 3:
            pipes = _move_above_standard(pipes)
        for stream, pipe in zip(self._streams, pipes or (-1, -1)):
            stream.begin(frame.request, pipe, leftover, keep=tasks)
        close_all(pipes)
        if _signal.getsignal(_signal.SIGINT) is not self.on_interrupt:
            signal.signal(signal.SIGINT, self.on_interrupt)
        streams.CELL.set(frame.request)
        if self._reserve is None:
            self._reserve = _reserve_memory()
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.__dict__.get("show") is not self._pyplot_show:
            self._pyplot_show = figures.replace_show(pyplot, self._show_figures)
        header, payload, value = self._run(frame, rest)
        if rest:
            close_all(rest)  # it was interrupted before it took them
        if os.getpid() != self._channel.pid:
            # A child that the cell forked came back here: it is not the worker.
            os._exit(int(header.get("exit_code") or 0) & 0xFF)
        if self._remade and self._forked:
            self._note_open_files()
        if self._loop is None and all(stream.unchanged() for stream in self._streams):
            header["unchanged"] = True
        if value is not None and value.size > wire.INLINE:
            self._channel.send_value(wire.CELL_DONE, frame.request, header, value)
        else:
            payload = payload if value is None else value.join()
            self._channel.send_idle(wire.CELL_DONE, frame.request, header, payload)

    # -- forks ------------------------------------------------------------------------------

    def _fork(self, control: int) -> None:
        """Fork for a checkpoint or a branch. Twice, so that init becomes the child's parent."""
        self._forked = True
        self._note_open_files()
        missing = fork_state.find_missing(self._loop, self._threads, control)
        state = random.getstate()  # a fork hook would seed it again in the child
        header: Dict[str, Any] = {"missing": missing}
        try:
            with warnings.catch_warnings():
                # Python warns of threads: `missing` names them.
                warnings.simplefilter("ignore", DeprecationWarning)
                middle = os.fork()
                if middle == 0:
                    self._fork_again(control, state)
                    return
            if os.waitpid(middle, 0)[1]:
                header["error"] = "out of processes or memory"
        except ChildProcessError:
            pass  # the code has told the kernel to reap its children (SIG_IGN)
        except OSError as error:
            header["error"] = f"the interpreter cannot be forked: {error.strerror}"
        os.close(control)
        self._channel.send(wire.FORKED, 0, header)

    def _fork_again(self, control: int, state: Any) -> None:
        middle = os.getpid()
        try:
            if os.fork():
                os._exit(0)
            self._become_fork(control, middle)
            random.setstate(state)
        except BaseException:
            os._exit(1)

    def _become_fork(self, control: int, middle: int) -> None:
        if self._parked is None:
            self._parked = fork_state.take_snapshot(self._workspace)
        fork_state.wait_for_init(middle)
        os.setsid()
        fork_state.redirect_to_null()
        fork_state.set_oom_score(fork_state.PARKED)
        for stream in self._streams:
            stream.close_old()
        if self._loop is not None:
            # It shares its descriptors with the original: they must not be used or closed.
            fork_state.released_loops.append(self._loop)
            self._loop = None
        self._threads = streams.list_threads()
        self._channel.detach()
        os.dup2(control, fork_state.CONTROL)
        os.close(control)
        self._channel.open(socket.socket(fileno=fork_state.CONTROL))
        self._channel.send(wire.READY, 0)

    def _wake(self) -> None:
        """This fork runs cells from now on; its files are back in the workspace."""
        if self._parked is not None:
            fork_state.restore_snapshot(self._parked, self._workspace)
            self._parked = None
        else:
            with contextlib.suppress(OSError):
                fork_state.reopen_files(self._named, self._workspace)
        self._note_open_files()
        fork_state.set_oom_score(fork_state.RUNNING)

    def _note_open_files(self) -> None:
        if self._remade and self._forked:
            with contextlib.suppress(OSError):  # out of descriptors, or a thread has closed one
                self._named = fork_state.find_named_files(self._workspace)

    # -- one cell ---------------------------------------------------------------------------

    def _run(self, frame: wire.Frame, fds: List[int]) -> "Tuple[Dict[str, Any], bytes, Any]":
        """The header of CELL_DONE, the description of an error, and the value."""
        env = frame.header.get("env")
        restore = _set_environment(env) if env else {}
        close_input = self._open_input() if frame.header.get("stdin") else None
        payload, value = b"", None
        try:
            self._in_cell = True
            try:
                if self._early:
                    raise KeyboardInterrupt
                header, value = self._run_operation(frame, fds)
            finally:
                self._in_cell = False
        except SystemExit as stop:
            header = {"status": "exit", "exit_code": self._exit_code(stop)}
        except BaseException as error:
            self._release_reserve()  # out of memory, the report needs some
            header = {"status": "error"}
            payload = json.dumps(self._describe(error)).encode("ascii")
        finally:
            self._in_cell = False
            if restore:
                _restore_environment(restore)
            if close_input is not None:
                close_input()
        if self._channel.notes and "op" not in frame.header:
            header["notes"] = self._channel.take_notes()
        return header, payload, value

    def _open_input(self) -> "Callable[[], None]":
        """Let the code read the host's standard input, until the returned function is called."""

        def ask(size: int) -> bytes:
            try:
                data: bytes = self._channel.call(wire.STDIN, (size,), {})
            except RuntimeError:  # in a forked process, or in a thread that outlived the cell
                return b""
            return data

        before, stream = sys.stdin, streams.input_stream(ask)
        sys.stdin, builtins.input = stream, _input

        def close() -> None:
            if sys.stdin is stream:  # the code may have put something else there
                sys.stdin = before
            if builtins.input is _input:
                builtins.input = _no_input

        return close

    def _run_operation(self, frame: wire.Frame, fds: List[int]) -> "Tuple[Dict[str, Any], Any]":
        namespace, operation = self._module.__dict__, frame.header.get("op")
        if "cwd" in frame.header:
            os.chdir(frame.header["cwd"])
        header: Dict[str, Any] = {"status": "ok"}
        if operation == "put":
            namespace.update(self._channel.decode_value(frame, fds))
            return header, None
        if operation == "get":
            name = frame.header["name"]
            if name not in namespace:
                raise NameError(f"name {name!r} is not defined")
            describe = _describe_object if frame.header.get("lenient") else None
            return header, values.encode(namespace[name], self._value_limit, describe=describe)
        code = frame.payload.decode("utf-8", "surrogatepass")
        try:
            value = self._execute(code, self._set_program(frame.header), frame.header)
        except BaseException as error:
            if not functions.ends_cell(error):
                raise
            value = None
            if isinstance(error, functions.CellReturn):
                header["final"], value = True, error.value
        encoded = None
        if value is not None:
            if namespace.get("_") is self._last:  # unless the code has its own `_`
                namespace["_"] = self._last = value
            header, encoded = self._send_main_result(value, header)
        self._show_figures()
        return header, encoded

    def _set_program(self, header: wire.Header) -> str:
        """Set `sys.argv` and `__file__` for the code of a file; returns its name in tracebacks."""
        display.as_csv = bool(header.get("csv"))
        if header.get("notebook") and not hasattr(builtins, "get_ipython"):
            _install_shell()
        if "argv" in header:
            sys.argv = list(header["argv"])
        file: Optional[str] = header.get("file")
        if file is None:
            return f"<cell {header['count']}>"
        self._module.__dict__["__file__"] = file
        self._files.add(file)
        return file

    def _make_finish(self) -> "Callable[..., NoReturn]":
        def finish(value: Any = None) -> NoReturn:
            """End the cell with this value, which becomes `final` of its Execution.

            The value must be data that can travel. `except Exception` does not stop the end.
            """
            functions.check_thread("belljar.finish")
            if os.getpid() != self._channel.pid:
                raise RuntimeError("only the sandbox's own interpreter can call belljar.finish()")
            try:
                limits = self._result_limit, self._output_limit
                encoded = values.encode(value, *limits, describe=_describe_part).join()
            except values.CannotTravel as error:
                raise TypeError(f"belljar.finish(): {error}") from None
            parts = [{"mime": messages.FINAL, "size": len(encoded), "text": False}]
            header = {"parts": parts, "main": False, "dropped": [], "cut": False}
            self._channel.send(wire.CELL_RESULT, 0, header, encoded)
            raise functions.CellEnded

        finish.__module__, finish.__qualname__ = "belljar", "finish"  # as errors name it
        return finish

    def _execute(self, code: str, name: str, header: wire.Header) -> Any:
        """The value of the last expression. The header says if the code may `return`, by which it
        raises CellReturn, and if it may be written as for a notebook."""
        self._sources.add(name, code)
        namespace = self._module.__dict__
        expression = _compile_expression(code, name)
        if expression is not None:
            self._sources.keep_lasting(name, expression)
            return eval(expression, namespace)
        in_notebook = header.get("notebook") is True
        tree = _parse_cell(code, name, in_notebook)
        returns = header.get("return") is True
        if returns and _allow_return(tree):
            namespace[_RETURN] = functions.CellReturn
        # The last expression becomes an assignment, so that the cell stays one piece of code:
        # with a top-level `await` anywhere, all of it runs in one coroutine.
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not (in_notebook and streams.ends_silently(code, last)):
            target = ast.copy_location(ast.Name(_VALUE, ast.Store()), last)
            tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
        compiled = compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        self._sources.keep_lasting(name, compiled)
        namespace.pop(_VALUE, None)
        try:
            made = eval(compiled, namespace)
            if compiled.co_flags & inspect.CO_COROUTINE:
                self._await(made)
        finally:
            if returns:
                namespace.pop(_RETURN, None)
        return namespace.pop(_VALUE, None)

    def _await(self, coroutine: Any) -> None:
        import asyncio  # here: it takes as long as all other imports of this program

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # interrupted: let the `finally` blocks of the cell run
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task], timeout=1.0))
            raise

    def _send_main_result(self, value: Any, header: Dict[str, Any]) -> "Tuple[Dict[str, Any], Any]":
        if type(value) in _PLAIN:
            text = repr(value)
            if not _is_light(value) or not self._show_light(text):
                self._show({"text/plain": text}, True)
            return self._add_value(value, header)
        shown = display.make_bundle(value)
        dropped = self._show(shown, True)
        if display.TABLE_MIME in dropped:
            why = "it is too large to come along; fetch it with get('_')"
            return {**header, "value_error": why}, None
        if display.TABLE_MIME in shown:
            return {**header, "shown": True}, None  # a shown table is the value: sent once
        if "image/png" in shown and figures.is_figure(value):
            return {**header, "shown": "image/png" not in dropped}, None  # the same for a figure
        return self._add_value(value, header)

    def _add_value(self, value: Any, header: Dict[str, Any]) -> "Tuple[Dict[str, Any], Any]":
        try:
            # The value itself is not described: its text is there.
            limits = self._result_limit, self._output_limit
            return header, values.encode(value, *limits, describe=_describe_part)
        except values.CannotTravel as error:
            if " is a matplotlib." in str(error):
                return header, None  # an artist that plotting returned: its figure is shown
            why = display.cap_text(str(error), 200)
            if inspect.iscoroutine(value):
                why += ", which the code does not await"
            return {**header, "value_error": why}, None

    def _show_figures(self) -> None:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.get_fignums():
            for bundle in figures.close_open_figures(pyplot):
                display.send_bundle(dict(bundle))

    def _show_light(self, text: str) -> bool:
        """Send a short text together with the end of the cell, which follows at once. False if it
        is not short, or if figures follow."""
        raw = text.encode("utf-8", "surrogatepass")
        pyplot = sys.modules.get("matplotlib.pyplot")
        if len(raw) >= min(SMALL, self._output_limit, self._result_limit):
            return False
        if pyplot is not None and pyplot.get_fignums():
            return False
        if os.getpid() == self._channel.pid:  # else in a child that the cell forked
            parts = [{"mime": "text/plain", "size": len(raw), "text": True}]
            header = {"parts": parts, "main": True, "dropped": [], "cut": False}
            self._channel.send_later(wire.CELL_RESULT, header, raw)
        return True

    def _show(self, bundle: Dict[str, Any], main: bool) -> List[str]:
        """Send a result; returns the MIME types that were too large."""
        if os.getpid() != self._channel.pid:
            return []  # in a child that the cell forked
        header, payload = display.pack_bundle(bundle, main, self._output_limit, self._result_limit)
        self._channel.send(wire.CELL_RESULT, 0, header, payload)
        dropped: List[str] = header["dropped"]
        return dropped

    def _on_interrupt(self, signum: int, frame: Any) -> None:
        if not self._in_cell:
            self._early = True  # for a cell that is on its way
        elif os.getpid() == self._channel.pid and self._channel.on_interrupt():
            raise KeyboardInterrupt

    def _release_reserve(self) -> None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            reserve.close()

    def _exit_code(self, stop: SystemExit) -> int:
        """The exit code that Python would use; a message goes to stderr, as it would there."""
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code & 0xFFFFFFFF if abs(stop.code) >= 2**31 else int(stop.code)
        try:
            self._in_cell = True
            try:
                print(stop.code, file=sys.stderr)
            finally:
                self._in_cell = False
        except BaseException as error:  # its __str__ may raise anything
            os.write(2, f"<str() raised {type(error).__name__}>\n".encode())
        return 1

    # -- errors -----------------------------------------------------------------------------

    def _describe(self, error: BaseException) -> Dict[str, str]:
        """Name, message and traceback. Formatting runs the guest's code (`__str__`), so it is done
        here, under the cell's deadline, and its own errors are only noted."""
        try:
            self._in_cell = True
            try:
                text = _format_error(error, self._files)
                value = str(error)
                self._show_figures()
            finally:
                self._in_cell = False
        except BaseException as second:
            text = f"{type(error).__name__}: <its traceback could not be formatted>\n"
            value = f"<str() raised {type(second).__name__}>"
        return {
            "name": display.cap_text(type(error).__name__, 200),
            "value": display.cap_text(value, MAX_MESSAGE),
            "traceback": display.cap_text(text, MAX_TRACEBACK),
        }


class _Shell:
    """What `get_ipython()` gives in a notebook. Libraries ask for it in order to find out where
    they are: the rest is imported when the code uses it."""

    def __init__(self) -> None:
        self.config: Dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        from . import magics

        return getattr(magics.SHELL, name)


def _install_shell() -> None:
    shell = _Shell()
    builtins.get_ipython = lambda: shell  # type: ignore[attr-defined]


def _compile_expression(code: str, name: str) -> Any:
    """Compile code that is one short expression, which needs no syntax tree; else None."""
    if len(code) > SHORT or not code or code[0].isspace() or "\n" in code or "await" in code:
        return None
    try:
        return compile(code, name, "eval", dont_inherit=True)
    except SyntaxError:
        return None


def _parse_cell(code: str, name: str, in_notebook: bool) -> Any:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compile(code, name, "exec", flags)
    except SyntaxError:
        if not in_notebook:
            code = messages.drop_magics(code)
    if in_notebook:
        from . import notebook  # here: most cells are Python

        return notebook.parse_cell(code, name)
    try:
        return compile(code, name, "exec", flags)
    except SyntaxError as error:
        from . import notebook

        advice = notebook.explain_magic(code)
        if advice:
            error.msg = f"{error.msg} ({advice})"
        raise


def _describe_object(value: Any, nested: bool) -> str:
    return repr(value)


def _describe_part(value: Any, nested: bool) -> Optional[str]:
    return repr(value) if nested else None


def _allow_return(tree: Any) -> bool:
    """Replace each `return` at the top level by a `raise`, which no `except:` of the cell catches.
    True if there was one."""
    transformer = _ReturnTransformer()
    tree.body[:] = [transformer.visit(statement) for statement in tree.body]
    if transformer.found:
        ast.fix_missing_locations(tree)
    return transformer.found > 0


class _ReturnTransformer(ast.NodeTransformer):
    def __init__(self) -> None:
        self.found = 0

    def visit_Return(self, node: Any) -> Any:
        self.found += 1
        given = [] if node.value is None else [node.value]
        call = ast.Call(ast.Name(_RETURN, ast.Load()), given, [])
        return ast.copy_location(ast.Raise(ast.copy_location(call, node), None), node)

    def visit_Try(self, node: Any) -> Any:
        before = self.found
        self.generic_visit(node)
        if self.found > before and node.handlers:
            kind = ast.Name(_RETURN, ast.Load())
            handler = ast.ExceptHandler(kind, None, [ast.Raise(None, None)])
            node.handlers.insert(0, ast.copy_location(handler, node.handlers[0]))
        return node

    def _skip(self, node: Any) -> Any:
        return node  # a `return` in here is not of the cell

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _skip


def _format_error(error: BaseException, files: "Set[str]") -> str:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _remove_own_frames(shown, set(), files)
    return "".join(shown.format())


def _remove_own_frames(shown: Any, seen: "Set[int]", files: "Set[str]") -> None:
    """Remove Belljar's frames from a traceback and those chained to it: the calls that lead to the
    cell (this file, and the event loop of a top-level await)."""
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    stack = shown.stack
    cells = (i for i, f in enumerate(stack) if f.filename in files or f.filename[:6] == "<cell ")
    first = next(cells, 0)
    stack[:] = [frame for frame in stack[first:] if not frame.filename.startswith(SOURCE)]
    loops = sys.modules.get("asyncio.base_events")
    if stack and loops is not None and stack[0].filename == loops.__file__:
        stack.clear()  # interrupted while the event loop was waiting: no frame is of the cell
    for inner in [shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())]:
        _remove_own_frames(inner, seen, files)


def _is_light(value: Any) -> bool:
    """True if showing and encoding it takes next to no time and memory."""
    if type(value) in (list, tuple, set, frozenset):
        return len(value) < FEW and all(type(item) in _SCALAR for item in value)
    return type(value) in _SCALAR


def _reserve_memory() -> "Optional[mmap.mmap]":
    """Memory to release when none is left; None if it cannot be reserved. It is never touched, so
    it costs nothing."""
    try:
        return mmap.mmap(-1, 2 * 1024 * 1024, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (MemoryError, OSError):
        return None


def _main_module() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


def _move_above_standard(pipes: List[int]) -> List[int]:
    """If code closes 0, 1 or 2, the kernel gives these numbers to the next descriptors."""
    found = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) if fd < 3 else fd for fd in pipes]
    close_all([fd for fd in pipes if fd < 3])
    return found


def _no_input(prompt: object = "") -> str:
    raise EOFError("input() has nothing to read: the sandbox was given no standard input")


def _reseed() -> None:
    """Workers are forks of one process: without this, all would draw the same numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))  # a tenth of what seed() costs


def _set_environment(env: Dict[str, str]) -> Dict[str, Optional[str]]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    return before


def _restore_environment(before: Dict[str, Optional[str]]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
