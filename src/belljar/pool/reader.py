"""The input of a map, read in a thread of its own: beside the results, which it may wait for."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from belljar.pool.flight import Flight
from belljar.pool.tasks import spawn


class Reader:
    """Not more than the flight's window is read ahead."""

    def __init__(self, flight: Flight, codes: Iterable[object]) -> None:
        self._flight = flight
        self._codes = codes
        self._room = threading.Semaphore(flight.window)
        self._handed: deque[Callable[[], None]] = deque()
        self._stopped = False
        # A daemon: what it reads may never come, and nobody waits for that.
        self._thread = threading.Thread(target=self._run, name="belljar-input", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def took_one(self) -> None:
        self._room.release()

    def stop(self) -> None:
        """It ends when its input lets it."""
        self._stopped = True
        self._room.release()

    def _run(self) -> None:
        flight, error = self._flight, None
        try:
            for item in self._codes:
                self._room.acquire()
                if self._stopped or not self._hand(functools.partial(flight.add, item)):
                    break
        except Exception as failure:
            error = failure
        self._hand(lambda: flight.exhaust(error))

    def _hand(self, function: Callable[[], None]) -> bool:
        """Have it done by a task of the loop, in the order in which they came; False if the loop
        has ended."""
        self._handed.append(function)
        return self._flight.home.call(lambda: spawn(self._take_in))

    async def _take_in(self) -> None:
        self._handed.popleft()()


def item_of(source: Iterator[object], flight: Flight) -> Callable[[], None]:
    """Take the next of the input now; what is to be done with it, on the loop, later."""
    try:
        item = next(source)
    except StopIteration:
        return flight.exhaust
    except Exception as error:
        failure = error
        return lambda: flight.exhaust(failure)
    return lambda: flight.add(item)
