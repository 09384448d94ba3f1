"""Hypothesis makes up what happens; both stores and a plain model must agree on every answer, row and event.

The stores stay open from example to example (opening one takes longer than an example): each has queues, keys, jobs and
workers of its own and ends all its jobs. After every rule the time moves on by a millisecond, so that no two writes
happen at the same time and the order of a queue is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from keptwork.core.lifecycles import JOB
from keptwork.errors import StoreError
from keptwork.store import NewJob
from tests.conformance.plain_model import JOB_MOVES, WORKER_MOVES, PlainJob, PlainStore, Wish
from tests.conformance.sides import MS, Side, Stores
from tests.support.broken_sql import ignore_columns

T = TypeVar("T")
QUEUES = ("red", "blue")
numbers, sometimes = st.integers(0, 7), st.sampled_from((True, True, False))


def ending(*triggers: str) -> st.SearchStrategy[tuple[Any, ...]]:
    """A holder ends its turn with a job, one way or another."""
    return st.tuples(st.just("finish"), numbers, st.sampled_from(triggers), st.sampled_from((0, 30)), sometimes)


DEEDS = st.one_of(
    st.tuples(
        st.just("enqueue"),
        st.sampled_from(QUEUES),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),  # priorities
        st.sampled_from((0, 0, 50)),  # delay
        st.sampled_from((None, None, "a", "b")),  # key
        st.integers(1, 2),  # max_attempts
        st.sampled_from(("dead_letter", "fail")),
    ),
    st.tuples(
        st.just("claim"),
        numbers,
        st.sampled_from((QUEUES, QUEUES[::-1], ("blue",))),
        st.integers(1, 3),
        st.sampled_from((30, 100, 500)),  # lease
    ),
    st.tuples(st.just("start"), numbers, sometimes),
    ending("succeed", "fail", "cancel", "dead_letter"),
    ending("retry", "snooze", "release"),
    st.tuples(
        st.just("meddle"),
        numbers,
        st.sampled_from([trigger for trigger in JOB_MOVES if trigger != "claim"]),
        st.sampled_from(("holder", "reaper", "operator")),
        st.booleans(),
    ),
    st.tuples(
        st.just("write_what_was_decided"),
        st.lists(numbers, min_size=1, max_size=4),
        st.sampled_from((0, 0, 120)),  # late
    ),
    st.tuples(st.just("wait"), st.sampled_from((5, 25, 120)), st.booleans()),
    st.tuples(st.just("renew"), numbers, st.lists(numbers, min_size=1, max_size=3), st.sampled_from((0, 0, 1))),
    st.tuples(st.just("supervise"), numbers, st.sampled_from(list(WORKER_MOVES)), st.sampled_from(QUEUES)),
)


class Machine(RuleBasedStateMachine):
    """Does the same to both stores and to the model."""

    stores: Stores

    def __init__(self) -> None:
        super().__init__()
        self.model = PlainStore(now=self.stores.now)
        self.stores.examples += 1
        self.name = f"example-{self.stores.examples}"
        self.sides = [Side(timed.store, self.name) for timed in self.stores.timed]
        self.wishes: list[Wish] = []
        self.claims = count(self.stores.examples * 10_000)
        self.claimed: list[tuple[int, int]] = []  # worker, claim
        self.agreed = True

    @rule(deed=DEEDS)
    def happens(self, deed: tuple[Any, ...]) -> None:
        """One rule that chooses among all deeds: of several rules Hypothesis leaves most out of each example, and it
        takes many kinds of deeds to get a job anywhere."""
        name, *facts = deed
        getattr(self, name)(*facts)

    # --- deeds

    @initialize(priorities=st.lists(st.integers(0, 2), min_size=2, max_size=4))
    def begin(self, priorities: list[int]) -> None:
        self.hire()
        self.hire()
        self.enqueue("red", priorities, 0, None, 2, "dead_letter")
        self.claim(0, QUEUES, 2, 100)

    def enqueue(
        self, queue: str, priorities: list[int], delay: int, key: str | None, max_attempts: int, on_exhausted: str
    ) -> None:
        due = self.model.now + delay
        expected = [self.model.enqueue(PlainJob(queue, p, due, max_attempts, on_exhausted), key) for p in priorities]
        common = NewJob(
            "k",
            queue=f"{self.name}-{queue}",
            key=key and f"{self.name}-{key}",
            delay_us=delay * MS,
            max_attempts=max_attempts,
            on_exhausted=on_exhausted,
        )
        jobs = [common._replace(priority=priority) for priority in priorities]
        self.same(expected, lambda side: side.enqueue(jobs))

    def claim(self, worker: int, queues: tuple[str, ...], limit: int, lease: int) -> None:
        worker, claim = worker % len(self.model.workers), next(self.claims)
        self.claimed.append((worker, claim))
        expected = self.model.claim(worker, queues, limit, lease, claim)
        named = [f"{self.name}-{queue}" for queue in queues]
        self.same(expected, lambda side: side.claim(worker, named, limit, lease * MS, claim))

    def start(self, which: int, write: bool) -> None:
        if not self.jobs_in("assigned"):
            self.claim(which, QUEUES, 2, 100)
        self._as_holder("assigned", which, "start", 0, write)

    def finish(self, which: int, trigger: str, delay: int, write: bool) -> None:
        if not self.jobs_in("running"):
            self.start(which, True)
        self._as_holder("running", which, trigger, delay, write)

    def _as_holder(self, state: str, which: int, trigger: str, delay: int, write: bool) -> None:
        jobs = self.jobs_in(state)
        if jobs:
            number = jobs[which % len(jobs)]
            self.decide(number, trigger, "holder", self.model.jobs[number].owner, delay, write)

    def meddle(self, number: int, trigger: str, by: str, write: bool) -> None:
        """Anybody asks for anything; a worker that is not the holder too."""
        number %= len(self.model.jobs)
        worker = number % len(self.model.workers) if by == "holder" else None
        self.decide(number, trigger, by, worker, 0, write)

    def write_what_was_decided(self, chosen: list[int], late: int) -> None:
        """Late, or once more, or both; several at a time."""
        if not self.wishes:
            return
        self._pass(late)
        self.write([self.wishes[-1 - which % len(self.wishes)] for which in chosen])

    def wait(self, milliseconds: int, reaps: bool) -> None:
        self._pass(milliseconds)
        if reaps:
            self._reap()

    def _pass(self, milliseconds: int) -> None:
        self.stores.advance(milliseconds)
        self.model.now = self.stores.now
        self.agree()

    def _reap(self) -> None:
        expected = self.model.overdue()
        self.same(expected, lambda side: side.overdue())
        wishes = [wish for number in expected for wish in [self._reaper_wish(number)] if wish]
        assert len(wishes) == len(expected), "the reaper can always do something"
        self.both(lambda side: side.decide_all(wishes))
        self.write(wishes)

    def _reaper_wish(self, number: int) -> Wish | None:
        wishes = (self.model.wish(number, trigger, "reaper", None) for trigger in ("expire", "fail", "dead_letter"))
        return next((wish for wish in wishes if wish), None)

    def renew(self, worker: int, chosen: list[int], stale: int) -> None:
        jobs = list(dict.fromkeys(which % len(self.model.jobs) for which in chosen))
        owner = self.model.jobs[jobs[0]].owner
        worker = owner if owner is not None and worker < 6 else worker % len(self.model.workers)
        tokens = [(number, max(self.model.jobs[number].epoch - stale, 0)) for number in jobs]
        expected = self.model.renew(worker, tokens, 40)
        self.same(expected, lambda side: side.renew(worker, tokens, 40 * MS))
        self._ask_for_a_claim_again(worker)

    def _ask_for_a_claim_again(self, which: int) -> None:
        worker, claim = self.claimed[-1 - which % len(self.claimed)]
        expected = self.model.claimed(worker, claim)
        self.same(expected, lambda side: side.claim(worker, [], 9, MS, claim, again=True))

    def supervise(self, worker: int, trigger: str, queue: str) -> None:
        """Workers are moved, and hired when too few may work; a queue is paused, or resumed if it was."""
        worker %= len(self.model.workers)
        expected = self.model.move_worker(worker, trigger)
        self.same(expected, lambda side: side.move_worker(worker, trigger))
        if sum(w.state in ("IDLE", "RUNNING") for w in self.model.workers) < 2:
            self.hire()
        self._pause(queue, trigger == "pause" and queue not in self.model.paused)

    def hire(self) -> None:
        self.model.hire()
        self.both(lambda side: side.hire())
        self.agree()

    def _pause(self, queue: str, paused: bool) -> None:
        (self.model.paused.add if paused else self.model.paused.discard)(queue)
        self.both(lambda side: side.store.set_queue_paused(f"{self.name}-{queue}", paused))
        self.agree()

    def jobs_in(self, state: str) -> list[int]:
        return [number for number, job in enumerate(self.model.jobs) if job.state == state]

    # --- doing and comparing

    def decide(self, number: int, trigger: str, by: str, owner: int | None, delay: int, write: bool) -> None:
        wish = self.model.wish(number, trigger, by, owner, delay)
        asked = wish or Wish(number, trigger, by, owner, "", 0, 0)
        for allowed in self.both(lambda side: side.decide(asked)):
            assert allowed == bool(wish)
        if wish:
            self.wishes.append(wish)
        if wish and write:
            self.write([wish])
        else:
            self.agree()

    def write(self, wishes: list[Wish]) -> None:
        lost = [place for place, wish in enumerate(wishes) if not self.model.apply(wish)]
        self.same([wishes[place] for place in lost], lambda side: side.apply(wishes))

    def both(self, work: Callable[[Side], Coroutine[Any, Any, T]]) -> list[T]:
        self.agreed = False
        return [self.stores.run(work(side)) for side in self.sides]

    def same(self, expected: object, work: Callable[[Side], Coroutine[Any, Any, Any]]) -> None:
        for side, answer in zip(self.sides, self.both(work), strict=True):
            assert answer == expected, f"{side.store.url} answered {answer}, the model {expected}"
        self.agree()

    def agree(self) -> None:
        self.both(lambda side: side.agrees(self.model))
        self.stores.advance(1)
        self.model.now = self.stores.now
        self.stores.steps += 1
        self.agreed = True

    def teardown(self) -> None:
        """After a failure too: what is left over must not disturb the next example."""
        agreed = self.agreed
        self.both(lambda side: side.cancel_all())
        self.stores.advance(1)
        if agreed:
            self.both(lambda side: side.replays(self.model))
            self.stores.seen.update(logged[4] for logged in self.model.log)


@pytest.fixture
def stores(sqlite_url: str, postgres_copy: str) -> Iterator[Stores]:
    opened = Stores(sqlite_url, postgres_copy)
    yield opened
    opened.close()


def test_both_stores_and_a_plain_model_agree(stores: Stores):
    agree(stores, examples=40, steps=40)
    missing = {move.event for move in JOB.moves} - set(stores.seen)
    assert not missing, "every move of a job should have happened"


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_both_stores_and_a_plain_model_agree_for_a_long_time(stores: Stores):
    agree(stores, examples=400, steps=80, derandomize=False)


@pytest.mark.parametrize("columns", [("seq", "epoch", "state"), ("owner", "lease_until")], ids=" ".join)
def test_stores_whose_moves_ignore_these_columns_are_found_out(
    stores: Stores, columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    ignore_columns(monkeypatch, *columns)
    with pytest.raises((AssertionError, StoreError, Flaky, ExceptionGroup)):
        agree(stores, examples=50, steps=40, phases=[Phase.generate])


def agree(stores: Stores, *, examples: int, steps: int, derandomize: bool = True, **how: Any) -> None:
    machine = type("BothStores", (Machine,), {"stores": stores})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=list(HealthCheck),
            **how,
        ),
    )
    print(f"\n{stores.examples} examples, {stores.steps} steps, {stores.seen.total()} events on each store")
    print("  " + ", ".join(f"{event} {number}" for event, number in stores.seen.most_common()))
