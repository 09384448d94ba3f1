"""Budgets: what a call may cost is reserved before it is made, and what it did cost is spent with what came of it.

A call counts against up to four budgets: of its job, of the outermost flow, of the tenant and of the day. All of them
are locked, always in the same order, before it is looked whether the call fits, so that no cap is passed however many
ask at once. One that does not fit is refused: its job is held back, spends no attempt, and goes on when the cap is
raised (`budget_caps`). The tokens that a model takes in a minute are counted for the whole fleet in the same
transaction.

A job that ends or is reclaimed with a call in flight loses it in the same transaction: the ceiling counts as spent, for
the call may have been billed. If its outcome is known later after all, that replaces the ceiling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from keptwork.agent import spending
from keptwork.agent.conversation import NOTHING, Usage
from keptwork.agent.spending import CONFIG, Wait
from keptwork.bounds import check_name
from keptwork.budget import LARGEST_MICROS, NO_CAPS, TOTAL, Caps, Scope, day_name, day_of, micros
from keptwork.errors import BadInput, LeaseLost
from keptwork.lifecycle import JOB, RUN, WORKSTREAM
from keptwork.service.definitions import shape
from keptwork.service.entities import public_id
from keptwork.store import Reader, Store, Transaction
from keptwork.store.budgets import LOST, RELEASED, SETTLED, Budget, Charge, Closed, Closing, NewBudget, NewCharge

WARNING = "budget_warning"
"""What a warning is called in the telemetry of the job whose call it came with."""

WARNING_TTL_US = 86_400_000_000
MOST_TOKENS = 1 << 40
FLOW_FILE = "flow file"


class Reserved(NamedTuple):
    """The call may be made. It is settled under this key; `warning` is for people, once for a budget."""

    id: int
    warning: str | None = None


class Refused(NamedTuple):
    """The call must not be made. `hold` is what its job is to be held by until there is money again; none where it only
    has to come back at `until_us`, because the model takes no more tokens before."""

    hold: str | None
    reason: str
    until_us: int | None = None


class Wish(NamedTuple):
    """A call that somebody wants to make, and under which caps and limits."""

    charge: NewCharge
    tokens: int
    tokens_per_minute: int | None
    caps: Caps


# --- before the call


async def reserve(
    store: Store,
    *,
    tenant_id: int,
    job_id: int,
    flow_tree: int | None,
    call: str,
    provider: str,
    model: str,
    ceiling_micros: int,
    tokens: int = 0,
    tokens_per_minute: int | None = None,
    caps: Caps = NO_CAPS,
    epoch: int = 0,
    agent_id: int | None = None,
) -> Reserved | Refused:
    """Whether a job may make a call that costs at most so much and takes about so many tokens. Asked again for a call
    that is under way, in the same epoch of the job, it is the same reservation; one of an earlier epoch is lost."""
    _check(call, provider, model, ceiling_micros, tokens)
    charge = NewCharge(
        tenant_id, job_id, flow_tree, call, provider, model, ceiling_micros, 0, epoch=epoch, agent_id=agent_id
    )
    wish = Wish(charge, tokens, tokens_per_minute, caps)
    while (answer := await _ask_once(store, wish)) is None:
        await _prepare(store, wish)
    return answer


async def _ask_once(store: Store, wish: Wish) -> Reserved | Refused | None:
    return await store.atomically(lambda tx: _reserved(tx, wish))


def _check(call: str, provider: str, model: str, ceiling_micros: int, tokens: int) -> None:
    for what, text in (("call", call), ("provider", provider), ("model", model)):
        check_name(what, text)
    if not 0 <= ceiling_micros <= LARGEST_MICROS or not 0 <= tokens <= MOST_TOKENS:
        raise BadInput(what=f"a call of {tokens} tokens for {ceiling_micros} millionths of a dollar cannot be")


async def _reserved(tx: Transaction, wish: Wish) -> Reserved | Refused | None:
    """None while something is to be done first: in a transaction of its own, so that no two who do it wait for each
    other."""
    now = await tx.now()
    charge = wish.charge._replace(day=day_of(now))
    epoch, ended_at = (await tx.lock_jobs([charge.job_id])).get(charge.job_id, (0, None))
    if ended_at is not None or epoch > charge.epoch:  # nothing closes a call that is reserved after its job's end
        raise LeaseLost(lifecycle=JOB.name, id=public_id(JOB.name, charge.job_id), trigger="reserve")
    own = await _own_budgets(tx, wish)
    under_way = await tx.open_charges(charge.job_id, charge.call)
    if under_way:
        return _again(charge, under_way[0])
    shared = await tx.lock_budgets(charge.tenant_id, [charge.day, 0])
    return await _decided(tx, wish._replace(charge=charge), [*own, *shared], now) if len(shared) > 1 else None


def _again(charge: NewCharge, under_way: Charge) -> Reserved | None:
    """The same call of the same claim is the same reservation. What an earlier claim has left is lost first; who has
    lost the job to a later one makes no calls."""
    if under_way.epoch > charge.epoch:
        raise LeaseLost(lifecycle=JOB.name, id=public_id(JOB.name, charge.job_id), trigger="reserve")
    return Reserved(under_way.id) if under_way.epoch == charge.epoch else None


async def _decided(tx: Transaction, wish: Wish, found: Sequence[Budget], now: int) -> Reserved | Refused:
    """With all of its budgets locked."""
    charge = wish.charge
    budgets = [spending.configured(budget, wish.caps) for budget in found]
    full = spending.refusing(budgets, charge.ceiling_micros)
    if full is not None:
        return await _held_back(tx, found, budgets, full, charge.ceiling_micros)
    taken = await _tokens_taken(tx, wish, now)
    if isinstance(taken, Wait):
        return Refused(None, taken.reason, taken.until_us)
    budgets = [spending.promise_kept(budget, charge.ceiling_micros) for budget in budgets]
    warned = spending.warned(budgets, now)
    await _keep_changed(tx, found, {budget.owner: budget for budget in (*budgets, *warned)})
    id = await tx.open_charge(charge._replace(taken=taken))
    return Reserved(id, await _told(tx, charge, warned))


async def _prepare(store: Store, wish: Wish) -> None:
    """What an earlier claim of the job has left of this call is lost, and the budgets that all share are made."""
    charge, caps = wish.charge, wish.caps
    for found in await store.open_charges(charge.job_id, charge.call):
        if found.epoch < charge.epoch:
            await store.atomically(partial(_lost, charge=found))
    day = day_of(await store.now())
    shared = ((day, Scope.DAY, day_name(day)), (0, Scope.TENANT, TOTAL))
    await store.make_budgets([_new(charge.tenant_id, *which, caps) for which in shared])


async def _own_budgets(tx: Transaction, wish: Wish) -> list[Budget]:
    """Those of the job and its flow, locked before those that all share; made when they are first needed."""
    charge, caps = wish.charge, wish.caps
    owners = [key for key in (charge.job_id, charge.tree_id) if key is not None]
    found = await tx.lock_budgets(charge.tenant_id, owners)
    if len(found) == len(owners):
        return found
    new = [_new(charge.tenant_id, charge.job_id, Scope.JOB, public_id(JOB.name, charge.job_id), caps)]
    if charge.tree_id is not None:
        new.append(await new_for_flow(tx, charge.tenant_id, charge.tree_id, caps))
    await tx.make_budgets(new)
    return await tx.lock_budgets(charge.tenant_id, owners)


def _new(tenant_id: int, owner: int, scope: Scope, subject: str, caps: Caps) -> NewBudget:
    return NewBudget(tenant_id, owner, scope, subject, caps.of(scope), caps.warn_percent, CONFIG)


async def _held_back(
    tx: Transaction, found: Sequence[Budget], budgets: Sequence[Budget], full: Budget, ceiling: int
) -> Refused:
    kept = {budget.owner: budget for budget in (*budgets, full._replace(wanted_micros=ceiling))}
    await _keep_changed(tx, found, kept)
    return Refused(full.hold, spending.refusal(full, ceiling), spending.over_at(full))


async def _keep_changed(tx: Transaction, found: Sequence[Budget], kept: dict[int, Budget]) -> None:
    for before in found:
        if kept[before.owner] != before:
            await tx.keep_budget(kept[before.owner])


async def _tokens_taken(tx: Transaction, wish: Wish, now: int) -> int | Wait:
    """How many tokens were taken for the call: none where the model has no limit. A provider that wants to be left
    alone is, either way; that is read without a lock."""
    charge, limited = wish.charge, wish.tokens_per_minute is not None
    which = (charge.provider, charge.model)
    bucket = await tx.lock_bucket(*which) if limited else await tx.bucket(*which)
    if bucket is None:
        return 0
    after = spending.asked(bucket, wish.tokens, wish.tokens_per_minute, now)
    if isinstance(after, Wait):
        return after
    if after != bucket:
        await tx.keep_bucket(after)
    return wish.tokens if limited else 0


async def new_for_flow(store: Reader, tenant_id: int, tree: int, caps: Caps) -> NewBudget:
    """The budget of a flow: with the cap that its file gives it, else with that of the configuration."""
    kind, row = RUN, await store.get(RUN, tree, tenant_id)
    if row is None:
        kind, row = WORKSTREAM, await store.get(WORKSTREAM, tree, tenant_id)
    said = None
    if row is not None and row["template_id"] is not None:
        said = (await shape(store, tenant_id, row["template_id"])).flow.budget_usd
    cap, said_by = (caps.flow, CONFIG) if said is None else (micros(said), FLOW_FILE)
    return NewBudget(tenant_id, tree, Scope.FLOW, public_id(kind.name, tree), cap, caps.warn_percent, said_by)


# --- after the call


async def settle(
    tx: Transaction,
    reservation_id: int,
    *,
    cost_micros: int,
    usage: Usage = NOTHING,
    outcome: Literal["answered", "failed"] = "answered",
) -> str | None:
    """What a call did cost, and how many tokens it took, in the transaction that keeps what came of it; returns a
    warning, if one is due. It locks budgets that others wait for, so it comes last in that transaction. A second time
    it changes nothing. If the call was given up as lost meanwhile, its cost replaces the ceiling that was spent."""
    tokens = {f"{name}_tokens": count for name, count in usage._asdict().items()}
    now = await tx.now()
    closed = await tx.close_charge(reservation_id, Closing(SETTLED, cost_micros, outcome, **tokens))
    if closed is None:
        return None
    await _correct(tx, closed.charge, usage.input + usage.output + usage.cache_write, now)
    return await _warn(tx, closed, now)


async def release(tx: Transaction, reservation_id: int) -> None:
    """That nothing was sent: nothing was spent, and no tokens were taken, even if the call was given up as lost."""
    if (closed := await tx.close_charge(reservation_id, Closing(RELEASED))) is not None:
        await _correct(tx, closed.charge, 0, await tx.now())


async def lost(store: Store | Transaction, job_id: int, call: str | None = None) -> int:
    """Gives up the calls of a job that an earlier attempt has left open, or the one of that name: each counts with its
    ceiling. Returns how many there were."""
    found = await store.open_charges(job_id, call)
    return sum([await store.atomically(partial(_lost, charge=charge)) for charge in found])


async def give_up(tx: Transaction, reservation_id: int) -> None:
    """Count a call with its ceiling, because it may have been billed and nobody knows."""
    if (charge := await tx.charge(reservation_id)) is not None:
        await _lost(tx, charge)


async def close_calls(tx: Transaction, jobs: Sequence[int]) -> int:
    """Give up the calls in flight of jobs that end or are reclaimed in this transaction. Return how many there were.
    The call of a job that has ended ends with it, however long other sessions hold its budgets."""
    found = await tx.charges_in_flight(jobs) if jobs else []
    ends = await tx.lock_jobs(sorted({charge.job_id for charge in found})) if found else {}
    for tenant_id in {charge.tenant_id for charge in found}:  # all at once: in the order in which everybody locks them
        owners = {owner for charge in found if charge.tenant_id == tenant_id for owner in charge.owners}
        await tx.lock_budgets(tenant_id, sorted(owners))
    return sum([await _lost(tx, charge, ends.get(charge.job_id, (0, None))[1]) for charge in found])


async def close_abandoned(store: Store, limit: int) -> int:
    """Give up calls whose jobs were ended by somebody who closed none. Return how many there were."""
    found = await store.abandoned_charges(limit)
    return sum([await store.atomically(partial(_lost, charge=charge)) for charge in found])


async def _lost(tx: Transaction, charge: Charge, ended_at: int | None = None) -> bool:
    closed = await tx.close_charge(charge.id, Closing(LOST, charge.ceiling_micros, ended_at=ended_at))
    if closed is not None:
        await _warn(tx, closed, await tx.now())
    return closed is not None


async def back_off(store: Store, provider: str, model: str, until_us: int) -> None:
    """Nobody in the fleet asks a model before then: its provider said so."""

    async def blocked(tx: Transaction) -> None:
        bucket = await tx.lock_bucket(provider, model)
        await tx.keep_bucket(bucket._replace(blocked_until=max(bucket.blocked_until, until_us)))

    await store.atomically(blocked)


async def _correct(tx: Transaction, charge: Charge, used: int, now: int) -> None:
    """The model's tokens, by those that were really used."""
    if charge.taken == used or charge.taken == 0:
        return
    bucket = await tx.lock_bucket(charge.provider, charge.model)
    await tx.keep_bucket(spending.corrected(bucket, charge.taken, used, now))


async def _warn(tx: Transaction, closed: Closed, now: int) -> str | None:
    """Once for each budget that has come near its cap."""
    warned = spending.warned(closed.budgets, now)
    for budget in warned:
        await tx.keep_budget(budget)
    return await _told(tx, closed.charge, warned)


async def _told(tx: Transaction, charge: NewCharge | Charge, warned: Sequence[Budget]) -> str | None:
    said = spending.warning(warned)
    if said is not None:
        payload = json.dumps({"says": said, "budgets": [budget.hold for budget in warned]})
        seen = {"ttl_us": WARNING_TTL_US, "tenant_id": charge.tenant_id}
        await tx.record_telemetry(JOB, charge.job_id, WARNING, payload, **seen)
    return said
