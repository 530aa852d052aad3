"""One named sandbox of a manager, from the wish to its end, and the table of all of them.

A name is taken when somebody asks for it; a place, when the wish is granted. Whoever finds no
place waits in a queue, and is handed the next one that becomes free: nobody overtakes. Nothing
here awaits, so that what is decided is decided at one moment.
"""

from __future__ import annotations

import time
from collections import Counter

import anyio

from belljar.errors import ManagerFull, QuotaExceeded, SandboxError
from belljar.pool.manager_decide import Seen
from belljar.sandbox.sandbox import AsyncSandbox


def now() -> float:
    return time.monotonic()


class Entry:
    def __init__(self, name: str, owner: str | None) -> None:
        self.name = name
        self.owner = owner
        self.sandbox: AsyncSandbox | None = None  # None: it is not there yet
        self.operations = 0
        self._lived = False
        self.born = self.used = now()
        self.admitted = anyio.Event()  # has a place
        self.settled = anyio.Event()  # is there, or will never be
        self.gone = anyio.Event()  # has ended
        self.error: Exception | None = None  # why it is not there, or did not end as it should
        self.doomed: str | None = None  # to be given up while it is being made, and why
        self.scope: anyio.CancelScope | None = None  # of its creation

    def ready(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self.born = self.used = now()
        self._lived = bool(getattr(sandbox, "alive", True))
        self.settled.set()

    def touch(self) -> None:
        self.used = now()

    def doom(self, why: str) -> None:
        """Called while it is being made: let it come to nothing."""
        self.doomed = why
        if self.scope is not None:
            self.scope.cancel()

    @property
    def busy(self) -> bool:
        """An operation is under way, or the sandbox itself knows of something that runs in it or
        waits for its turn."""
        engaged = getattr(self.sandbox, "engaged", getattr(self.sandbox, "busy", 0) > 0)
        return self.operations > 0 or engaged

    @property
    def alive(self) -> bool:
        """Only what has lived can have died: a factory may give one that starts later, or that
        knows nothing of its own death."""
        alive = bool(getattr(self.sandbox, "alive", True))
        self._lived = self._lived or alive
        return alive or not self._lived

    @property
    def lost(self) -> bool:
        return self.sandbox is not None and not self.busy and not self.alive

    def seen(self) -> Seen:
        moment = now()
        used = max(self.used, getattr(self.sandbox, "last_used", self.used))
        return Seen(
            name=self.name,
            age=moment - self.born,
            idle=moment - used,
            busy=self.busy,
            alive=self.alive,
        )


class Table:
    def __init__(self, places: int, places_per_owner: int | None) -> None:
        self.places = places
        self.places_per_owner = places_per_owner
        self.named: dict[str, Entry] = {}
        self.queue: list[Entry] = []
        self.ending: set[Entry] = set()

    @property
    def there(self) -> list[Entry]:
        return [entry for entry in self.named.values() if entry.sandbox is not None]

    @property
    def unsettled(self) -> list[Entry]:
        return [entry for entry in self.named.values() if entry.sandbox is None]

    @property
    def taken(self) -> int:
        return len(self.named) - len(self.queue) + len(self.ending)

    def by_owner(self) -> Counter[str]:
        placed = [entry for entry in self.named.values() if entry.admitted.is_set()]
        return Counter(entry.owner for entry in (*placed, *self.ending) if entry.owner is not None)

    def refusal(self, owner: str | None) -> ManagerFull | None:
        """Why there is no place for this owner now."""
        most = self.places_per_owner
        if most is not None and owner is not None and self.by_owner()[owner] >= most:
            return QuotaExceeded(
                f"maximum number of sandboxes ({most}) of {owner!r} reached",
                hint="delete one, wait for a place with wait=, or raise max_per_owner",
            )
        if self.taken >= self.places:
            return ManagerFull(
                f"maximum number of sandboxes ({self.places}) reached",
                hint="delete one, wait for a place with wait=, or raise max_sandboxes",
            )
        return None

    def enter(self, entry: Entry, *, may_wait: bool) -> None:
        """Take the name, and a place; or stand in the queue for one. Raises what refuses it."""
        refusal = self.refusal(entry.owner)
        if refusal is None:
            entry.admitted.set()
        elif may_wait:
            self.queue.append(entry)
        else:
            raise refusal
        self.named[entry.name] = entry

    def drop(self, entry: Entry, error: Exception | None) -> None:
        """It came to nothing."""
        entry.error = error
        del self.named[entry.name]
        if entry in self.queue:
            self.queue.remove(entry)
        entry.settled.set()
        self.hand_over()

    def begin_end(self, entry: Entry) -> None:
        """The name is free from now on, the place when it has ended."""
        del self.named[entry.name]
        self.ending.add(entry)

    def ended(self, entry: Entry, error: SandboxError | None) -> None:
        entry.error = error
        self.ending.discard(entry)
        entry.gone.set()
        self.hand_over()

    def hand_over(self) -> None:
        """Give free places to those who wait, in their order."""
        for entry in list(self.queue):
            if self.refusal(entry.owner) is None:
                self.queue.remove(entry)
                entry.admitted.set()
