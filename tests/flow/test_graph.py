"""The order of steps: any graph has a cycle or levels, and a step is ready only after all it comes after."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keptwork.flows import graph

NAMES = [f"s{number}" for number in range(12)]
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True, max_size=4)).map(
    lambda found: {name: [one for one in after if one in found] for name, after in found.items()}
)


@given(GRAPHS)
def test_a_graph_has_a_cycle_or_every_step_a_level_after_its_dependencies(dependencies):
    circle = graph.cycle(dependencies)
    if circle is not None:
        assert circle[0] == circle[-1]
        assert all(after in dependencies[name] for name, after in pairwise(circle))
        return
    level_of = {name: place for place, level in enumerate(graph.levels(dependencies)) for name in level}
    assert level_of.keys() == dependencies.keys()
    assert all(level_of[one] < level_of[name] for name, after in dependencies.items() for one in after)


@given(GRAPHS, st.sets(st.sampled_from(NAMES)))
def test_a_step_is_ready_only_when_all_it_comes_after_are_satisfied(dependencies, satisfied):
    pending = dependencies.keys() - satisfied
    for name in graph.ready(dependencies, pending, satisfied):
        assert name in pending
        assert set(dependencies[name]) <= satisfied


@given(GRAPHS)
def test_running_whatever_is_ready_runs_every_step_of_a_graph_without_a_cycle(dependencies):
    if graph.cycle(dependencies) is not None:
        return
    done: set[str] = set()
    while ready := graph.ready(dependencies, dependencies.keys() - done, done):
        done.update(ready[:1])
    assert done == dependencies.keys()


@given(GRAPHS)
def test_what_comes_before_a_step_is_what_can_be_reached_from_it(dependencies):
    if graph.cycle(dependencies) is not None:
        return
    order = graph.Before(dependencies)
    for name in dependencies:
        earlier = {one for one in dependencies if order.comes(one, name)}
        assert set(dependencies[name]) <= earlier
        assert all(set(dependencies[one]) <= earlier for one in earlier)
        assert all(any(one in dependencies[later] for later in {name, *earlier}) for one in earlier)


def test_a_chain_of_five_thousand_steps_is_no_problem():
    chain = {f"s{n}": [f"s{n - 1}"] if n else [] for n in range(5_000)}
    assert graph.cycle(chain) is None
    assert graph.cycle({**chain, "s0": ["s4999"]}) is not None
    assert len(graph.levels(chain)) == 5_000
    order = graph.Before(chain)
    assert all(order.comes("s0", f"s{n}") and not order.comes(f"s{n}", "s0") for n in range(1, 5_000))
