"""What a pool does next: decided without I/O, and so under any circumstances one can think of."""

import doctest

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from belljar.pool import decide as module
from belljar.pool.decide import (
    KEEP,
    LINGER,
    QUIET,
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
    decide,
)

RULES = Rules(min_ready=2, max_total=4, max_age=100.0, starts=3, refills=2)


def a_state(ready=0, key="a", **facts):
    state = State()
    state.buckets[key] = Bucket(key=key, permanent=True)
    state.buckets[key].ready.extend(ReadyGuest(key=key, born=0.0, guest=n) for n in range(ready))
    for name, value in facts.items():
        setattr(state, name, value)
    return state


def ask(state, key="a", owner=None, now=0.0):
    request = Request(key=key, owner=owner)
    state.add_request(request, now)
    return request


def kinds(actions):
    return [type(action) for action in actions]


def test_what_is_said_in_examples_is_so():
    assert doctest.testmod(module).failed == 0


def test_an_empty_bucket_is_filled_and_a_full_one_left_alone():
    assert decide(a_state(), RULES, 0.0) == [Start("a"), Start("a")]
    assert decide(a_state(2), RULES, 0.0) == []


def test_deciding_changes_nothing():
    state = a_state(1)
    ask(state)
    ask(state)
    once, twice = decide(state, RULES, 0.0), decide(state, RULES, 0.0)
    assert kinds(once) == kinds(twice) == [Give, Start, Wait, Start]
    assert len(state.waiting) == 2
    assert len(state.buckets["a"].ready) == 1


def test_the_oldest_guest_is_given_to_the_first_in_line():
    state = a_state(2)
    first, second = ask(state), ask(state)
    given = [action for action in decide(state, RULES, 0.0) if isinstance(action, Give)]
    assert [(each.request, each.guest.guest) for each in given] == [(first, 0), (second, 1)]


def test_neither_a_dead_guest_nor_one_that_is_too_old_is_given():
    state = a_state(2)
    state.buckets["a"].ready[0].alive = False
    state.buckets["a"].ready[1].born = -100.0
    ask(state)
    actions = decide(state, RULES, 0.0)
    assert [action.why for action in actions if isinstance(action, End)] == [Why.dead, Why.old]
    assert Give not in kinds(actions)


def test_who_finds_no_guest_has_one_started_and_is_told_that():
    state = a_state()
    request = ask(state)
    assert decide(state, RULES, 0.0)[:2] == [Start("a"), Wait(request, Reason.on_demand)]


def test_a_start_under_way_is_for_who_waits_and_not_doubled():
    state = a_state()
    state.buckets["a"].starting = 1
    ask(state)
    rules = Rules(min_ready=0, max_total=4, max_age=None, starts=3, refills=2)
    assert Start not in kinds(decide(state, rules, 0.0))
    ask(state)
    assert kinds(decide(state, rules, 0.0)).count(Start) == 1


def test_at_the_maximum_everybody_waits_and_is_told_so():
    state = a_state(leased=4)
    request = ask(state)
    assert decide(state, RULES, 0.0) == [Wait(request, Reason.at_capacity)]
    state.leased, state.ending = 3, 1
    assert decide(state, RULES, 0.0) == [Wait(request, Reason.at_capacity)]
    state.ending = 0
    request.reason = Reason.at_capacity
    assert decide(state, RULES, 0.0) == [Start("a")]


def test_a_guest_that_nobody_wants_makes_room_for_one_that_somebody_does():
    state = a_state(2, leased=2)
    state.buckets["b"] = Bucket(key="b")
    ask(state, "b")
    ended = [action for action in decide(state, RULES, 0.0) if isinstance(action, End)]
    assert [action.why for action in ended] == [Why.room]
    # While that one ends, no other has to.
    state.buckets["a"].ready.remove(ended[0].guest)
    state.ending = 1
    assert End not in kinds(decide(state, RULES, 0.0))


def test_those_who_wait_come_before_those_who_may_come():
    state = a_state()
    state.buckets["b"] = Bucket(key="b")
    for _ in range(4):
        ask(state, "b")
    assert [action.key for action in decide(state, RULES, 0.0) if isinstance(action, Start)] == [
        "b",
        "b",
        "b",  # not more at once, and the last place is kept for the fourth
    ]


def test_while_tenants_come_and_go_only_a_bucket_less_than_half_full_is_filled():
    assert decide(a_state(1, leased=1, given=0.0), RULES, 0.0) == []
    assert decide(a_state(0, leased=1, given=0.0), RULES, 0.0) == [Start("a")]
    assert decide(a_state(1, leased=1, given=0.0), RULES, QUIET) == [Start("a")]


def test_a_guest_that_is_given_now_is_not_replaced_before_its_caller_has_used_it():
    state = a_state(2)
    ask(state)
    assert kinds(decide(state, RULES, 0.0)) == [Give]


