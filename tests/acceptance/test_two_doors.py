"""One SQLite file by two doors, at random, with kills: refused or safe, and never a silent loss."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_bad_disk import namespaces_allowed
from tests.support.clerk import Clerk, Refused

SAFE = [
    "the same name",
    "a symbolic link",
    "a descriptor",
    *(["a folder mounted twice"] if namespaces_allowed() else []),
]
REFUSED = ["a hard link", *(["a file mounted alone"] if namespaces_allowed() else [])]
CARELESS = ["open {}", "open {}-wal", "open {}-shm", "sqlite3 {}", "sqlite3 file:{}?mode=ro", "forked {}"]


class Round(NamedTuple):
    """What was acknowledged, what is still there, how often something was refused, and whether the file is whole."""

    door: str
    acknowledged: int
    there: int
    refused: int
    whole: bool


def second_door(file: Path, door: str, without: str | None) -> Clerk:
    folder = file.parent / "door"
    folder.mkdir()
    other = folder / file.name
    mount = ""
    match door:
        case "the same name":
            other = file
        case "a symbolic link":
            other.symlink_to(file)
        case "a descriptor":
            return Clerk(f"sqlite:////proc/self/fd/{file}", without)
        case "a hard link":
            os.link(file, other)
        case "a folder mounted twice":
            mount = f'mount --bind "{file.parent}" "{folder}"'
        case "a file mounted alone":
            other.touch()
            mount = f'mount --bind "{file}" "{other}"'
    prefix = ("unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh") if mount else ()
    return Clerk(f"sqlite:///{other}", without, prefix)


def played(file: Path, door: str, dice: random.Random, without: str | None = None) -> Round:
    """Two processes at work by two doors, one of them with careless code in it; both are killed or end."""
    clerks, refused = [Clerk(f"sqlite:///{file}", without)], 0
    with ExitStack() as end:
        end.callback(kill, clerks)
        clerks[0].enqueue(dice.randint(1, 30))
        try:
            clerks.append(second_door(file, door, without))
        except Refused:
            refused += 1
        for _ in range(dice.randint(3, 10)):
            with suppress(*([Refused] if without else [])):  # what is destroyed may be noticed, too late
                dice.choice(clerks).enqueue(dice.randint(1, 30))
            refused += dice.random() < 0.5 and refuses(dice.choice(clerks), dice.choice(CARELESS).format(file))
        for one in [] if without else clerks:
            dice.choice([one.kill9, one.close])()
    there, whole = remaining(file)
    return Round(door, sum(one.acknowledged for one in clerks), there, refused, whole)


def kill(clerks: list[Clerk]) -> None:
    for one in clerks:
        one.kill9()


def refuses(one: Clerk, line: str) -> bool:
    try:
        one.ask(line)
    except Refused:
        return True
    return False


def remaining(file: Path) -> tuple[int, bool]:
    """How many jobs are left, and whether SQLite finds nothing wrong."""
    db = sqlite3.connect(file)
    with suppress(sqlite3.DatabaseError):
        (jobs,) = db.execute("SELECT count(*) FROM jobs").fetchone()
        (whole,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        db.close()
        return jobs, whole == "ok"
    db.close()
    return 0, False


def play(original: Path, folder: Path, rounds: int, doors: list[str], without: str | None = None) -> list[Round]:
    dice, told = random.Random(36), []
    for number in range(rounds):
        file = folder / f"round-{number}" / "keptwork.db"
        file.parent.mkdir()
        shutil.copy(original, file)
        told.append(played(file, doors[number % len(doors)], dice, without))
    acknowledged, there = sum(one.acknowledged for one in told), sum(one.there for one in told)
    lossy = Counter(one.door for one in told if one.there < one.acknowledged)
    print(
        f"\n{rounds} rounds {f'without {without}' if without else ''}: {acknowledged:,} acknowledged, {there:,} there"
    )
    print(f"  refused {sum(one.refused for one in told)} times; rounds with losses: {dict(lossy)}")
    return told


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])
def test_work_by_two_doors_is_refused_or_kept(migrated_file, tmp_path, rounds):
    doors = [*REFUSED, *SAFE] if rounds > 2 else ["a hard link", "a symbolic link"]
    for one in play(migrated_file, tmp_path, rounds, doors):
        assert (one.there, one.whole) == (one.acknowledged, True), one


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("without", "doors"), [("doors", REFUSED), ("held", SAFE)])
def test_drill_catches_the_loss_when_a_guard_is_taken_away(migrated_file, tmp_path, without, doors):
    told = play(migrated_file, tmp_path, 30, doors, without)
    assert sum(one.there for one in told) < sum(one.acknowledged for one in told)
