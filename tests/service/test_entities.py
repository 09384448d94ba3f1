"""Public ids: each leads to its lifecycle and key, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.core import ids
from keptwork.core.ids import actor_name, lifecycle_named, public_id, resolve
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.errors import BadInput, NotFound


@given(st.sampled_from([*LIFECYCLES]), st.integers(1, (1 << 63) - 1))
def test_a_public_id_leads_back_to_what_it_was_made_of(name, key):
    lifecycles, found = resolve(public_id(name, key))
    assert found == key
    assert LIFECYCLES[name] in lifecycles


def test_a_prefix_that_two_lifecycles_share_leads_to_both():
    lifecycles, _ = resolve(public_id("run-step", 5 << 22))
    assert [lifecycle.name for lifecycle in lifecycles] == ["run-step", "workstream-step"]


@given(st.text())
def test_anything_else_is_not_found(text):
    if ids.key_of(text.strip()) is None:
        with pytest.raises(NotFound, match="No entity"):
            resolve(text)


def test_a_right_id_under_a_prefix_nobody_has_is_not_found():
    with pytest.raises(NotFound):
        resolve(ids.public("cat", 5 << 22))


def test_spaces_around_a_copied_id_do_not_matter():
    assert resolve(f" {public_id('job', 5 << 22)}\n").key == 5 << 22


@pytest.mark.parametrize(("entity", "key"), [("unicorn", 5), ("job", -(1 << 63))])
def test_what_has_no_public_id_is_shown_as_it_is(entity, key):
    assert public_id(entity, key) == f"{entity}:{key}"


@pytest.mark.parametrize("actor", [None, "", "reaper", "sql:ann", "w:", "w:x", "w:-5", "worker:5"])
def test_an_actor_that_is_no_worker_keeps_its_name(actor):
    assert actor_name(actor) == actor


def test_a_worker_is_shown_by_its_public_id():
    key = 5 << 22
    assert actor_name(f"w:{key}") == public_id("worker", key)
    assert actor_name(f"w:{1 << 70}") == f"worker:{1 << 70}"


def test_an_unknown_lifecycle_is_refused_with_the_list():
    with pytest.raises(BadInput, match="no lifecycle 'unicorn'; there are: job, worker"):
        lifecycle_named("unicorn")
