"""Sandboxes that are none, for tests of who manages them: made, held up and killed at will."""

import anyio

from belljar import SandboxError


class FakeSandbox:
    def __init__(self, **options):
        self.options = options
        self.busy = 0
        self.alive = True
        self.last_used = 0.0
        self.ended = []  # "close", "kill"
        self.close_error = None
        self.hangs = False

    async def close(self):
        self.ended.append("close")
        await anyio.sleep(0)
        if self.hangs:
            await anyio.sleep_forever()
        if self.close_error is not None:
            raise self.close_error

    async def kill(self):
        self.ended.append("kill")
        await anyio.sleep(0)


class FakeFactory:
    """Makes them at once, unless `hold` is given: then each waits for `release()`."""

    def __init__(self):
        self.made = []
        self.calls = []
        self.held = {}  # label -> event
        self.cancelled = []
        self.fails = set()

    async def __call__(self, *, label="", hold=False, **options):
        self.calls.append(label)
        try:
            if hold:
                event = self.held[label] = anyio.Event()
                await event.wait()
            else:
                await anyio.sleep(0)
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(label)
            self.held.pop(label, None)
            raise
        if label in self.fails:
            raise SandboxError(f"{label} cannot be made")
        sandbox = FakeSandbox(label=label, **options)
        self.made.append(sandbox)
        return sandbox

    def release(self, label):
        self.held.pop(label).set()


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time

    def pass_(self, seconds):
        self.time += seconds
