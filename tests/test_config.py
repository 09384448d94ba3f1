"""The configuration file: read, or refused with the file and the key of every problem."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keptwork import settings
from keptwork.access.scopes import Allowance
from keptwork.errors import BadConfig
from keptwork.process.resource_limits import Limits
from tests.support.command import environment

RUFF = """
[tools.ruff]
command = ["ruff", "check"]
timeout = "5m"
expected_exit_codes = [0, 1]
retry_on_failure = false
env = ["RUFF_CACHE"]
cwd = "src"
idempotent = false
memory = "512MB"
cpu = "30s"
output = "64KiB"

[tools.ruff.breaker]
failure_threshold = 2
cooldown_seconds = 1.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keptwork.toml"


def problems(file: Path, text: str | bytes) -> list[str]:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadConfig) as refusal:
        settings.read(file)
    assert refusal.value.exit_code == 2
    lines = str(refusal.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    return [line.removeprefix(f"{file}: ") for line in lines]


def test_a_tool_has_what_the_file_says_and_the_usual_for_the_rest(file: Path) -> None:
    file.write_text(RUFF + '[tools.plain]\ncommand = ["true"]\n')
    found = settings.read(file)
    ruff, plain = found.tools["ruff"], found.tools["plain"]
    assert (ruff.command, ruff.timeout, ruff.expected_exit_codes) == (["ruff", "check"], "5m", [0, 1])
    assert (ruff.retry_on_failure, ruff.idempotent, ruff.env) == (False, False, ["RUFF_CACHE"])
    assert (ruff.limits, ruff.output) == (Limits(512_000_000, 30), 65_536)
    assert found.folder(ruff) == str(file.parent / "src")
    assert ruff.breaker.model_dump() == {"failure_threshold": 2, "cooldown_seconds": 1.5, "success_threshold": 1}
    assert (plain.timeout, plain.expected_exit_codes, plain.retry_on_failure, plain.idempotent) == (
        "1h",
        [0],
        True,
        True,
    )
    assert (plain.env, plain.limits, plain.output, found.folder(plain)) == ([], Limits(), 1 << 20, None)
    assert plain.breaker.model_dump() == {"failure_threshold": 5, "cooldown_seconds": 60, "success_threshold": 1}


AGENTS = """
[models]
provider = "openai"
sonnet = "local-large"
base_url = "http://127.0.0.1:8000/v1"
key_file = "secrets/key"
[models.tokens_per_minute]
"gpt-5.4" = 200_000
[models.prices."local-large"]
input_per_million_usd = 0.1
output_per_million_usd = 0.2
[budgets]
job_usd = 0.1
day_usd = 20
[agents]
max_turns = 5
"""


def test_agents_have_what_the_file_says_and_the_usual_for_the_rest(file: Path) -> None:
    file.write_text(AGENTS)
    found = settings.read(file)
    names = [found.models.name("openai", tier) for tier in ("haiku", "sonnet", "opus")]
    assert names == ["gpt-5.4-nano", "local-large", "gpt-5.4"]
    assert (found.models.max_tokens, found.models.timeout, found.models.unpriced) == (4096, "2m", "refuse")
    assert found.models.tokens_per_minute == {"gpt-5.4": 200_000}
    assert found.beside(found.models.key_file or "") == file.parent / "secrets" / "key"
    assert (found.budgets.caps, found.budgets.warn_at) == ({"job": 100_000, "day": 20_000_000}, 0.8)
    assert (found.agents.max_turns, found.agents.max_tool_calls, found.agents.skills) == (5, 50, "skills")


def test_a_server_has_what_the_file_says_and_the_usual_for_the_rest(file: Path) -> None:
    file.write_text('[server]\nmax_queued = 5\nrow_security = "require"\n')
    found = settings.read(file).server
    assert found.allowance == replace(Allowance(), max_queued=5)
    assert (found.row_security, found.failed_keys_per_minute) == ("require", 600)


def test_without_a_file_there_are_no_caps_and_no_provider_is_named(file: Path) -> None:
    file.write_text("")
    found = settings.read(file)
    assert (found.models.provider, found.budgets.caps, found.models.prices) == (None, {}, {})


def test_it_is_looked_for_where_it_is_said_then_in_the_environment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEPTWORK_CONFIG", raising=False)
    assert settings.read().tools == {}  # there is none, and nobody asked for one
    for name in ("keptwork", "other", "third"):
        (tmp_path / f"{name}.toml").write_text(f'[tools.{name}]\ncommand = ["x"]\n')
    assert list(settings.read().tools) == ["keptwork"]
    monkeypatch.setenv("KEPTWORK_CONFIG", "other.toml")
    assert list(settings.read().tools) == ["other"]
    assert list(settings.read("third.toml").tools) == ["third"]
    monkeypatch.setenv("KEPTWORK_CONFIG", "gone.toml")
    with pytest.raises(BadConfig, match=r"gone\.toml: it cannot be read: No such file or directory"):
        settings.read()


TOOL = "[tools.x]\n"
WRONG = [
    (TOOL + 'command = "ruff check"', "tools.x.command: it should be a list; it is 'ruff check'"),
    (TOOL + "command = []", "tools.x.command: it should"),
    (TOOL + 'command = [""]', "tools.x: the first part of command names the program; it is empty"),
    (TOOL + 'command = ["a", 1]', "tools.x.command[2]: it should be a string; it is 1"),
    (TOOL + 'command = ["a\\u0000"]', "tools.x.command[1]: it holds a NUL, which no program can be given"),
    (TOOL, "tools.x.command is missing"),
    (TOOL + 'command = ["a"]\ncomand = ["a"]', "tools.x.comand is no key that is known here; did you mean command?"),
    ('[tool.x]\ncommand = ["a"]', "tool is no key that is known here; did you mean tools?"),
    ('[tools.a]\ncommand = ["a"]\ntimeout = "0s"', "tools.a.timeout: '0s' leaves no time at all"),
    ('[tools."a b"]\ncommand = ["a"]', "tools.a b: 'a b' is no name"),
    ("tools = 1", "tools: it should be a mapping; it is 1"),
    ("[tools]\nx = 1", "tools.x: it should be a mapping; it is 1"),
    (TOOL + 'command = ["a"]\ntimeout = 5', "tools.x.timeout: write a duration like 30s"),
    (TOOL + 'command = ["a"]\ntimeout = "soon"', "tools.x.timeout: 'soon' is no duration"),
    (TOOL + 'command = ["a"]\nexpected_exit_codes = [256]', "tools.x.expected_exit_codes[1]: it should be"),
    (TOOL + 'command = ["a"]\nexpected_exit_codes = []', "tools.x.expected_exit_codes: it should"),
    (TOOL + 'command = ["a"]\nidempotent = "no"', "tools.x.idempotent: it should be a boolean; it is 'no'"),
    (TOOL + 'command = ["a"]\nenv = ["A=B"]', "tools.x.env[1]: 'A=B' names no variable"),
    (TOOL + 'command = ["a"]\nenv = ["KEPTWORK_DB"]', "tools.x.env[1]: KEPTWORK_DB is kept from tools"),
    (TOOL + 'command = ["a"]\nmemory = "lots"', "tools.x.memory: 'lots' is no amount of memory"),
    (TOOL + 'command = ["a"]\nmemory = "1MB"', "tools.x: a process does not start in 1,000,000 bytes of memory"),
    (TOOL + 'command = ["a"]\ncpu = "1ms"', "tools.x: cpu is '1ms'; CPU time is limited to whole seconds"),
    (TOOL + 'command = ["a"]\noutput = "1GB"', "tools.x.output: of each stream between 1KiB and 1MiB are kept"),
    (
        TOOL + 'command = ["a"]\n[tools.x.breaker]\nfailure_threshold = 0',
        "tools.x.breaker.failure_threshold: it should",
    ),
    (TOOL + 'command = ["a"]\n[tools.x.breaker]\ncooldown = 1', "tools.x.breaker.cooldown is no key that is known"),
    ('[models]\nprovider = "mine"', "models.provider: it should be 'anthropic', 'openai', 'offline' or 'recorded'"),
    ('[models]\nhaku = "x"', "models.haku is no key that is known here; did you mean haiku?"),
    ('[models]\nhaiku = ""', "models.haiku: it should"),
    ('[models]\nhaiku = "a\\nb"', "models.haiku: it should"),
    ('[models]\nprovider = "openai"\nbase_url = "localhost:8000"', "models.base_url: write an address such as"),
    ('[models]\nprovider = "openai"\nbase_url = "http://[::1"', "models.base_url: write an address such as"),
    ('[models]\nprovider = "openai"\nbase_url = "https://me:x@host"', "models.base_url: an address holds no user"),
    ('[models]\nprovider = "openai"\nbase_url = "https://host/?key=x"', "models.base_url: an address ends with its"),
    ('[models]\nkey_file = "key"', "models: key_file is of no use without provider"),
    ("[models]\nmax_tokens = 0", "models.max_tokens: it should"),
    ('[models]\ntimeout = "0s"', "models.timeout: a call takes more than no time"),
    ('[models]\ntimeout = "2h"', "models.timeout: a call takes more than no time, and an hour at most"),
    ('[models]\nunpriced = "maybe"', "models.unpriced: it should be 'refuse' or 'allow'"),
    ("[models.tokens_per_minute]\nm = 0", "models.tokens_per_minute.m: it should"),
    ("[models.prices.m]\ninput_per_million_usd = 1", "models.prices.m.output_per_million_usd is missing"),
    (
        "[models.prices.m]\ninput_per_million_usd = nan\noutput_per_million_usd = 1",
        "models.prices.m.input_per_million_usd: an amount lies between",
    ),
    (
        "[models.prices.m]\ninput_per_million_usd = 1\noutput_per_million_usd = 1\noutput_per_milion_usd = 1",
        "models.prices.m.output_per_milion_usd is no key that is known here; did you mean output_per_million_usd?",
    ),
    ("[budgets]\njob_usd = -1", "budgets.job_usd: an amount lies between 0 and 1,000,000 dollars"),
    ('[budgets]\njob_usd = "1"', "budgets.job_usd: write an amount of dollars, such as 2.00"),
    ("[budgets]\nday_usd = inf", "budgets.day_usd: an amount lies between"),
    ("[budgets]\nyear_usd = 1", "budgets.year_usd is no key that is known here"),
    ("[budgets]\nwarn_at = 80.0", "budgets.warn_at: it should"),
    ("[budgets]\nwarn_at = nan", "budgets.warn_at: it should"),
    ("[agents]\nmax_turns = 0", "agents.max_turns: it should"),
    ('[agents]\ntimeout = "soon"', "agents.timeout: 'soon' is no duration"),
    ("[server]\nburst = -1", "server.burst: it should"),
    ("[server]\nmax_quewed = 1", "server.max_quewed is no key that is known here; did you mean max_queued?"),
    ('[server]\nrow_security = "maybe"', "server.row_security: it should"),
    ("[agent]\nmax_turns = 1", "agent is no key that is known here; did you mean agents?"),
    (TOOL + 'command = ["a"', "this is no TOML: Unclosed array"),
    (b"\xff", "it is no text in UTF-8"),
    ("#" * (1 << 20) + "#", "the file is larger than 1 MiB"),
    ("a = " + "[" * 10_000, "this is no TOML:"),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_what_is_wrong_is_told_with_its_key(file: Path, text: str | bytes, complaint: str) -> None:
    (found,) = problems(file, text)
    assert found.startswith(complaint)


def test_all_that_is_wrong_is_told_at_once(file: Path) -> None:
    assert len(problems(file, '[tools.a]\n[tools.b]\ncommand = ["x"]\ntimeout = 1\nhue = 2\n')) == 3


@pytest.mark.acceptance
def test_nothing_reads_the_file_before_somebody_wants_it() -> None:
    modules = "keptwork.cli.main, keptwork.app, keptwork.workers.tool_runner"
    code = f"import sys, {modules}; print('keptwork.settings' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- what agents may give a tool

GREP = """
[tools.grep]
command = ["grep", "-rn"]
description = "Searches."
args = ["--", "{pattern}", "{files}"]
[tools.grep.arguments]
required = ["pattern"]
[tools.grep.arguments.properties]
pattern = {type = "string"}
files = {type = "array", items = {type = "string"}}
"""


def test_a_tool_says_what_a_model_may_give_it(file: Path) -> None:
    file.write_text(GREP)
    tool = settings.read(file).tools["grep"]
    assert (tool.description, tool.approval, tool.takes.schema["additionalProperties"]) == ("Searches.", False, False)
    assert tool.takes.passed({"pattern": "-x", "files": ["a"]}) == (("--", "-x", "a"), b"")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'args = ["{nosuch}"]',
            "tools.grep: args: {nosuch} is not among the properties of arguments; a brace is written {{",
        ),
        ('args = ["--", "{pattern}"]', "tools.grep: args: nothing takes {files}; add it, or leave args out to pass"),
        ("approval = 1", "tools.grep.approval: it should be "),
        ('args = "{pattern}"', "tools.grep.args: it should be a list; it is '{pattern}'"),
    ],
)
def test_what_a_model_may_give_is_checked_with_the_file(file: Path, line: str, said: str) -> None:
    kept = [old for old in GREP.splitlines() if not line.startswith(old.split(" ")[0] or "-")]
    text = "\n".join(kept).replace('description = "Searches."', f'description = "Searches."\n{line}')
    assert any(problem.startswith(said) for problem in problems(file, text)), problems(file, text)


def test_a_schema_that_nobody_could_check_is_refused(file: Path) -> None:
    (said,) = problems(file, GREP.replace('pattern = {type = "string"}', 'pattern = {typ = "string"}'))
    assert said.startswith("tools.grep: the schema/properties/pattern: the keyword 'typ' is not understood; there are")


def test_the_profiles_of_agents_in_the_docs_can_be_read(file: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/how-to/tools.md").read_text()
    blocks = [rest.partition("```")[0] for rest in page.split("```toml\n")[1:]]
    (block,) = [block for block in blocks if "arguments" in block]
    file.write_text(block)
    ship = settings.read(file).tools["ship"].takes
    assert ship.passed({"version": "1.2"}) == (("--version=1.2",), b"")
    assert ship.passed({"version": "1.2", "place": "staging"}) == (("--to", "staging", "--version=1.2"), b"")
