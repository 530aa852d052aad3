"""Programs that go on beside everything else: their output, input, signals, terminals and ends."""

import gc
import os
import signal
import threading
import time

import anyio
import pytest

import census
import gvisor
import setting
from belljar import GuestLost, Limits, Outcome, SandboxError
from belljar.protocol import wire

pytestmark = pytest.mark.contract("native", "docker", "gvisor")

PATIENCE = 60.0  # seconds
FLOOD = "while :; do echo 0123456789012345678901234567890123456789; done"
LARGE = 3 * wire.WINDOW


def read_until(process, text, *, seen=""):
    """Read until the output has a text. A time-out ends tests that never see it."""
    while text not in seen:
        chunk = process.read()
        assert chunk is not None, f"it has ended: {seen!r}"
        seen += chunk.text
    return seen


def names_of(seen):
    return [each.name for each in seen.processes()]


# --- output, input, ends ---------------------------------------------------------------------


def test_a_program_is_started_and_its_end_awaited(sandbox):
    process = sandbox.commands.start("echo out; echo err >&2; exit 3")
    assert process.pid > 0
    result = process.wait(PATIENCE)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert (result.outcome, process.returncode) == (Outcome.exit, 3)
    assert process.wait(PATIENCE) == result
    assert process.read() is None


def test_output_is_iterated_while_it_comes(sandbox):
    process = sandbox.commands.start("echo 1; read x; echo 2 >&2; read x; exit 4", stdin=True)
    seen = []
    for chunk in process:
        seen.append((chunk.stream, chunk.data))
        process.send("go\n")
    assert seen == [("stdout", b"1\n"), ("stderr", b"2\n")]
    assert process.returncode == 4


def test_input_is_sent_and_closed(sandbox):
    with sandbox.commands.start("cat", stdin=True) as process:
        process.send("héllo ")
        process.send(b"bytes")
        process.close_stdin()
        assert process.wait(PATIENCE).stdout == "héllo bytes"
        with pytest.raises(SandboxError, match="no input"):
            process.send("more")
    with pytest.raises(SandboxError, match="stdin=True"):
        sandbox.commands.start("true").send("x")


def test_input_that_the_program_does_not_read_waits_and_is_whole(sandbox):
    with sandbox.commands.start("read go; wc -c", stdin=True) as process:
        process.send("go\n")
        process.send(bytes(50 * 1024 * 1024))
        process.close_stdin()
        assert process.wait(PATIENCE).stdout.strip() == str(50 * 1024 * 1024)


def test_input_for_a_program_that_has_closed_it_is_dropped(sandbox):
    with sandbox.commands.start("exec 0<&-; echo ready; sleep 1000", stdin=True) as process:
        assert process.read().text == "ready\n"
        process.send(bytes(LARGE))


def test_output_of_any_length_comes_whole(make_sandbox):
    """The limit of the sandbox is for what is kept: it ends no program."""
    sandbox = make_sandbox(limits=Limits(output="64k"))
    process = sandbox.commands.start(f"head -c {20 * wire.WINDOW} /dev/zero; echo end >&2")
    sizes = {"stdout": 0, "stderr": 0}
    for chunk in process:
        sizes[chunk.stream] += len(chunk.data)
    assert sizes == {"stdout": 20 * wire.WINDOW, "stderr": 4}
    result = process.wait()
    assert result.ok
    assert result.truncated
    assert len(result.stdout) < 70_000
    assert "bytes left out" in result.stdout


def test_a_program_whose_output_is_not_read_waits(sandbox):
    process = sandbox.commands.start(f"head -c {LARGE} /dev/zero; touch written")
    assert sandbox.run_code("import time; time.sleep(0.5)").ok
    assert not sandbox.files.exists("written")
    assert len(process.wait(PATIENCE).stdout) > 0
    assert sandbox.files.exists("written")


