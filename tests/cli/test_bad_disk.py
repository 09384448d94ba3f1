"""Damage and full disks, in real processes: reported or refused, and nothing that was committed is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.support.command import Done, environment, run


def damaged_or_reported(done: Done) -> None:
    """Either the file is refused in one line, or the audit lists what is wrong; never a clean verdict."""
    assert done.returncode in (1, 2)  # 2 where what is left lacks migrations
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    if done.stdout:
        assert json.loads(done.stdout)["clean"] is False
    else:
        assert len(done.stderr.splitlines()) == 1
        assert "message" in json.loads(done.stderr)["error"]


@pytest.mark.parametrize("page", [0, 1, 2, 10, -1])
def test_a_page_of_garbage(page, copy):
    size = 4096
    pages = copy.stat().st_size // size
    with copy.open("r+b") as file:
        file.seek((page % pages) * size)
        file.write(bytes(range(1, 256)) * 16 + b"x" * 16)
    damaged_or_reported(run("audit", "verify", "--json", "--db", f"sqlite:///{copy}"))


@pytest.mark.parametrize("kept", [100, 4096, 5000, 0.5, 0.99])
def test_a_file_that_was_cut_off(kept, copy):
    size = copy.stat().st_size
    os.truncate(copy, kept if isinstance(kept, int) else int(size * kept))
    damaged_or_reported(run("audit", "verify", "--json", "--db", f"sqlite:///{copy}"))


@pytest.mark.parametrize("command", [("events", "list"), ("audit", "export"), ("demo",)], ids=" ".join)
def test_other_commands_refuse_a_damaged_table_too(command, copy):
    db = apsw.Connection(str(copy))
    root: int = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'events'").fetchall()[0][0]  # type: ignore[assignment]
    db.close()
    with copy.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 4096)
    before = copy.read_bytes()
    done = run(*command, "--db", f"sqlite:///{copy}")
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "is damaged" in line
    assert "restore your last backup" in line
    assert copy.read_bytes() == before


def test_audit_verify_finds_an_index_that_contradicts_its_table(copy):
    """SQLite's own check of every page and index belongs to the audit: replaying the log reads no such index."""
    db = apsw.Connection(str(copy))
    db.execute("PRAGMA writable_schema=ON; CREATE TABLE spare (a); CREATE INDEX hollow ON spare (a)")
    (pages,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'hollow'").fetchall()
    db.execute("UPDATE sqlite_schema SET rootpage = ? WHERE name = 'events_by_time'", pages)
    db.execute("DELETE FROM sqlite_schema WHERE name = 'hollow'")
    db.close()
    done = run("audit", "verify", "--json", "--db", f"sqlite:///{copy}")
    damaged_or_reported(done)
    assert "missing from index events_by_time" in done.stdout


WORKS_UNTIL_KILLED = """
import asyncio, os, sys
from keptwork.store import open_store
from tests.support.lives import live
async def work():
    store = await open_store(sys.argv[1])
    await live(store, 30)
    print(await store.event_count(), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(work())
"""


def killed_at_work(url: str) -> int:
    """What a process had committed when it was killed; its work is still in the write-ahead log."""
    root = str(Path(__file__).parents[2])
    env = environment(PYTHONPATH=os.pathsep.join((environment()["PYTHONPATH"], root)))
    done = subprocess.run([sys.executable, "-c", WORKS_UNTIL_KILLED, url], capture_output=True, text=True, env=env)
    assert done.returncode == -9, done.stderr
    return int(done.stdout)


@pytest.mark.acceptance
def test_a_log_that_was_not_cut_is_all_there(tmp_path):
    url = f"sqlite:///{tmp_path}/keptwork.db"
    committed = killed_at_work(url)
    assert json.loads(run("audit", "verify", "--json", "--db", url).stdout)["events"] == committed


@pytest.mark.acceptance
@pytest.mark.parametrize("kept", [0.3, 0.7, 0.95])
def test_a_write_ahead_log_that_was_cut_leaves_whole_commits_or_is_reported(kept, tmp_path):
    """SQLite cannot tell a cut log from a crash: what is left is an earlier moment, whole and consistent."""
    url = f"sqlite:///{tmp_path}/keptwork.db"
    committed = killed_at_work(url)
    wal = tmp_path / "keptwork.db-wal"
    os.truncate(wal, int(wal.stat().st_size * kept))
    done = run("audit", "verify", "--json", "--db", url)
    if done.returncode:
        damaged_or_reported(done)
    else:
        verdict = json.loads(done.stdout)
        assert verdict["clean"]
        assert verdict["events"] < committed


FILLS_THE_DISK = Path(__file__).with_name("disk_filler.py")


def namespaces_allowed() -> bool:
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False


def on_a_small_disk(folder: Path, *argv: str) -> Done:
    """Runs a program with a disk of 2 MB at `folder`, which nobody else sees and which goes with it."""
    mount = f'mount -t tmpfs -o size=2m tmpfs "{folder}" && exec "$@"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *argv], capture_output=True, text=True, env=environment()
    )


@pytest.mark.acceptance
def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(tmp_path):
    """On a real small disk where the system lets an ordinary process mount one; elsewhere the file itself is kept from
    growing, which SQLite reports in the same way."""
    python = [sys.executable, str(FILLS_THE_DISK), str(tmp_path)]
    if namespaces_allowed():
        done = on_a_small_disk(tmp_path, *python, "disk")
    else:
        done = subprocess.run([*python, "limit"], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "is full; what was committed is safe. Free some space and try again" in told["refusal"]
    assert told["acknowledged"] > 0
    assert told["kept_while_full"] == told["acknowledged"]
    assert told["kept_in_the_end"] == told["acknowledged"] + told["resumed"]
    assert told["problems"] == []


@pytest.mark.acceptance
@pytest.mark.skipif(not namespaces_allowed(), reason="the system lets no ordinary process mount a small disk")
@pytest.mark.parametrize("command", [("migrate",), ("demo",)], ids=" ".join)
def test_commands_on_a_full_disk(command, tmp_path):
    script = 'dd if=/dev/zero of="$0/ballast" bs=1k count=1970 2>/dev/null; exec "$@"'
    argv = (sys.executable, "-m", "keptwork", *command, "--db", f"sqlite:///{tmp_path}/keptwork.db")
    done = on_a_small_disk(tmp_path, "sh", "-c", script, str(tmp_path), *argv)
    *before, line = done.stderr.splitlines()
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert all("stopped in migration 0001" in told for told in before), done.stderr
    assert len(before) <= 1
    assert "is full" in line
    assert "Free some space" in line


@pytest.mark.acceptance
@pytest.mark.skipif(not namespaces_allowed(), reason="the system lets no ordinary process mount a small disk")
def test_an_export_to_a_full_disk_leaves_nothing_half_done(tmp_path, original):
    script = 'dd if=/dev/zero of="$0/ballast" bs=1k count=2030 2>/dev/null; "$@"; code=$?; ls -A "$0"; exit $code'
    export = (
        sys.executable,
        "-m",
        "keptwork",
        "audit",
        "export",
        f"{tmp_path}/log.jsonl",
        "--db",
        f"sqlite:///{original}",
    )
    done = on_a_small_disk(tmp_path, "sh", "-c", script, str(tmp_path), *export)
    assert (done.returncode, done.stdout.split()) == (1, ["ballast"])
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"keptwork: Cannot write {tmp_path}/log.jsonl: no space left on device")
