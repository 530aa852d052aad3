"""The guests of a pool: what `decide` wants is done here, and what came of it written down.

Nothing that changes the state awaits in between, so that what is decided is decided at one moment.
Starts and ends are tasks of their own: whoever asked for a guest may be cancelled, or be gone.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Hashable, Mapping

import anyio

from belljar import runtime
from belljar.errors import PoolClosed
from belljar.pool import settings, telling, warmup
from belljar.pool.decide import (
    Action,
    End,
    Forget,
    Give,
    Idle,
    Reason,
    Refuse,
    Rules,
    Shelf,
    Start,
    State,
    Ticket,
    Wait,
    Why,
    backoff,
    decide,
)
from belljar.pool.idle_guest import Warm
from belljar.pool.loop_binding import Home
from belljar.pool.manager_end import end
from belljar.pool.pooled_sandbox import Lease, Tenant
from belljar.pool.stats import PoolStats, ShelfStats
from belljar.pool.tasks import spawn
from belljar.sandbox.options import Options

CHECK = 15.0  # seconds after which a guest that waits is asked whether it still answers
_log = logging.getLogger("belljar")


def now() -> float:
    return time.monotonic()


def closed() -> PoolClosed:
    return PoolClosed("the pool is closed", hint="make a new one")


class Wish(Ticket):
    """Somebody who wants a guest, and what came of it."""

    def __init__(self, key: Hashable, owner: Hashable) -> None:
        super().__init__(key=key, owner=owner)
        self.began = now()
        self.settled = anyio.Event()
        self.idle: Idle | None = None
        self.error: Exception | None = None


class Stock:
    def __init__(self, rules: Rules, home: Home, rehearsal: str | None = None) -> None:
        self.rules = rules
        self._rehearsal = rehearsal
        self.state = State()
        self.home = home
        self.troubles: list[str] = []
        self._kinds: dict[Hashable, Options] = {}
        self._warm: dict[int, Warm] = {}  # of those that are ready
        self._checked: dict[int, float] = {}
        self._owned: set[Warm] = set()  # all that were started, and not yet leased or ended
        self._scopes: set[anyio.CancelScope] = set()  # of starts
        self._leased: set[Lease] = set()
        self._numbers = itertools.count(1)
        self._news = anyio.Event()
        self._counts: Counter[str] = Counter()
        self._leases: Counter[Reason] = Counter()
        self._waited = dict.fromkeys(Reason, 0.0)
        self._discarded: Counter[Why] = Counter()
        self._longest = 0.0
        self.last_error: Exception | None = None

    # -- shelves and wishes -----------------------------------------------------------------

    def shelf(self, key: Hashable, options: Options, *, permanent: bool = False) -> Shelf:
        if key not in self.state.shelves:
            self.state.shelves[key] = Shelf(key=key, permanent=permanent, asked=now())
            self._kinds[key] = settings.blank(options)
        return self.state.shelves[key]

    def ask(self, key: Hashable, options: Options, owner: Hashable) -> Wish:
        """Stand in line for a guest. It may be there at once: see `settled`."""
        self.shelf(key, options)
        wish = Wish(key, owner)
        self.state.enter(wish, now())
        self.reconcile()
        return wish

    def withdraw(self, wish: Wish) -> None:
        """He does not want it any more; a guest that he was given, but did not use, goes back."""
        self.state.leave(wish)
        if wish.idle is not None:
            idle, wish.idle = wish.idle, None
            self.state.leased -= 1
            shelf = self.state.shelves.get(idle.key)
            if shelf is None:
                self._begin_end(idle, Why.surplus)
            else:
                shelf.ready.appendleft(idle)
        self.reconcile()

    def move_in(self, wish: Wish, options: Options) -> Tenant:
        """The guest of this wish becomes a tenant's, who has its id."""
        idle, wish.idle = wish.idle, None
        assert idle is not None
        warm = self._warm.pop(idle.number)
        self._checked.pop(idle.number, None)
        self._owned.discard(warm)
        tenant = Tenant._from_options(options)
        lease = Lease(warm.lease(), self.home.call, self._returned)
        self._leased.add(lease)
        tenant.move_in(lease)
        self._told_lease(wish, options)
        return tenant

    def id_of(self, wish: Wish) -> str:
        """The id of the sandbox for which its guest was made."""
        assert wish.idle is not None
        return self._warm[wish.idle.number].spec.id.rpartition("-")[0]

    def _told_lease(self, wish: Wish, options: Options) -> None:
        reason, seconds = wish.reason or Reason.ready, now() - wish.began
        self._leases[reason] += 1
        self._waited[reason] += seconds
        self._longest = max(self._longest, seconds)
        telling.tell(
            telling.Leased(reason=reason, seconds=seconds, environment=options.environment.name)
        )

    def refused(self) -> None:
        self._counts["refused"] += 1

    def _returned(self, lease: Lease) -> None:
        self._leased.discard(lease)
        if lease.ending:
            self.state.ending -= 1
        else:
            self.state.leased -= 1
        self.reconcile()

    # -- what is decided, done --------------------------------------------------------------

    def reconcile(self) -> None:
        again = True
        while again:
            again = False
            for action in decide(self.state, self.rules, now()):
                again = self._act(action) or again
        self._news.set()
        self._news = anyio.Event()

    async def changed(self) -> None:
        """Wait until something has happened."""
        await self._news.wait()

    def _act(self, action: Action) -> bool:
        """Whether it turned out otherwise, so that it must be decided anew."""
        match action:
            case Give(ticket, guest):
                return not self._give(ticket, guest)
            case Start(key):
                self._begin_start(self.state.shelves[key])
            case End(guest, why):
                self.state.shelves[guest.key].ready.remove(guest)
                self._begin_end(guest, why)
            case Wait(ticket, reason):
                ticket.reason = reason
            case Refuse(ticket):
                self._settle(ticket, closed())
            case Forget(key):
                del self.state.shelves[key], self._kinds[key]
        return False

    def _give(self, ticket: Ticket, idle: Idle) -> bool:
        if self._warm[idle.number].ended:
            idle.alive = False
            return False
        assert isinstance(ticket, Wish)
        self.state.shelves[idle.key].ready.remove(idle)
        self.state.serve(ticket, now())
        self.state.leased += 1
        ticket.idle = idle
        ticket.settled.set()
        return True

    def _settle(self, ticket: Ticket, error: Exception) -> None:
        assert isinstance(ticket, Wish)
        self.state.leave(ticket)
        ticket.error = error
        ticket.settled.set()

    # -- starts -----------------------------------------------------------------------------

    def _begin_start(self, shelf: Shelf) -> None:
        shelf.starting += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        spawn(lambda: self._start(shelf, scope))

    async def _start(self, shelf: Shelf, scope: anyio.CancelScope) -> None:
        warm: Warm | None = None
        error: Exception | None = None
        try:
            with scope:
                made = Tenant._from_options(settings.blank(self._kinds[shelf.key]))
                backend = runtime.current().backend(made._options.backend)
                warm = await Warm.start(backend, made._lifecycle.make_spec())
                # Who waits has it as it is.
                code = warmup.code_for(made.environment, self._rehearsal)
                if code and self.state.next_of(shelf.key) is None:
                    await warm.rehearse(code)
        except Exception as failure:
            error = failure
            if warm is not None:
                await warm.retire()
                warm = None
        finally:  # also if the event loop ends
            shelf.starting -= 1
            self._scopes.discard(scope)
        if warm is not None:
            self._came_up(shelf, warm)
        elif error is not None:
            self._failed(shelf, error)
        self.reconcile()

    def _came_up(self, shelf: Shelf, warm: Warm) -> None:
        self._counts["started"] += 1
        shelf.failures, shelf.retry, self.last_error = 0, 0.0, None
        idle = Idle(key=shelf.key, born=now(), number=next(self._numbers))
        self._warm[idle.number] = warm
        self._owned.add(warm)
        self._checked[idle.number] = idle.born
        shelf.ready.append(idle)

    def _failed(self, shelf: Shelf, error: Exception) -> None:
        """Told to the first who waits for one of these: his turn it was. In the background it is
        tried again later, and later still."""
        self._counts["start_failures"] += 1
        shelf.failures += 1
        shelf.retry = now() + backoff(shelf.failures)
        first = self.state.next_of(shelf.key)
        if first is not None:
            self._settle(first, error)
        elif not self.state.closing and str(error) != str(self.last_error):
            _log.warning("a guest for the pool could not be started: %s", error)
        self.last_error = error
        telling.tell(telling.StartFailed(error=error))

    # -- ends -------------------------------------------------------------------------------

    def _begin_end(self, idle: Idle, why: Why) -> None:
        warm = self._warm.pop(idle.number)
        self._checked.pop(idle.number, None)
        self._discarded[why] += 1
        self.state.ending += 1
        telling.tell(telling.Discarded(why=why))
        spawn(lambda: self._end(warm))

    async def _end(self, warm: Warm) -> None:
        try:
            await warm.retire()
        except Exception as error:  # whatever it is, others go on
            self._trouble(error)
        finally:
            self._owned.discard(warm)
            self.state.ending -= 1
        self.reconcile()

    def dismiss(self, tenant: Tenant) -> None:
        """End a tenant whose work is done, while nobody waits for that. His place is counted
        until he is gone."""
        if tenant.lease is not None and not tenant.lease.ending:
            tenant.lease.ending = True
            self.state.leased -= 1
            self.state.ending += 1
        spawn(lambda: self._dismiss(tenant))

    async def finish(self, tenant: Tenant) -> None:
        """The same; but files that are kept on the host are let go of first, for the next."""
        self.dismiss(tenant)
        if tenant.keeps_files:
            await end(tenant)

    async def _dismiss(self, tenant: Tenant) -> None:
        self._trouble(await end(tenant))

    def _trouble(self, error: Exception | None) -> None:
        if error is not None:
            self.troubles = [*self.troubles[-9:], str(error)]
            _log.warning("a guest of the pool did not end as it should: %s", error)

    # -- care -------------------------------------------------------------------------------

    async def care(self) -> None:
        """Now and then: guests that have died are found, those that say nothing are asked, and
        what time has changed is decided."""
        moment = now()
        for shelf in list(self.state.shelves.values()):
            for idle in shelf.ready:
                idle.alive = idle.alive and not self._warm[idle.number].ended
        self.reconcile()
        for shelf in list(self.state.shelves.values()):
            for idle in list(shelf.ready):
                if moment - self._checked.get(idle.number, moment) >= CHECK:
                    await self._check(shelf, idle)

    async def _check(self, shelf: Shelf, idle: Idle) -> None:
        """One after the other, and meanwhile it is given to nobody."""
        if self.state.closing or idle not in shelf.ready:
            return
        shelf.ready.remove(idle)
        shelf.checking += 1
        idle.alive, alive = False, False  # an answer that nobody waits for must not come later
        try:
            alive = await self._warm[idle.number].ready()
        finally:
            shelf.checking -= 1
            idle.alive = alive
            self._checked[idle.number] = now()
            shelf.ready.appendleft(idle)
            self.reconcile()

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything. Those who wait are told; starts are given up; tenants are cut short."""
        self.state.closing = True
        for scope in list(self._scopes):
            scope.cancel()
        self.reconcile()
        for lease in list(self._leased):
            for tenant in list(lease.tenants):
                self.dismiss(tenant)
            if not lease.tenants:
                lease.guest.discard()  # they were forgotten, and it with them
        while self.state.total:
            await self.changed()

    def discard(self) -> None:
        """Let go of everything without waiting: the event loop has ended, or nobody has closed
        the pool. Called from any thread."""
        for warm in list(self._owned):
            warm.discard()
        self._owned.clear()

    # -- numbers ----------------------------------------------------------------------------

    def guests(self) -> Mapping[str, int]:
        state = self.state
        return {
            "idle": state.ready + sum(s.checking for s in list(state.shelves.values())),
            "starting": state.starting,
            "leased": state.leased,
            "ending": state.ending,
        }

    @property
    def waiting(self) -> int:
        return len(self.state.waiting)

    def stats(self) -> PoolStats:
        guests = self.guests()
        waiting = Counter(ticket.key for ticket in self.state.waiting)
        usual = next(iter(self._kinds.values()), None)  # the pool's own is made first, and stays
        return PoolStats(
            ready=guests["idle"],
            starting=guests["starting"],
            leased=guests["leased"],
            ending=guests["ending"],
            waiting=self.waiting,
            leases={reason.value: self._leases[reason] for reason in Reason},
            waited={reason.value: self._waited[reason] for reason in Reason},
            longest_wait=self._longest,
            discarded={why.value: self._discarded[why] for why in Why},
            started=self._counts["started"],
            start_failures=self._counts["start_failures"],
            refused=self._counts["refused"],
            last_error=None if self.last_error is None else str(self.last_error),
            shelves=tuple(
                ShelfStats(
                    backend=self._kinds[key].backend,
                    environment=self._kinds[key].environment.name,
                    differs=settings.differing(self._kinds[key], usual) if usual else {},
                    ready=len(shelf.ready) + shelf.checking,
                    starting=shelf.starting,
                    waiting=waiting[key],
                    failures=shelf.failures,
                )
                for key, shelf in self.state.shelves.items()
            ),
            min_ready=self.rules.min_ready,
            max_total=self.rules.max_total,
            max_age=self.rules.max_age,
            closed=self.state.closing,
        )
