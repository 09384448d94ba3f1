"""Budgets: reserve the maximum cost of a call before it, and settle its cost after it.

A call counts against up to four budgets: its job's, its outermost flow's, the tenant's, and the day's. `reserve` locks
all of them, always in the same order, before it checks whether the call fits. No cap is exceeded, however many calls
are reserved concurrently. A call that does not fit is refused: its job is held without spending an attempt, and
continues when the budget allows it (`budget_caps`). The same transaction counts the tokens per minute of the model
across all workers.

If a job ends or is reclaimed with a call in flight, the same transaction marks the call as lost: its ceiling counts as
spent, because the provider might have billed the call. If the outcome becomes known later, the actual cost replaces the
ceiling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from keptwork.agents import budget_rules
from keptwork.agents.budget_rules import CONFIG, Wait
from keptwork.agents.conversation import NOTHING, Usage
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, RUN, WORKSTREAM
from keptwork.core.money import LARGEST_MICROS, NO_CAPS, TOTAL, Caps, Scope, day_name, day_of, micros
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, LeaseLost
from keptwork.flows.compiled import shape
from keptwork.store import Reader, Store, Transaction
from keptwork.store.contract.budgets import (
    LOST,
    RELEASED,
    SETTLED,
    Budget,
    Charge,
    Closed,
    Closing,
    NewBudget,
    NewCharge,
)

WARNING = "budget_warning"
"""Telemetry name of a warning. It is recorded with the job whose call caused the warning."""

WARNING_TTL_US = 86_400_000_000
MOST_TOKENS = 1 << 40
FLOW_FILE = "flow file"


class Reserved(NamedTuple):
    """Permission to make a call. Settle the call under `id`. `warning` is text for users, once per budget."""

    id: int
    warning: str | None = None


class Refused(NamedTuple):
    """Refusal of a call.

    `hold` names the hold on the job until its budget allows the call. `hold` is None if the job only has to retry at
    `until_us`, because the model accepts no more tokens before.
    """

    hold: str | None
    reason: str
    until_us: int | None = None


class Wish(NamedTuple):
    """A call to be reserved, with the caps and limits that apply to it."""

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
    """Reserve a call of at most `ceiling_micros` and about `tokens` tokens, or refuse it.

    A repeated request for a call in flight, in the same epoch of the job, returns the same reservation. A call of an
    earlier epoch is marked as lost.
    """
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
    """Return the decision, or None if `_prepare` must run first.

    `_prepare` uses its own transactions, so that two callers cannot deadlock.
    """
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
    """Return the reservation if this claim made it, or None if an earlier claim did.

    The earlier reservation must be marked as lost first. Raise `LeaseLost` if a later claim made it: this claim must
    make no more calls.
    """
    if under_way.epoch > charge.epoch:
        raise LeaseLost(lifecycle=JOB.name, id=public_id(JOB.name, charge.job_id), trigger="reserve")
    return Reserved(under_way.id) if under_way.epoch == charge.epoch else None


async def _decided(tx: Transaction, wish: Wish, found: Sequence[Budget], now: int) -> Reserved | Refused:
    """Decide about a call while all its budgets are locked."""
    charge = wish.charge
    budgets = [budget_rules.configured(budget, wish.caps) for budget in found]
    full = budget_rules.refusing(budgets, charge.ceiling_micros)
    if full is not None:
        return await _held_back(tx, found, budgets, full, charge.ceiling_micros)
    taken = await _tokens_taken(tx, wish, now)
    if isinstance(taken, Wait):
        return Refused(None, taken.reason, taken.until_us)
    budgets = [budget_rules.promise_kept(budget, charge.ceiling_micros) for budget in budgets]
    warned = budget_rules.warned(budgets, now)
    await _keep_changed(tx, found, {budget.owner: budget for budget in (*budgets, *warned)})
    id = await tx.open_charge(charge._replace(taken=taken))
    return Reserved(id, await _told(tx, charge, warned))


async def _prepare(store: Store, wish: Wish) -> None:
    """Mark the calls of earlier claims of the job as lost, and create the shared budgets."""
    charge, caps = wish.charge, wish.caps
    for found in await store.open_charges(charge.job_id, charge.call):
        if found.epoch < charge.epoch:
            await store.atomically(partial(_lost, charge=found))
    day = day_of(await store.now())
    shared = ((day, Scope.DAY, day_name(day)), (0, Scope.TENANT, TOTAL))
    await store.make_budgets([_new(charge.tenant_id, *which, caps) for which in shared])


async def _own_budgets(tx: Transaction, wish: Wish) -> list[Budget]:
    """Return the budgets of the job and its flow, locked before the shared ones. Create them on first use."""
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
    return Refused(full.hold, budget_rules.refusal(full, ceiling), budget_rules.over_at(full))


async def _keep_changed(tx: Transaction, found: Sequence[Budget], kept: dict[int, Budget]) -> None:
    for before in found:
        if kept[before.owner] != before:
            await tx.keep_budget(kept[before.owner])


async def _tokens_taken(tx: Transaction, wish: Wish, now: int) -> int | Wait:
    """Return how many tokens were taken for the call, or how long to wait.

    The number is 0 if the model has no limit. A model in backoff must wait even if it has no limit. In that case the
    bucket is read without a lock.
    """
    charge, limited = wish.charge, wish.tokens_per_minute is not None
    which = (charge.provider, charge.model)
    bucket = await tx.lock_bucket(*which) if limited else await tx.bucket(*which)
    if bucket is None:
        return 0
    after = budget_rules.asked(bucket, wish.tokens, wish.tokens_per_minute, now)
    if isinstance(after, Wait):
        return after
    if after != bucket:
        await tx.keep_bucket(after)
    return wish.tokens if limited else 0


async def new_for_flow(store: Reader, tenant_id: int, tree: int, caps: Caps) -> NewBudget:
    """Return the budget of a flow, with the cap of its file or of the configuration."""
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
    """Record the cost and tokens of a call in the transaction that stores its outcome.

    Return a warning if one is due. Call it last in that transaction, because it locks budgets that other jobs wait for.
    A repetition changes nothing. If the call was marked as lost, its cost replaces the ceiling.
    """
    tokens = {f"{name}_tokens": count for name, count in usage._asdict().items()}
    now = await tx.now()
    closed = await tx.close_charge(reservation_id, Closing(SETTLED, cost_micros, outcome, **tokens))
    if closed is None:
        return None
    await _correct(tx, closed.charge, usage.input + usage.output + usage.cache_write, now)
    return await _warn(tx, closed, now)


async def release(tx: Transaction, reservation_id: int) -> None:
    """Release the reservation of a call that was not sent, even if it was marked as lost.

    It costs nothing and takes no tokens.
    """
    if (closed := await tx.close_charge(reservation_id, Closing(RELEASED))) is not None:
        await _correct(tx, closed.charge, 0, await tx.now())


async def lost(store: Store | Transaction, job_id: int, call: str | None = None) -> int:
    """Mark a job's open calls of earlier attempts as lost, or only those named `call`.

    Return how many there were. Each of them counts with its ceiling.
    """
    found = await store.open_charges(job_id, call)
    return sum([await store.atomically(partial(_lost, charge=charge)) for charge in found])


async def give_up(tx: Transaction, reservation_id: int) -> None:
    """Count a call with its ceiling, because the provider might have billed it."""
    if (charge := await tx.charge(reservation_id)) is not None:
        await _lost(tx, charge)


async def close_calls(tx: Transaction, jobs: Sequence[int]) -> int:
    """Mark the calls in flight of jobs that end or are reclaimed here as lost. Return how many there were.

    The call of a job that has ended ends at the same time, however long other sessions hold its budgets.
    """
    found = await tx.charges_in_flight(jobs) if jobs else []
    ends = await tx.lock_jobs(sorted({charge.job_id for charge in found})) if found else {}
    for tenant_id in {charge.tenant_id for charge in found}:  # one lock order for all transactions
        owners = {owner for charge in found if charge.tenant_id == tenant_id for owner in charge.owners}
        await tx.lock_budgets(tenant_id, sorted(owners))
    return sum([await _lost(tx, charge, ends.get(charge.job_id, (0, None))[1]) for charge in found])


async def close_abandoned(store: Store, limit: int) -> int:
    """Mark the open calls of jobs that ended without closing them as lost. Return how many there were."""
    found = await store.abandoned_charges(limit)
    return sum([await store.atomically(partial(_lost, charge=charge)) for charge in found])


async def _lost(tx: Transaction, charge: Charge, ended_at: int | None = None) -> bool:
    closed = await tx.close_charge(charge.id, Closing(LOST, charge.ceiling_micros, ended_at=ended_at))
    if closed is not None:
        await _warn(tx, closed, await tx.now())
    return closed is not None


async def back_off(store: Store, provider: str, model: str, until_us: int) -> None:
    """Block requests to a model from all workers until this time. Its provider asked for it."""

    async def blocked(tx: Transaction) -> None:
        bucket = await tx.lock_bucket(provider, model)
        await tx.keep_bucket(bucket._replace(blocked_until=max(bucket.blocked_until, until_us)))

    await store.atomically(blocked)


async def _correct(tx: Transaction, charge: Charge, used: int, now: int) -> None:
    """Replace the tokens taken from the model's bucket by the tokens that were used."""
    if charge.taken == used or charge.taken == 0:
        return
    bucket = await tx.lock_bucket(charge.provider, charge.model)
    await tx.keep_bucket(budget_rules.corrected(bucket, charge.taken, used, now))


async def _warn(tx: Transaction, closed: Closed, now: int) -> str | None:
    """Store and return one warning for the budgets that newly came near their caps."""
    warned = budget_rules.warned(closed.budgets, now)
    for budget in warned:
        await tx.keep_budget(budget)
    return await _told(tx, closed.charge, warned)


async def _told(tx: Transaction, charge: NewCharge | Charge, warned: Sequence[Budget]) -> str | None:
    said = budget_rules.warning(warned)
    if said is not None:
        payload = json.dumps({"says": said, "budgets": [budget.hold for budget in warned]})
        seen = {"ttl_us": WARNING_TTL_US, "tenant_id": charge.tenant_id}
        await tx.record_telemetry(JOB, charge.job_id, WARNING, payload, **seen)
    return said