def test_many_small_pieces_of_output_do_not_fill_the_host_or_end_the_guest(sandbox):
    """Of a program that is not read, while others read the wire."""
    sandbox.run_code("x = 1")
    process = sandbox.commands.start(
        ["python3", "-c", "import os, time\nfor n in range(40_000): os.write(1, b'x')"]
    )
    for _ in range(5):
        assert sandbox.commands.run("sleep 0.1").ok
    assert len(process.wait(PATIENCE).stdout) == 40_000
    assert sandbox.run_code("x").value == 1


def test_output_so_far_is_told_without_waiting(sandbox):
    process = sandbox.commands.start("echo now; sleep 1000")
    census.wait_until(lambda: process.output() == "now\n", what="the output")
    assert process.returncode is None
    with sandbox.commands.start(FLOOD) as flood:
        census.wait_until(lambda: "0123" in flood.output(), what="output of what never stops")


def test_characters_are_whole_and_bytes_are_exact(sandbox):
    program = (
        "import os, time\nfor b in 'aé€😀'.encode(): os.write(1, bytes([b])); time.sleep(0.02)"
    )
    process = sandbox.commands.start(["python3", "-c", program])
    chunks = [*process]
    assert "".join(chunk.text for chunk in chunks) == "aé€😀"
    assert sandbox.commands.start(r"printf '\377\303'").wait(PATIENCE).stdout == "��"


def test_merged_output_is_in_true_order(sandbox):
    command = "for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done"
    expected = "".join(f"o{n}\ne{n}\n" for n in range(1, 6))
    result = sandbox.commands.start(command, merge=True).wait(PATIENCE)
    assert (result.stdout, result.stderr) == (expected, "")
    assert sandbox.commands.run(command, merge=True).stdout == expected


def test_a_command_past_the_output_limit_may_go_on_with_head_and_tail_kept(make_sandbox):
    sandbox = make_sandbox(limits=Limits(output="10k"))
    command = "echo first; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = sandbox.commands.run(command, output_limit="truncate")
    assert (result.outcome, result.truncated) == (Outcome.ok, True)
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")
    assert len(result.stdout) < 11_000
    result = sandbox.commands.run(command, output_limit="truncate", format="bytes")
    assert result.stdout_bytes.decode() == result.stdout
    with pytest.raises(ValueError, match="output_limit"):
        sandbox.commands.run("true", output_limit="no")


def test_bytes_are_given_on_request(sandbox):
    result = sandbox.commands.run(r"printf 'a\377'; printf '\376' >&2", format="bytes")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"a\xff", b"\xfe")
    assert result.stdout == "a�"
    assert sandbox.commands.run("true").stdout_bytes is None


# --- exit codes, signals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cmd", "code"),
    [
        ("exit 0", 0),
        ("exit 255", 255),
        (["no-such-program"], 127),
        ("no-such-program", 127),
        (["/workspace"], 126),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("kill -INT $$", 130),
    ],
)
def test_the_return_code_is_that_of_a_shell(sandbox, cmd, code):
    process = sandbox.commands.start(cmd)
    process.wait(PATIENCE)
    assert process.returncode == code


def test_a_signal_reaches_the_program_and_its_group(sandbox):
    process = sandbox.commands.start(
        "trap 'echo got; exit 5' TERM; echo ready; while :; do :; done"
    )
    read_until(process, "ready")
    assert process.signal("TERM")
    assert process.wait(PATIENCE).exit_code == 5
    assert process.signal("SIGTERM") is False
    assert process.kill() is False
    other = sandbox.commands.start("echo ready; exec sleep 1000")
    read_until(other, "ready")
    assert other.signal(2)
    assert other.wait(PATIENCE).signal == 2
    assert other.returncode == 130
    for wrong in ("SIGNOTHING", 0, 1000, -1):
        with pytest.raises(ValueError, match="no signal"):
            other.signal(wrong)


