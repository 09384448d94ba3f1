"""The four recovery procedures: the damage is made by plain SQL, found as what it is, mended, and the flow ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from keptwork.core.lifecycles import BREAKER
from keptwork.store import Store
from tests.cli.flow_scene import Scene
from tests.conformance.stage import moved, queued
from tests.service.flow_driver import Driver, flow, step

HOURS = 3_600_000_000


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(f"{tmp_path}/keptwork.db")


def found(scene: Scene, check: str) -> dict[str, object]:
    """The one thing that the doctor finds; it says so by its exit code too."""
    done = scene.keptwork("doctor")
    assert done.returncode == 1
    told = scene.told("doctor")
    assert [one["check"] for one in told["left"]] == [check], told
    assert str(told["left"][0]["says"]) in done.stdout
    return dict(told["left"][0])


def mended(scene: Scene) -> str:
    done = scene.keptwork("doctor", "--fix")
    assert done.returncode == 0, done
    again = scene.keptwork("doctor", "--fix")
    assert (again.returncode, again.stdout) == (0, "Nothing is wrong.\n")
    return done.stdout


def test_recovery_1_a_workstream_stuck_in_running_with_all_its_steps_done(scene: Scene) -> None:
    ref = scene.start(flow(step("s1"), step("s2")))
    scene.use(lambda store: Driver(store).start())
    scene.sql(
        "UPDATE jobs SET state = 'succeeded', seq = seq + 1, move = 'succeed'",
        "UPDATE steps SET state = 'S_SUCCESS', seq = seq + 1, move = 'success'",
        "UPDATE workstreams SET state = 'S_RUNNING', seq = seq + 1, move = 'start_execution'",
    )
    assert found(scene, "finished")["says"] == "all its 2 steps are done, but it is S_RUNNING"
    assert "mended: end it as S_SUCCESS" in mended(scene)
    assert scene.state(ref) == "S_SUCCESS"


def test_recovery_1_a_worker_that_crashed_in_the_middle_and_no_other_came(scene: Scene) -> None:
    ref = scene.start(flow(step("s1", retries=1), step("s2", "s1")))
    scene.use(lambda store: Driver(store).start())
    scene.sql(f"UPDATE jobs SET lease_until = lease_until - {2 * HOURS}")
    found(scene, "orphaned_lease")
    assert "put it back into its queue" in mended(scene)
    scene.drive()
    assert scene.state(ref) == "S_SUCCESS"


def test_recovery_2_a_step_that_failed_and_is_not_retried(scene: Scene) -> None:
    ref = scene.start(flow(step("s1"), step("s2", "s1"), max_retries=1))
    scene.use(lambda store: Driver(store).start())
    scene.sql(
        "UPDATE jobs SET state = 'failed', seq = seq + 1, move = 'fail'",
        "UPDATE steps SET state = 'S_FAILED', seq = seq + 1, move = 'failure' WHERE name = 's1'",
    )
    found(scene, "failed_step")
    assert "mended: let the flow fail with it" in mended(scene)
    scene.drive()
    assert scene.state(ref) == "S_SUCCESS"


@pytest.mark.parametrize("verb", ["reset", "skip"])
def test_recovery_2_where_its_retries_are_used_up_an_operator_decides(scene: Scene, verb: str) -> None:
    ref = scene.start(flow(step("s1"), step("s2", "s1")))
    scene.settle("s1")
    assert f"keptwork steps {verb} step_" in str(found(scene, "blocked")["todo"])
    done = scene.keptwork("steps", verb, f"{ref.public_id}/s1", "--reason", "it was the network")
    assert done.returncode == 0, done
    assert scene.told("doctor")["left"] == []
    scene.drive()
    assert scene.state(ref) == "S_SUCCESS"


def test_recovery_3_a_breaker_that_stays_open(scene: Scene) -> None:
    ref = scene.start(flow(step("s1")))

    async def trip(store: Store) -> None:
        id = await store.create(BREAKER, name="tool:aider", failure_threshold=0)
        await moved(store, BREAKER, id, "trip")
        await queued(store)

    scene.use(trip)
    scene.sql("UPDATE jobs SET held_by = 'breaker:tool:aider' WHERE step_id IS NOT NULL")
    assert scene.told("doctor")["left"] == []  # not yet: a worker may still try it
    scene.sql(f"UPDATE breakers SET updated_at = updated_at - {2 * HOURS}, probe_at = probe_at - {2 * HOURS}")
    assert "holds back 1 job" in str(found(scene, "stuck_breaker")["matters"])
    assert "mended: reset it" in mended(scene)
    scene.drive()
    assert scene.state(ref) == "S_SUCCESS"


def test_recovery_4_a_workstream_that_succeeded_with_a_step_that_failed(scene: Scene) -> None:
    ref = scene.start(flow(step("s1"), step("s2")))
    scene.settle("s2")
    scene.sql("UPDATE workstreams SET state = 'S_SUCCESS', seq = seq + 1, move = 'override', reason = 'by hand'")
    says = found(scene, "leftovers")
    assert says["says"] == "it is S_SUCCESS, but s2 is S_FAILED"
    assert f"keptwork override {ref.public_id} --to S_FAILED" in str(says["matters"])
    assert "\n  mended: skip what is left\n" in mended(scene)
    assert [one["state"] for one in scene.told("steps", "list", ref.public_id)["steps"]] == ["S_SUCCESS", "S_SKIPPED"]


def test_recovery_4_where_it_did_not_succeed_it_is_overridden_and_tried_again(scene: Scene) -> None:
    ref = scene.start(flow(step("s1"), step("s2")))
    scene.settle("s2")
    scene.sql("UPDATE workstreams SET state = 'S_SUCCESS', seq = seq + 1, move = 'override', reason = 'by hand'")
    done = scene.keptwork("override", ref.public_id, "--to", "s-failed", "--reason", "s2 did fail")
    assert done.stdout.splitlines()[0] == f"{ref.public_id} was overridden: S_SUCCESS → S_FAILED."
    assert "  run: keptwork doctor --fix\n" in done.stdout
    assert scene.keptwork("doctor", "--fix").returncode == 1  # the timer is set; what becomes of s2 is for somebody
    assert scene.keptwork("workstreams", "retry", ref.public_id).returncode == 0
    scene.drive()
    assert scene.state(ref) == "S_SUCCESS"


def test_after_an_override_it_is_said_what_helps_and_not_only_the_doctor(scene: Scene) -> None:
    """It named the doctor, who only answered what somebody has to run."""
    ref = scene.start(flow(step("s1"), step("s2", "s1")))
    scene.settle("s1")
    scene.keptwork("override", f"{ref.public_id}/s2", "--to", "s-abandoned", "--reason", "gone")
    done = scene.keptwork("override", f"{ref.public_id}/s2", "--to", "s-pending", "--reason", "back")
    (found,) = scene.told("doctor")["left"]
    assert done.stdout.splitlines()[-1] == f"  run: {found['todo']}"
    assert scene.keptwork("doctor").stdout.splitlines()[-1] == (
        "Found: 1. No declared move mends that; what each needs is said above."
    )
