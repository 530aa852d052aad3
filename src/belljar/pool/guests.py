"""The guests of a pool: carries out what `decide` wants, and writes the result into its State.

Nothing that changes the state awaits in between, so every decision is made on one consistent state.
Starts and ends of guests are background tasks: the caller that caused them may be cancelled.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from time import monotonic as now

import anyio

from belljar import events, runtime
from belljar.errors import PoolClosed
from belljar.pool import settings
from belljar.pool.decide import (
    Action,
    Bucket,
    End,
    Give,
    ReadyGuest,
    Reason,
    Refuse,
    RemoveBucket,
    Request,
    Rules,
    Start,
    State,
    Wait,
    Why,
    backoff,
    decide,
)
from belljar.pool.loop_binding import LoopBinding, close_or_kill, spawn
from belljar.pool.pooled_sandbox import IdleGuest, Lease, PooledSandbox, choose_warmup_code
from belljar.pool.stats import BucketStats, PoolStats
from belljar.sandbox.options import Options

CHECK = 15.0  # seconds after which an idle guest is asked whether it still answers
_log = logging.getLogger("belljar")


def pool_closed() -> PoolClosed:
    return PoolClosed("the pool is closed", hint="make a new one")


class PendingRequest(Request):
    """A request that a caller awaits: `settled` is set when there is a guest, or an error."""

    def __init__(self, key: Hashable, owner: Hashable) -> None:
        super().__init__(key=key, owner=owner)
        self.began = now()
        self.settled = anyio.Event()
        self.ready: ReadyGuest | None = None
        self.error: Exception | None = None


class Guests:
    def __init__(self, rules: Rules, binding: LoopBinding, warmup_code: str | None = None) -> None:
        self.rules = rules
        self.state = State()
        self.troubles: list[str] = []  # of guests that did not end properly
        self.last_error: Exception | None = None  # of a start
        self._warmup_code = warmup_code
        self._binding = binding
        self._owned: set[IdleGuest] = set()  # started, and neither leased nor ended
        self._scopes: set[anyio.CancelScope] = set()  # of starts
        self._leased: set[Lease] = set()
        self._news = anyio.Event()
        self._counts: Counter[str] = Counter()
        self._leases: Counter[Reason] = Counter()
        self._waited = dict.fromkeys(Reason, 0.0)
        self._discarded: Counter[Why] = Counter()
        self._longest_wait = 0.0

    # -- requests ---------------------------------------------------------------------------

    def ensure_bucket(self, key: Hashable, options: Options, *, permanent: bool = False) -> Bucket:
        if key not in self.state.buckets:
            self.state.buckets[key] = Bucket(
                key=key,
                options=settings.without_tenant(options),
                permanent=permanent,
                requested=now(),
            )
        return self.state.buckets[key]

    def request(self, key: Hashable, options: Options, owner: Hashable) -> PendingRequest:
        """Queue a request for a guest. It may be settled at once."""
        self.ensure_bucket(key, options)
        request = PendingRequest(key, owner)
        self.state.add_request(request, now())
        self.reconcile()
        return request

    def withdraw(self, request: PendingRequest, *, refused: bool = False) -> None:
        """Cancel a request. The guest that it was given, and did not use, goes back. `refused`: it
        waited for too long."""
        self._counts["refused"] += refused
        self.state.withdraw(request)
        if request.ready is not None:
            ready, request.ready = request.ready, None
            self.state.leased -= 1
            bucket = self.state.buckets.get(ready.key)
            if bucket is None:
                self._begin_end(ready, Why.surplus)
            else:
                bucket.ready.appendleft(ready)
        self.reconcile()

    def lease(self, request: PendingRequest, options: Options) -> PooledSandbox:
        """A sandbox on the guest of this request, which it was given for good."""
        assert request.ready is not None
        idle: IdleGuest = request.ready.guest
        request.ready = None
        self._owned.discard(idle)
        # The id of the sandbox that the guest was made for: the guest is named after it.
        sandbox = PooledSandbox._from_options(replace(options, id=idle.spec.id.rpartition("-")[0]))
        lease = Lease(idle.take_guest(), self._binding.call, self._returned)
        self._leased.add(lease)
        sandbox.use_lease(lease)
        reason, seconds = request.reason or Reason.ready, now() - request.began
        self._leases[reason] += 1
        self._waited[reason] += seconds
        self._longest_wait = max(self._longest_wait, seconds)
        name = options.environment.name
        events.tell_of_pool(events.GuestLeased(reason=reason, seconds=seconds, environment=name))
        return sandbox

    def _returned(self, lease: Lease) -> None:
        self._leased.discard(lease)
        if lease.ending:
            self.state.ending -= 1
        else:
            self.state.leased -= 1
        self.reconcile()

    # -- actions ----------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Decide and act, until there is nothing to do."""
        again = True
        while again:
            again = False
            for action in decide(self.state, self.rules, now()):
                again = self._act(action) or again
        self._news.set()
        self._news = anyio.Event()

    async def wait_for_change(self) -> None:
        await self._news.wait()

    def _act(self, action: Action) -> bool:
        """True if the action turned out to be impossible, so that `decide` must run again."""
        match action:
            case Give(request, ready):
                return not self._give(request, ready)
            case Start(key):
                self._begin_start(self.state.buckets[key])
            case End(ready, why):
                self.state.buckets[ready.key].ready.remove(ready)
                self._begin_end(ready, why)
            case Wait(request, reason):
                request.reason = reason
            case Refuse(request):
                self._fail(request, pool_closed())
            case RemoveBucket(key):
                del self.state.buckets[key]
        return False

    def _give(self, request: Request, ready: ReadyGuest) -> bool:
        if ready.guest.ended:
            ready.alive = False
            return False
        assert isinstance(request, PendingRequest)
        self.state.buckets[ready.key].ready.remove(ready)
        self.state.serve(request, now())
        self.state.leased += 1
        request.ready = ready
        request.settled.set()
        return True

    def _fail(self, request: Request, error: Exception) -> None:
        assert isinstance(request, PendingRequest)
        self.state.withdraw(request)
        request.error = error
        request.settled.set()

    # -- starts -----------------------------------------------------------------------------

    def _begin_start(self, bucket: Bucket) -> None:
        bucket.starting += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        # There are requests for those that start before this one. Does one wait for this one too?
        ahead = self.state.count_requests(bucket.key) < bucket.starting
        spawn(lambda: self._start(bucket, scope, ahead))

    async def _start(self, bucket: Bucket, scope: anyio.CancelScope, ahead: bool) -> None:
        idle: IdleGuest | None = None
        error: Exception | None = None
        try:
            with scope:
                wanted = replace(settings.without_tenant(bucket.options), ahead=ahead)
                made = PooledSandbox._from_options(wanted)
                backend = runtime.current().backend(made._options.backend)
                idle = await IdleGuest.start(backend, made._lifecycle.make_spec())
                # A request that waits already gets the guest without a warm-up.
                code = choose_warmup_code(made.environment, self._warmup_code)
                if code and self.state.first_request(bucket.key) is None:
                    await idle.warm_up(code)
        except Exception as failure:
            error = failure
            if idle is not None:
                await idle.close()
                idle = None
        finally:  # also if the event loop ends
            bucket.starting -= 1
            self._scopes.discard(scope)
        if idle is not None:
            self._counts["started"] += 1
            bucket.failures, bucket.retry, self.last_error = 0, 0.0, None
            self._owned.add(idle)
            bucket.ready.append(ReadyGuest(key=bucket.key, born=now(), checked=now(), guest=idle))
        elif error is not None:
            self._start_failed(bucket, error)
        self.reconcile()

    def _start_failed(self, bucket: Bucket, error: Exception) -> None:
        """The first request for this kind gets the error. Without a request, the start is tried
        again after a pause, which grows."""
        self._counts["start_failures"] += 1
        bucket.failures += 1
        pause = backoff(bucket.failures)
        bucket.retry = now() + pause
        first = self.state.first_request(bucket.key)
        if first is not None:
            self._fail(first, error)
        elif not self.state.closing and str(error) != str(self.last_error):
            _log.warning(
                "starting a guest for the pool failed (%s); retrying in %g s", error, pause
            )
        self.last_error = error
        events.tell_of_pool(events.GuestStartFailed(error=error))

    # -- ends -------------------------------------------------------------------------------

    def _begin_end(self, ready: ReadyGuest, why: Why) -> None:
        self._discarded[why] += 1
        self.state.ending += 1
        events.tell_of_pool(events.GuestDiscarded(reason=why))

        async def end() -> None:
            try:
                await ready.guest.close()
            except Exception as error:  # the others go on
                self._note_trouble(error)
            finally:
                self._owned.discard(ready.guest)
                self.state.ending -= 1
            self.reconcile()

        spawn(end)

    def begin_close(self, sandbox: PooledSandbox) -> None:
        """Close a leased sandbox in the background. Its guest counts until it has ended."""
        if sandbox.lease is not None and not sandbox.lease.ending:
            sandbox.lease.ending = True
            self.state.leased -= 1
            self.state.ending += 1

        async def close() -> None:
            self._note_trouble(await close_or_kill(sandbox))

        spawn(close)

    async def close_sandbox(self, sandbox: PooledSandbox) -> None:
        """Close a leased sandbox: in the background, unless it holds a directory of the host, which
        the next caller may want."""
        self.begin_close(sandbox)
        persistence = sandbox._lifecycle.persistence
        if persistence is not None and persistence.mirrors:
            await close_or_kill(sandbox)

    def _note_trouble(self, error: Exception | None) -> None:
        if error is not None:
            self.troubles = [*self.troubles[-9:], str(error)]
            _log.warning("closing a guest of the pool failed: %s", error)

    # -- health -----------------------------------------------------------------------------

    async def check_idle(self) -> None:
        """Find guests that died, ask guests that were not heard of for some time, and decide what
        follows from the time that has passed."""
        moment = now()
        buckets = list(self.state.buckets.values())
        for bucket in buckets:
            for ready in bucket.ready:
                ready.alive = ready.alive and not ready.guest.ended
        self.reconcile()
        for bucket in buckets:
            for ready in list(bucket.ready):
                if moment - ready.checked >= CHECK:
                    await self._check(bucket, ready)

    async def _check(self, bucket: Bucket, ready: ReadyGuest) -> None:
        """Ask one guest. Meanwhile it is in no bucket, so no request gets it."""
        if self.state.closing or ready not in bucket.ready:
            return
        bucket.ready.remove(ready)
        bucket.checking += 1
        ready.alive, alive = False, False  # if cancelled: its late answer would confuse a sandbox
        try:
            alive = await ready.guest.answers()
        finally:
            bucket.checking -= 1
            ready.alive = alive
            ready.checked = now()
            bucket.ready.appendleft(ready)
            self.reconcile()

    # -- close ------------------------------------------------------------------------------

    async def close(self) -> None:
        """End everything: requests fail, starts are cancelled, sandboxes are closed."""
        self.state.closing = True
        for scope in list(self._scopes):
            scope.cancel()
        self.reconcile()
        for lease in list(self._leased):
            for sandbox in list(lease.sandboxes):
                self.begin_close(sandbox)
            if not lease.sandboxes:
                lease.guest.discard()  # the caller dropped the sandbox without closing it
        while self.state.total:
            await self.wait_for_change()

    def discard(self) -> None:
        """Kill all idle guests without waiting: the event loop has ended, or the caller dropped
        the pool without closing it. Called from any thread."""
        for idle in list(self._owned):
            idle.discard()
        self._owned.clear()

    # -- numbers ----------------------------------------------------------------------------

    def count_guests(self) -> Mapping[str, int]:
        state = self.state
        return {
            "idle": state.ready + state.checking,
            "starting": state.starting,
            "leased": state.leased,
            "ending": state.ending,
        }

    @property
    def waiting(self) -> int:
        return len(self.state.waiting)

    @property
    def start_failures(self) -> int:
        return self._counts["start_failures"]

    def stats(self) -> PoolStats:
        guests = dict(self.count_guests())
        waiting = Counter(request.key for request in self.state.waiting)
        buckets = list(self.state.buckets.values())  # the pool's own kind is the first
        return PoolStats(
            ready=guests.pop("idle"),
            **guests,
            waiting=self.waiting,
            leases={reason.value: self._leases[reason] for reason in Reason},
            waited={reason.value: self._waited[reason] for reason in Reason},
            longest_wait=self._longest_wait,
            discarded={why.value: self._discarded[why] for why in Why},
            started=self._counts["started"],
            start_failures=self.start_failures,
            refused=self._counts["refused"],
            last_error=None if self.last_error is None else str(self.last_error),
            shelves=tuple(
                BucketStats(
                    backend=bucket.options.backend,
                    environment=bucket.options.environment.name,
                    differs=settings.describe_differences(bucket.options, buckets[0].options),
                    ready=len(bucket.ready) + bucket.checking,
                    starting=bucket.starting,
                    waiting=waiting[bucket.key],
                    failures=bucket.failures,
                )
                for bucket in buckets
            ),
            min_ready=self.rules.min_ready,
            max_total=self.rules.max_total,
            max_age=self.rules.max_age,
            closed=self.state.closing,
        )