def test_a_kind_asked_for_once_is_not_kept_ready_and_one_asked_for_again_is_for_a_while():
    state = a_state(2)
    state.buckets["b"] = Bucket(key="b", requests=1, requested=0.0)
    assert decide(state, RULES, 1.0) == []
    state.buckets["b"].requests = 2
    assert decide(state, RULES, 1.0) == [Start("b"), Start("b")]
    assert decide(state, RULES, KEEP + 1) == [RemoveBucket("b")]


def test_guests_beyond_what_is_wanted_linger_a_moment_and_go():
    state = a_state(3)
    assert decide(state, RULES, LINGER) == []
    assert [action.why for action in decide(state, RULES, LINGER + 1)] == [Why.surplus]


def test_after_a_failure_nobody_is_kept_waiting_but_the_bucket_is():
    state = a_state()
    state.buckets["a"].retry = 5.0
    assert decide(state, RULES, 0.0) == []
    ask(state)
    assert [a for a in decide(state, RULES, 0.0) if isinstance(a, Start)] == [Start("a")]
    assert decide(a_state(), RULES, 5.0) == [Start("a"), Start("a")]


def test_the_end_is_the_end_of_all():
    state = a_state(2, closing=True)
    ask(state)
    assert kinds(decide(state, RULES, 0.0)) == [End, End, Refuse]


def test_owners_take_turns_however_many_requests_one_has():
    state = a_state()
    crowd = [ask(state, owner="crowd") for _ in range(100)]
    single = ask(state, owner="single")
    assert state.waiting.index(single) == 1
    assert [request for request in state.waiting if request is not single] == crowd
    for _ in range(50):
        state.serve(state.waiting[0], 0.0)
    late = ask(state, owner="late")
    assert state.waiting.index(late) <= 1


def test_who_gave_up_has_not_had_a_turn():
    state = a_state()
    requests = [ask(state, owner="x") for _ in range(6)]
    other = ask(state, owner="y")
    for request in requests[:4]:
        state.withdraw(request)
    assert state.waiting.index(requests[4]) <= 1
    assert state.waiting.index(other) <= 1
    state.withdraw(requests[4])
    state.withdraw(requests[5])
    for _ in range(10):
        state.withdraw(ask(state, owner="x"))
    again = ask(state, owner="x")
    ask(state, owner="y")
    assert state.waiting.index(again) <= 1


def test_new_owners_do_not_keep_an_old_one_from_his_turn():
    state = a_state()
    for _ in range(3):
        ask(state, owner="old")
    last = state.waiting[-1]
    for number in range(1000):
        ask(state, owner=number)
        state.serve(state.waiting[0], 0.0)
        if last not in state.waiting:
            break
    assert last not in state.waiting
    assert number < 10


# -- a pool under whatever may happen to it ---------------------------------------------------


