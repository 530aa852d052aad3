import os
import signal
import socket
import threading

import anyio
import pytest

from belljar.backends.event_loop import (
    CallerThread,
    Lock,
    MoveToLoop,
    caller_thread,
    finish_in_time,
    move_to_loop,
)
from belljar.errors import SandboxError


@pytest.fixture(params=["asyncio", "trio"])
def run_loop(request):
    return lambda function: anyio.run(function, backend=request.param)


@pytest.fixture
def caller():
    made = CallerThread(loop=None)
    yield made
    made.close()


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    with here, there:
        yield here, there


# --- the lock --------------------------------------------------------------------------------


def test_a_lock_is_given_in_the_order_of_requests(run_loop):
    async def main():
        async def work(name):
            async with lock:
                order.append(name)
                await anyio.sleep(0)

        lock, order = Lock(), []
        async with anyio.create_task_group() as tasks, lock:
            for name in range(5):
                tasks.start_soon(work, name)
                await anyio.wait_all_tasks_blocked()
        assert order == [0, 1, 2, 3, 4]
        assert not lock.locked()

    run_loop(main)


def test_one_that_no_longer_waits_does_not_keep_the_lock_from_others(run_loop):
    async def main():
        async def work(scope, name):
            with scope:
                async with lock:
                    order.append(name)

        lock, order, scopes = Lock(), [], [anyio.CancelScope() for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            async with lock:
                for name, scope in enumerate(scopes):
                    tasks.start_soon(work, scope, name)
                    await anyio.wait_all_tasks_blocked()
                scopes[1].cancel()
            scopes[0].cancel()  # in the moment in which it is its turn
        assert order in ([2], [0, 2])  # by then it may have it
        assert not lock.locked()

    run_loop(main)


def test_under_two_loops_at_once_a_lock_is_an_error():
    async def main():
        async with lock:
            thread.start()
            await anyio.to_thread.run_sync(thread.join)

    async def other():
        with pytest.raises(SandboxError, match="another event loop"):
            async with lock:
                pass
        refused.append(True)

    lock, refused = Lock(), []
    thread = threading.Thread(target=lambda: anyio.run(other))
    anyio.run(main)
    assert refused == [True]


# --- a thread that waits by itself -----------------------------------------------------------


def test_it_waits_until_the_socket_can_be_read(caller, ends):
    here, there = ends
    thread = threading.Timer(0.05, there.send, [b"x"])
    thread.start()
    caller.wait_readable(here)
    assert here.recv(1) == b"x"
    thread.join()


def test_it_waits_no_longer_than_it_may(caller, ends):
    caller.limit(0.02)
    with pytest.raises(MoveToLoop):
        caller.wait_readable(ends[0])


def test_another_thread_calls_it_back(caller, ends):
    caller.begin()
    try:
        thread = threading.Timer(0.05, caller.recall)
        thread.start()
        with pytest.raises(MoveToLoop):
            caller.wait_readable(ends[0])
        thread.join()
    finally:
        caller.end()


def test_being_called_back_too_late_does_not_disturb_the_next_call(caller, ends):
    here, there = ends
    caller.begin()
    caller.end()
    thread = threading.Thread(target=caller.recall)
    thread.start()
    thread.join()
    caller.begin()
    try:
        caller.limit(0.05)
        there.send(b"x")
        caller.wait_readable(here)
        assert here.recv(1) == b"x"
        with pytest.raises(MoveToLoop):  # the time is up
            caller.wait_readable(here)
    finally:
        caller.end()


def test_handlers_of_signals_are_put_off_while_it_works_and_end_its_waiting(caller, ends):
    called = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    handler = signal.getsignal(signal.SIGUSR1)
    try:
        caller.begin()
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (called, len(caller.deferred)) == ([], 1)
            with pytest.raises(MoveToLoop):
                caller.wait_readable(ends[0])
        finally:
            caller.end()
        assert signal.getsignal(signal.SIGUSR1) is handler
        for put_off in caller.deferred:
            put_off()
        assert called == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_coroutine_gives_itself_up_only_where_it_needs_a_loop(caller, ends):
    async def work():
        caller.wait_readable(ends[0])
        return "here"

    async def main():
        return await finish_in_time(work, 0.02)

    ends[1].send(b"x")
    caller.begin()
    try:
        assert caller_thread() is caller
        with pytest.raises(StopIteration) as ended:
            main().send(None)
        assert ended.value.value == "here"
        ends[0].recv(1)
        coroutine = main()
        assert coroutine.send(None) is None  # it awaits a loop
    finally:
        caller.end()
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value is None


def test_under_a_loop_there_is_nothing_to_move(run_loop):
    async def main():
        assert caller_thread() is None
        await move_to_loop()

    run_loop(main)