@gvisor.OUTSIDE
def test_a_kill_ends_the_program_with_all_it_started(sandbox, outside):
    process = sandbox.commands.start("sleep 1000 & setsid sleep 1000 & echo ready; wait")
    read_until(process, "ready")
    seen = outside(sandbox)
    census.wait_until(lambda: names_of(seen).count("sleep") == 2, what="both")
    assert process.kill()
    assert process.wait(PATIENCE).signal == 9
    census.wait_until(lambda: "sleep" not in names_of(seen), what="the end of sleep")


def test_a_time_out_of_a_program_is_said(sandbox):
    result = sandbox.commands.start("echo before; sleep 1000", timeout=0.5).wait(PATIENCE)
    assert (result.outcome, result.signal, result.stdout) == (Outcome.timeout, 9, "before\n")


def test_a_stopped_guest_does_not_outlast_the_time_out_of_a_program(sandbox, outside, monkeypatch):
    monkeypatch.setattr("belljar.sandbox.process.GRACE", 1.0)
    program = sandbox.commands.start("sleep 1000", timeout=0.5)
    os.kill(outside(sandbox).pid, signal.SIGSTOP)
    with pytest.raises(GuestLost, match="whose time was over"):
        program.wait(PATIENCE)


def test_the_end_of_a_program_is_there_long_after_its_time(sandbox, monkeypatch):
    monkeypatch.setattr("belljar.sandbox.process.GRACE", 0.5)
    program = sandbox.commands.start("echo said; exit 3", timeout=0.2)
    time.sleep(1.5)
    assert (program.wait(PATIENCE).stdout, program.returncode) == ("said\n", 3)


def test_waiting_may_time_out_and_the_program_goes_on(sandbox):
    process = sandbox.commands.start("echo early; read x; echo late", stdin=True)
    why = rf"^process {process.pid} \(echo early; .*\) has not ended after 0\.2 s, .*kill"
    with pytest.raises(TimeoutError, match=why):
        process.wait(0.2)
    assert process.returncode is None
    process.send("x\n")
    assert process.wait(PATIENCE).stdout == "early\nlate\n"


def test_a_background_child_that_holds_the_pipe_does_not_delay_the_end(sandbox):
    process = sandbox.commands.start("sleep 1000 & echo done")
    began = time.monotonic()
    assert process.wait(PATIENCE).stdout == "done\n"
    assert time.monotonic() - began < PATIENCE / 2
    on_terminal = sandbox.commands.start("(trap '' HUP; sleep 1000) & echo done", pty=(80, 24))
    assert on_terminal.wait(PATIENCE).stdout == "done\r\n"


def test_output_written_just_before_the_end_is_whole(sandbox):
    for _ in range(5):
        command = "head -c 500000 /dev/zero | tr '\\0' x; exec sh -c 'exit 7'"
        result = sandbox.commands.start(command).wait(PATIENCE)
        assert (len(result.stdout), result.exit_code) == (500_000, 7)


@pytest.mark.parametrize("pty", [None, (80, 24)])
def test_a_directory_and_variables_are_given(sandbox, pty):
    process = sandbox.commands.start("pwd; echo $A", cwd="/tmp", env={"A": "x y"}, pty=pty)
    assert process.wait(PATIENCE).stdout.split() == ["/tmp", "x", "y"]
    with pytest.raises(SandboxError, match="missing"):
        sandbox.commands.start("true", cwd="/missing")


def test_a_long_command_is_started(sandbox):
    process = sandbox.commands.start(f"echo {'x' * 1_000_000} | wc -c", name="long")
    assert process.wait(PATIENCE).stdout.strip() == "1000001"
    assert len(process.info.cmd) == 1000
    assert sandbox.run_code("1").value == 1
    with pytest.raises(ValueError, match="too long"):
        sandbox.commands.start("x" * 10_000_000)

    with pytest.raises(ValueError, match="name"):
        sandbox.commands.start("true", name="x" * 300)


# --- readers ---------------------------------------------------------------------------------


