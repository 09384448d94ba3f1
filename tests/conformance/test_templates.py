"""Definitions of flows: kept by version, never changed, and seen by nobody but their tenant."""

from __future__ import annotations

import asyncio

import pytest

from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.store.contract.flows_templates import NewTemplate, Template
from keptwork.store.contract.store import Reader, Writer
from tests.conformance.promises import keeps

OURS = 1
RELEASE = NewTemplate(OURS, "workstream", "release", '{"v": 1}')


@keeps(
    Writer.put_template,
    "Store a definition as the next version of its name",
    "If it equals the newest version, return that and store nothing",
)
async def test_a_definition_is_the_next_version_of_its_name_unless_it_is_the_newest_one(store: Store) -> None:
    first = await store.put_template(RELEASE)
    assert (first.version, first.kind, first.name, first.definition) == (1, "workstream", "release", '{"v": 1}')
    assert (first.hash, first.tenant_id) == (RELEASE.hash, OURS)
    assert await store.put_template(RELEASE) == first
    second = await store.put_template(RELEASE._replace(definition='{"v": 2}'))
    assert (second.version, second.id > first.id) == (2, True)
    back_again = await store.put_template(RELEASE)
    assert (back_again.version, back_again.hash) == (3, first.hash)
    as_run = await store.put_template(RELEASE._replace(kind="run"))
    assert (as_run.version, as_run.kind) == (4, "run")
    assert (await store.put_template(RELEASE._replace(name="another"))).version == 1


async def test_versions_kept_at_the_same_time_are_numbered_one_after_the_other(store: Store) -> None:
    kept = await asyncio.gather(
        *[store.put_template(RELEASE._replace(definition=f'{{"v": {number % 6}}}')) for number in range(12)]
    )
    assert len({template.version for template in kept}) == len({template.id for template in kept})
    found = await store.templates(OURS, name="release", newest_only=False)
    assert [template.version for template in found] == list(range(len(found), 0, -1))


@keeps(
    Reader.template,
    "Return a template by its ID",
    "Return None for another tenant's template, as for one that does not exist",
)
@keeps(
    Reader.templates,
    "Return at most `limit` templates of a tenant by name, newest version first",
    "They come after the given name and version",
    "They have one name or any, in the newest version only or in every version",
)
async def test_definitions_are_found_by_key_and_listed(store: Store, other_tenant: int) -> None:
    b1, b2 = [await store.put_template(RELEASE._replace(name="b", definition=f"[{number}]")) for number in (1, 2)]
    a1 = await store.put_template(RELEASE._replace(name="a"))
    theirs = await store.put_template(RELEASE._replace(tenant_id=other_tenant, name="b"))
    assert theirs.version == 1
    assert await store.template(OURS, b1.id) == b1
    assert await store.template(OURS, theirs.id) is await store.template(OURS, 1 << 50) is None
    assert await store.templates(OURS) == [a1, b2]
    assert await store.templates(OURS, newest_only=False) == [a1, b2, b1]
    assert await store.templates(OURS, name="b", newest_only=False, limit=1) == [b2]
    assert await store.templates(OURS, newest_only=False, after=("a", 1), limit=1) == [b2]
    assert await store.templates(OURS, newest_only=False, after=("b", 2)) == [b1]
    assert await store.templates(OURS, after=("b", 1)) == []
    assert await store.templates(OURS, name="c") == []
    assert await store.templates(other_tenant) == [theirs]


@pytest.fixture
async def of_both(postgres_store: Store) -> list[Template]:
    await postgres_store.add_tenant("other")
    return [await postgres_store.put_template(RELEASE._replace(tenant_id=tenant)) for tenant in (1, 2)]


async def test_a_tenants_transaction_keeps_and_sees_only_its_own_definitions(
    postgres_store: Store, of_both: list[Template]
) -> None:
    ours, theirs = of_both
    async with postgres_store.transaction(tenant_id=2) as transaction:
        assert await transaction.fetch("SELECT id FROM templates") == [{"id": theirs.id}]
        assert await transaction.template(OURS, ours.id) is None
        assert (await transaction.put_template(NewTemplate(2, "run", "own", "{}"))).version == 1
    with pytest.raises(StoreError, match="row-level security"):
        async with postgres_store.transaction(tenant_id=2) as transaction:
            await transaction.put_template(RELEASE._replace(definition="[]"))


@pytest.mark.parametrize("statement", ["UPDATE templates SET definition = '[]'", "DELETE FROM templates"])
async def test_a_tenants_transaction_cannot_change_what_is_defined(
    postgres_store: Store, of_both: list[Template], statement: str
) -> None:
    with pytest.raises(StoreError, match="permission denied"):
        async with postgres_store.transaction(tenant_id=2) as transaction:
            await transaction.execute(statement)
    assert await postgres_store.templates(2) == of_both[1:]