class Life(RuleBasedStateMachine):
    """A pool whose guests are made up: what `decide` wants is done, in any order in time."""

    @initialize(
        min_ready=st.integers(0, 3),
        more=st.integers(0, 3),
        max_age=st.sampled_from([None, 50.0]),
        starts=st.integers(1, 4),
    )
    def begin(self, min_ready, more, max_age, starts):
        most = max(min_ready + more, 1)
        self.rules = Rules(
            min_ready=min_ready, max_total=most, max_age=max_age, starts=starts, refills=2
        )
        self.state = State()
        self.state.buckets["a"] = Bucket(key="a", permanent=True)
        self.now = 0.0
        self.numbers = 0
        self.starting = []  # keys
        self.used = {}  # number of a guest in use -> its owner
        self.ending = 0
        self.dead = set()
        self.ever_given = set()
        self.served = []  # owners, in their order
        self.asked = []  # requests that wait
        self.refused = []
        self.settle()

    # -- what the world does ------------------------------------------------------------

    def settle(self):
        """Do what is decided, until nothing is. Each decision keeps what was promised."""
        for _ in range(100):
            actions = decide(self.state, self.rules, self.now)
            if not actions:
                return
            for action in actions:
                self.do(action)
            assert self.state.total <= self.rules.max_total
        raise AssertionError("it never comes to rest")

    def do(self, action):
        state = self.state
        match action:
            case Start(key):
                assert state.total < self.rules.max_total
                assert not state.closing
                state.buckets[key].starting += 1
                self.starting.append(key)
                others = len(set(self.starting)) - 1  # each kind may have one in any case
                assert len(self.starting) <= max(self.rules.starts, self.rules.refills) + others
            case Give(request, guest):
                assert request.key == guest.key
                assert guest.guest not in self.ever_given
                assert guest.guest not in self.dead
                assert self.rules.max_age is None or self.now - guest.born < self.rules.max_age
                self.ever_given.add(guest.guest)
                state.buckets[guest.key].ready.remove(guest)
                state.serve(request, self.now)
                state.leased += 1
                self.used[guest.guest] = request.owner
                self.served.append(request.owner)
                self.asked.remove(request)
            case End(guest, why):
                if why is Why.dead:
                    assert guest.guest in self.dead
                state.buckets[guest.key].ready.remove(guest)
                state.ending += 1
                self.ending += 1
            case Wait(request, reason):
                assert request.reason is not reason
                assert request.reason is not Reason.at_capacity
                request.reason = reason
            case Refuse(request):
                assert state.closing
                state.withdraw(request)
                self.asked.remove(request)
                self.refused.append(request)
            case RemoveBucket(key):
                assert key != "a"
                assert not any(request.key == key for request in state.waiting)
                del state.buckets[key]

    def came_up(self):
        key = self.starting.pop(0)
        bucket = self.state.buckets[key]
        bucket.starting -= 1
        self.numbers += 1
        bucket.ready.append(ReadyGuest(key=key, born=self.now, guest=self.numbers))

    @precondition(lambda self: not self.state.closing)
    @rule(key=st.sampled_from("abc"), owner=st.sampled_from(["x", "y", None]), many=st.booleans())
    def ask(self, key, owner, many):
        if key not in self.state.buckets:
            self.state.buckets[key] = Bucket(key=key, requested=self.now)
        for _ in range(5 if many else 1):
            request = Request(key=key, owner=owner)
            self.state.add_request(request, self.now)
            self.asked.append(request)
        self.settle()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def give_up(self, data):
        request = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        self.state.withdraw(request)
        self.settle()

    @precondition(lambda self: self.starting)
    @rule()
    def start_ends_well(self):
        self.came_up()
        self.settle()

    @precondition(lambda self: self.starting)
    @rule()
    def start_fails(self):
        key = self.starting.pop(0)
        bucket = self.state.buckets[key]
        bucket.starting -= 1
        bucket.failures += 1
        bucket.retry = self.now + module.backoff(bucket.failures)
        first = self.state.first_request(key)
        if first is not None:
            self.state.withdraw(first)
            self.asked.remove(first)
        self.settle()

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def tenant_leaves(self, data):
        number = data.draw(st.sampled_from(sorted(self.used)))
        del self.used[number]
        self.state.leased -= 1
        self.state.ending += 1
        self.ending += 1
        self.settle()

    @precondition(lambda self: self.ending)
    @rule()
    def guest_has_ended(self):
        self.ending -= 1
        self.state.ending -= 1
        self.settle()

    @precondition(lambda self: self.state.ready)
    @rule(data=st.data())
    def idle_guest_dies(self, data):
        ready = [idle for bucket in self.state.buckets.values() for idle in bucket.ready]
        idle = data.draw(st.sampled_from(ready))
        idle.alive = False
        self.dead.add(idle.guest)
        self.settle()

    @precondition(lambda self: self.state.buckets["a"].ready)
    @rule(answers=st.booleans())
    def idle_guest_is_asked(self, answers):
        """And meanwhile is nobody's."""
        bucket = self.state.buckets["a"]
        idle = bucket.ready.popleft()
        bucket.checking += 1
        self.settle()
        bucket.checking -= 1
        idle.alive = idle.alive and answers
        if not idle.alive:
            self.dead.add(idle.guest)
        bucket.ready.appendleft(idle)
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0, 70.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.settle()

    @rule()
    def pool_closes(self):
        self.state.closing = True
        self.settle()

    # -- what always holds --------------------------------------------------------------

    @invariant()
    def nothing_is_miscounted(self):
        if not hasattr(self, "state"):
            return
        state = self.state
        assert state.starting == len(self.starting)
        assert state.leased == len(self.used)
        assert state.ending == self.ending
        assert state.total <= self.rules.max_total
        assert sorted(map(id, state.waiting)) == sorted(map(id, self.asked))

    def quieten(self, until):
        """Starts go well, used guests end, time passes: until it is so, or not within reason."""
        for _ in range(300 + 2 * len(self.asked)):
            if until():
                return True
            while self.starting and not self.state.closing:
                self.came_up()
                self.settle()
            while self.state.closing and self.starting:
                self.state.buckets[self.starting.pop()].starting -= 1
            while self.ending:
                self.guest_has_ended()
            if self.used:
                number = min(self.used)
                del self.used[number]
                self.state.leased -= 1
                self.state.ending += 1
                self.ending += 1
            self.now += 1.0
            self.settle()
        return until()

    def teardown(self):
        if not hasattr(self, "state"):
            return
        if not self.state.closing:
            owners = {request.owner for request in self.asked}
            before = len(self.served)
            assert self.quieten(lambda: not self.asked), "somebody waits for ever"
            # Nobody had two more turns than another who waited, when all that hinders is gone.
            first = self.served[before:][: 2 * len(owners) + self.rules.max_total]
            if len(self.served) - before > 2 * len(owners) + self.rules.max_total:
                assert owners <= set(first)
            assert self.quieten(
                lambda: len(self.state.buckets["a"].ready) >= self.rules.min_ready
            ), "the bucket is never filled"
        self.state.closing = True
        self.settle()
        assert self.quieten(lambda: self.state.total == 0), "something is left"
        assert not self.asked


Life.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
)
TestLife = Life.TestCase