@pytest.mark.fresh
def test_programs_are_listed_and_found_again(sandbox):
    process = sandbox.commands.start(["sleep", "1000"], name="sleeper", cwd="/tmp")
    (info,) = sandbox.commands.list()
    assert info == process.info
    assert (info.pid, info.name, info.cmd, info.cwd) == (
        process.pid,
        "sleeper",
        ["sleep", "1000"],
        "/tmp",
    )
    assert info.alive
    assert not info.pty
    again = sandbox.commands.connect(process.pid)
    again.kill()
    assert process.wait(PATIENCE).signal == again.wait(PATIENCE).signal == 9
    assert sandbox.commands.list() == []
    (ended,) = sandbox.commands.list(ended=True)
    assert (ended.pid, ended.alive, ended.signal) == (process.pid, False, 9)


def test_a_program_that_has_ended_is_read_again(sandbox):
    process = sandbox.commands.start("echo text; exit 7")
    process.wait(PATIENCE)
    for _ in range(2):
        again = sandbox.commands.connect(process.pid)
        assert again.wait(PATIENCE).stdout == "text\n"
        assert again.returncode == 7


def test_output_that_came_before_the_reader_is_counted_as_lost(sandbox):
    process = sandbox.commands.start("seq 100000")
    whole = process.wait(PATIENCE).stdout
    again = sandbox.commands.connect(process.pid)
    late = again.wait(PATIENCE)
    assert whole.endswith(late.stdout)
    assert again.skipped == len(whole) - len(late.stdout) > 0
    assert late.truncated


@pytest.mark.parametrize("pid", [1, 99_999, -1])
def test_a_program_that_was_not_started_is_not_found(sandbox, pid):
    with pytest.raises(SandboxError, match="no such process"):
        sandbox.commands.connect(pid)
    with pytest.raises(ValueError, match="pid"):
        sandbox.commands.connect([pid])


@pytest.mark.fresh
def test_commands_that_were_run_are_not_listed(sandbox):
    sandbox.commands.run("true")
    assert sandbox.commands.list(ended=True) == []


def test_only_the_last_programs_are_remembered(sandbox):
    first = sandbox.commands.start("true")
    first.wait(PATIENCE)
    for _ in range(64):
        sandbox.commands.start("true").wait(PATIENCE)
    assert len(sandbox.commands.list(ended=True)) == 64
    with pytest.raises(SandboxError, match="no such process"):
        sandbox.commands.connect(first.pid)


