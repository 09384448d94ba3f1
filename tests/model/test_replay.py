"""What the model says happens, happens on both stores; and stores with one guard removed are found out."""

from collections.abc import Callable, Sequence

import pytest

from keptwork.errors import StoreError
from tests.model.explore import Bounds, Explorer
from tests.model.replay_on_stores import Player
from tests.model.scenes import Act, along, repeated, wander
from tests.model.twins import TWINS
from tests.model.world import Rules
from tests.support.broken_sql import ignore_columns, keep_epoch, renew_ended_leases
from tests.support.database_time import Timed, open_timed

WALKS, STEPS = 200, 20
Plays = list[tuple[Rules, list[Act]]]


@pytest.fixture(scope="module")
def plays() -> Plays:
    """What broke the twins, the shortest way to every kind of step, then random walks."""
    return [*attacks(), *kinds(), *walks(range(WALKS))]


def attacks() -> Plays:
    """The very steps that broke each twin of the model, under the rules as shipped."""
    found: Plays = []
    for twin in TWINS:
        with twin.rules(pauses=False) as broken:
            explorer = Explorer(broken, Bounds(workers=2, states=4_000))
            ways = list(explorer.run(ends=False).broken.values())
            traces = [along(explorer, way) for way in ways]
        shipped = Rules()
        found += [(shipped, repeated(shipped, trace)) for trace in traces]
    return found


def kinds() -> Plays:
    explorer = Explorer(Rules(), Bounds(workers=2, states=8_000))
    report = explorer.run(ends=False)
    return [(explorer.rules, along(explorer, way, kind)) for kind, way in report.kinds.items()]


def walks(seeds: Sequence[int]) -> Plays:
    policies = Rules(), Rules(on_exhausted="fail")
    return [(policies[seed % 2], wander(policies[seed % 2], 2 + seed % 3 // 2, STEPS, seed)) for seed in seeds]


async def test_the_store_does_what_the_model_says(database_url: str, plays: Plays):
    assert await played(database_url, plays) == []


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_the_store_does_what_the_model_says_for_a_long_time(database_url: str):
    assert await played(database_url, walks(range(WALKS, WALKS + 3_000))) == []


STORE_TWINS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no compare-and-set": lambda patch: ignore_columns(patch, "seq", "epoch", "state"),
    "no fence": lambda patch: ignore_columns(patch, "owner", "lease_until"),
    "no lease check": lambda patch: ignore_columns(patch, "lease_until"),
    "epoch not raised": keep_epoch,
    "renewal of a lease that is over": renew_ended_leases,
}


@pytest.mark.parametrize("twin", STORE_TWINS)
async def test_a_store_with_one_guard_removed_is_found_out(
    database_url: str, plays: Plays, twin: str, monkeypatch: pytest.MonkeyPatch
):
    STORE_TWINS[twin](monkeypatch)
    differences = await played(database_url, plays, stop_at_first=True)
    assert differences
    print(f"\n{twin}: {differences[0]}")


async def played(url: str, plays: Plays, *, stop_at_first: bool = False) -> list[str]:
    """What differed, play by play. A refusal by the database itself counts: no play asks for what it would refuse."""
    timed = await open_timed(url)
    try:
        found = await _differences(timed, plays, stop_at_first)
    finally:
        await timed.close()
    print(f"\n{len(plays)} plays, {sum(len(acts) for _, acts in plays)} acts on {url.split(':')[0]}")
    return found


async def _differences(timed: Timed, plays: Sequence[tuple[Rules, list[Act]]], stop_at_first: bool) -> list[str]:
    found: list[str] = []
    for number, (rules, acts) in enumerate(plays, 1):
        try:
            difference = await Player(rules, timed, number).play(acts)
        except StoreError as refused:
            difference = f"the database refused: {refused}"
        found += [difference] if difference else []
        if found and stop_at_first:
            break
    return found