def test_several_read_one_program_and_the_slow_one_loses_some(sandbox):
    size = 8 * wire.WINDOW
    process = sandbox.commands.start(f"read go; head -c {size} /dev/zero; echo end", stdin=True)
    slow, other = (sandbox.commands.connect(process.pid) for _ in range(2))
    process.send("go\n")
    totals = {}

    def read(name, reader):
        totals[name] = sum(len(chunk.data) for chunk in reader)

    threads = [
        threading.Thread(target=read, args=each) for each in (("first", process), ("other", other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, reader in (("first", process), ("other", other)):
        assert totals[name] + reader.skipped == size + 4
    read("slow", slow)
    assert slow.skipped > 0
    assert totals["slow"] + slow.skipped == size + 4
    assert slow.wait().stdout.endswith("end\n")
    assert slow.wait().truncated


def test_a_program_goes_on_when_it_is_detached(sandbox):
    process = sandbox.commands.start(f"head -c {LARGE} /dev/zero; echo end; touch written")
    process.detach()
    assert process.read() is None
    with pytest.raises(SandboxError, match="connect"):
        process.wait()
    census.wait_until(lambda: sandbox.files.exists("written"), what="its end")
    again = sandbox.commands.connect(process.pid)
    assert again.wait(PATIENCE).stdout.endswith("end\n")


def test_a_program_goes_on_when_its_handle_is_dropped(sandbox):
    """Also if nothing else is asked of the sandbox."""
    pid = sandbox.commands.start(f"head -c {LARGE} /dev/zero; date +%s.%N > ended").pid
    gc.collect()
    time.sleep(3)
    asked = float(sandbox.commands.run("date +%s.%N").stdout)
    census.wait_until(lambda: sandbox.files.exists("ended"), what="its end")
    assert sandbox.commands.connect(pid).wait(PATIENCE).ok
    if not setting.GVISOR:  # its clocks may differ between processes by some milliseconds
        assert float(sandbox.files.read("ended")) < asked


def test_leaving_its_block_kills_a_program(sandbox):
    with sandbox.commands.start("sleep 1000") as process:
        pass
    assert process.returncode == 137
    assert sandbox.commands.list() == []
    assert sandbox.commands.connect(process.pid).wait(PATIENCE).signal == 9


# --- beside other things ---------------------------------------------------------------------


def test_cells_commands_and_files_work_beside_programs(sandbox):
    with sandbox.commands.start(FLOOD), sandbox.commands.start("cat", stdin=True) as cat:
        for n in range(5):
            assert sandbox.run_code(f"{n} + 1").value == n + 1
            assert sandbox.commands.run("echo x").stdout == "x\n"
            sandbox.files.write("a", "text")
            cat.send(f"{n}\n")
            assert cat.read().text == f"{n}\n"


def test_a_program_survives_the_interpreter(sandbox):
    process = sandbox.commands.start("while read x; do echo $x; done", stdin=True)
    sandbox.restart()
    process.send("restarted\n")
    assert process.read().text == "restarted\n"
    assert sandbox.run_code("import os; os._exit(1)").outcome is Outcome.killed
    process.send("died\n")
    assert process.read().text == "died\n"
    assert sandbox.run_code("while True: pass", timeout=0.3).outcome is Outcome.timeout
    process.send("stopped\n")
    assert process.read().text == "stopped\n"
    process.close_stdin()
    assert process.wait(PATIENCE).ok


def test_a_program_survives_a_rollback(sandbox):
    checkpoint = sandbox.checkpoint()
    process = sandbox.commands.start("while read x; do echo $x; done", stdin=True)
    sandbox.rollback(checkpoint)
    process.send("after\n")
    assert process.read().text == "after\n"
    process.kill()


def test_programs_of_a_fork_go_on_when_they_are_read(sandbox):
    """Those of one branch stop while another has its turn."""
    loop = "while read x; do echo $x; done"
    first = sandbox.commands.start(loop, stdin=True)
    with sandbox.fork() as fork:
        assert fork.commands.list() == []
        with pytest.raises(SandboxError, match="no such process"):
            fork.commands.connect(first.pid)  # it stands still while the fork has its turn
        second = fork.commands.start(loop, stdin=True)
        for n in range(3):
            first.send(f"first {n}\n")
            assert first.read().text == f"first {n}\n"
            second.send(f"second {n}\n")
            assert second.read().text == f"second {n}\n"
            assert fork.run_code("1").value == 1
    first.send("alone\n")
    assert first.read().text == "alone\n"
    first.kill()


def test_who_waits_for_a_program_hears_soon_that_the_sandbox_has_ended(make_sandbox):
    sandbox = make_sandbox()
    process = sandbox.commands.start("echo ready; sleep 1000")
    read_until(process, "ready")
    errors = []

    def wait():
        try:
            process.wait()
        except GuestLost as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    sandbox.kill()
    waiting.join(PATIENCE)
    assert len(errors) == 1
    assert process.kill() is False
    with pytest.raises(GuestLost):
        process.read()


def test_a_reader_ends_when_another_thread_detaches(sandbox):
    process = sandbox.commands.start("echo ready; sleep 1000")
    read_until(process, "ready")
    seen = []
    reading = threading.Thread(target=lambda: seen.append(process.read()))
    reading.start()
    time.sleep(0.1)
    process.detach()
    reading.join(PATIENCE)
    assert seen == [None]


@gvisor.PROCESSES
def test_a_hundred_programs_at_once(make_sandbox):
    sandbox = make_sandbox(limits=Limits(processes=250), strict=False)
    processes = [sandbox.commands.start(f"read x; echo $x {n}", stdin=True) for n in range(100)]
    for process in processes:
        process.send("got\n")
    for n, process in enumerate(processes):
        assert process.wait(PATIENCE).stdout == f"got {n}\n"


# --- under event loops -----------------------------------------------------------------------


def test_a_program_is_awaited(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            process = await sandbox.commands.start("cat; exit 3", stdin=True)
            seen = []

            async def read():
                async for chunk in process:
                    seen.append(chunk.data)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                for _ in range(10):
                    await process.send(bytes(wire.WINDOW))
                await process.close_stdin()
            assert sum(map(len, seen)) == 10 * wire.WINDOW
            assert process.returncode == 3
            (info,) = await sandbox.commands.list(ended=True)
            assert info.exit_code == 3

    run_async(main)


def test_several_tasks_wait_for_programs_at_once(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            results = {}

            async def use(n):
                async with await sandbox.commands.start("read x; echo $x", stdin=True) as process:
                    await process.send(f"{n}\n")
                    results[n] = (await process.wait(PATIENCE)).stdout

            async with anyio.create_task_group() as tasks:
                for n in range(10):
                    tasks.start_soon(use, n)
                assert (await sandbox.run_code("1 + 1")).value == 2
            assert results == {n: f"{n}\n" for n in range(10)}

    run_async(main)


def test_who_is_cancelled_leaves_the_program_to_others(run_async, open_sandbox):
    async def main():
        async with open_sandbox() as sandbox:
            process = await sandbox.commands.start("cat", stdin=True)
            for _ in range(3):
                with anyio.move_on_after(0.05) as scope:
                    await process.read()
                assert scope.cancelled_caught
            await process.send("text")
            assert (await process.read()).text == "text"
            await process.kill()

    run_async(main)


def test_a_reader_ends_when_the_sandbox_is_closed_beside_it(run_async, open_sandbox):
    async def main():
        ended = []
        async with anyio.create_task_group() as tasks, open_sandbox() as sandbox:
            process = await sandbox.commands.start("sleep 1000")

            async def read():
                try:
                    await process.read()
                except GuestLost:
                    ended.append(True)

            tasks.start_soon(read)
            await anyio.sleep(0.1)
        assert ended == [True]

    run_async(main)


# --- terminals -------------------------------------------------------------------------------

PROMPT = {"PS1": "$ ", "TERM": "dumb"}
# Debian's gVisor does not turn the keys of a terminal into signals.
KEYS = pytest.mark.not_gvisor("its terminals make no signals of keys")


def test_a_program_on_a_terminal_knows_it(sandbox):
    program = (
        "import os; print(os.isatty(0), os.isatty(1), os.isatty(2), *os.get_terminal_size());"
        "print(os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpgrp())"
    )
    process = sandbox.commands.start(["python3", "-c", program], pty=(100, 30))
    assert process.info.pty
    lines = process.wait(PATIENCE).stdout.splitlines()
    assert lines == ["True True True 100 30", "True True"]


def test_a_terminal_echoes_and_ends_by_ctrl_d(sandbox):
    process = sandbox.commands.start("cat", pty=(80, 24))
    process.send("text\n")
    assert read_until(process, "text\r\ntext\r\n") == "text\r\ntext\r\n"
    process.close_stdin()
    if setting.GVISOR:  # Ctrl-D is a key like the others there
        process.kill()
    assert process.wait(PATIENCE).ok != setting.GVISOR


def test_a_shell_on_a_terminal_has_job_control(sandbox):
    process = sandbox.commands.start(["bash", "--norc", "-i"], pty=(80, 24), env=PROMPT)
    read_until(process, "$ ")
    process.send("sleep 1000 &\n")
    read_until(process, "[1]")
    process.send("jobs; kill %1; echo $-\n")
    assert "Running" in read_until(process, "im")
    process.send("exit 6\n")
    process.wait(PATIENCE)
    assert process.returncode == 6


@pytest.mark.not_gvisor("its terminals have no job control")
@pytest.mark.parametrize("code", ["while True: pass", "import os; os._exit(1)"])
def test_a_shell_sees_nothing_of_the_end_of_a_cell(sandbox, code):
    shell = sandbox.commands.start(["bash", "--norc", "-i"], pty=(80, 24), env=PROMPT)
    read_until(shell, "$ ")
    shell.send("sleep 1000\n")
    time.sleep(0.3)
    context = sandbox.contexts.create()
    assert sandbox.run_code(code, context=context, timeout=0.5).outcome is not Outcome.ok
    time.sleep(0.2)
    shell.send("\x03")
    shell.send("echo next $((20 + 1))\n")
    assert "Stopped" not in read_until(shell, "next 21")
    shell.kill()


def test_programs_find_the_name_of_a_terminal_that_draws(sandbox):
    show = ["sh", "-c", "echo $TERM"]
    assert sandbox.commands.start(show, pty=(80, 24)).wait(PATIENCE).stdout == "xterm-256color\r\n"
    asked = sandbox.commands.start(show, pty=(80, 24), env={"TERM": "vt100"})
    assert asked.wait(PATIENCE).stdout == "vt100\r\n"


@KEYS
def test_keys_interrupt_and_stop_what_is_in_the_foreground(sandbox):
    process = sandbox.commands.start(["bash", "--norc", "-i"], pty=(80, 24), env=PROMPT)
    read_until(process, "$ ")
    process.send("sleep 1000; echo code $?\n")
    time.sleep(0.3)
    process.send("\x03")
    read_until(process, "^C")
    process.send("echo next $((20 + 1))\n")
    read_until(process, "next 21")
    process.send("sleep 1000\n")
    time.sleep(0.3)
    process.send("\x1a")
    read_until(process, "Stopped")
    process.send("kill -9 %1; exit 0\n")
    process.send("exit 0\n")
    process.wait(PATIENCE)


def test_a_terminal_is_resized(sandbox):
    process = sandbox.commands.start(
        "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", pty=(80, 24)
    )
    read_until(process, "ready")
    assert process.resize(132, 50)
    if not setting.GVISOR:  # it sends no signal
        read_until(process, "50 132")
    process.kill()
    process.wait(PATIENCE)
    assert process.resize(80, 24) is False
    for wrong in ((0, 10), (10, 0), (100_000, 10), ("80", 24)):
        with pytest.raises(ValueError, match="terminal"):
            sandbox.commands.start("true", pty=wrong)
    with pytest.raises(SandboxError, match="no terminal"):
        sandbox.commands.start("sleep 1000").resize(80, 24)


def test_much_output_of_a_terminal_comes_whole(sandbox):
    program = "import os; os.write(1, b'x' * 100_000 + b'END')"
    process = sandbox.commands.start(["python3", "-c", program], pty=(80, 24))
    stdout = process.wait(PATIENCE).stdout
    assert (len(stdout), stdout[-3:]) == (100_003, "END")


@pytest.mark.native_only("the base image has no vim")
def test_vim_edits_a_file(sandbox):
    if not sandbox.commands.run("command -v vim").ok:
        pytest.skip("this host has no vim")
    process = sandbox.commands.start(
        ["vim", "-u", "NONE", "file"], pty=(80, 24), env={"TERM": "xterm"}
    )
    read_until(process, "~")
    process.send("ihello from vim\x1b")
    process.send(":wq\r")
    assert process.wait(PATIENCE).exit_code == 0
    assert sandbox.files.read("file") == "hello from vim\n"


@pytest.mark.native_only("the base image has no top")
def test_top_draws_and_is_quit(sandbox):
    if not sandbox.commands.run("command -v top").ok:
        pytest.skip("this host has no top")
    process = sandbox.commands.start(["top"], pty=(80, 24), env={"TERM": "xterm"})
    read_until(process, "PID")
    process.send("q")
    assert process.wait(PATIENCE).exit_code == 0
