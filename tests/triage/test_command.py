"""`kvwatch triage` as its user meets it: what it prints, how it ends, what it says when it cannot."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvwatch.cli import main
from tests.scenarios.days import DAYS
from tests.scenarios.history_path import write_history
from tests.scenarios.rehearsal import rehearse
from tests.scenarios.world import NOW
from tests.triage.stub_api import stub_api

if TYPE_CHECKING:
    from pathlib import Path

# The lists are closed: what reads `--json` may rely on them.
CAUSES = {
    *("prompts_longer", "answers_longer", "pool_smaller_config", "pool_smaller_startup_race"),
    *("pool_smaller_sleep_wake", "pool_smaller_unexplained", "token_dearer_engine", "token_dearer_model"),
    *("token_dearer_cache_dtype", "rank_lost", "request_limit", "stalled_not_memory", "more_traffic"),
    *("mixed", "capacity_grew", "no_change", "not_enough_data"),
}
FACTORS = ["pool", "cost_per_token", "prompt_length", "generation_length"]


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the history of a day on which two servers started at once."""
    return _history("two-servers-start-at-once", tmp_path_factory)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the history of an ordinary day."""
    return _history("an-ordinary-day", tmp_path_factory)


def _history(name: str, factory: pytest.TempPathFactory) -> Path:
    (day,) = [day for day in DAYS if day.name == name]
    path = factory.mktemp("history") / "history.db"
    write_history(path, rehearse(day, 3).published)
    return path


def ask(*arguments: object) -> int:
    """Run the command in this process."""
    return main(["triage", *map(str, arguments)])


def test_json_has_what_programs_rely_on(race: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object for one server; the factors add up to the logarithm of the ratio."""
    assert ask("--history", race, "--server", "chat", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["server"], answer["cause"]) == ("chat", "pool_smaller_startup_race")
    assert answer["cause"] in CAUSES
    assert list(answer["factors"]) == FACTORS
    assert math.isclose(sum(answer["factors"].values()), math.log(answer["ratio"]), abs_tol=1e-9)
    for moment in (answer["baseline"], answer["now"]):
        assert moment["to"] - moment["from"] == 3600
        assert {"typical_fit_empty", "pool_bytes", "pool_blocks", "prompt_tokens"} <= moment.keys()
        assert moment["generation_tokens"] > 0
    assert answer["confidence"] in ("high", "medium", "low")
    assert all(answer[part] for part in ("evidence", "disproof", "levers"))


def test_without_a_name_all_servers_are_told_worst_first(
    race: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the fleet's own factors add up too."""
    assert ask("--history", race, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["server"] for one in answer["servers"]] == ["chat", "embedding"]
    fleet = answer["fleet"]
    assert (fleet["servers"], fleet["counted"], fleet["changed"]) == (2, 2, 1)
    then, now = fleet["typical_capacity_then"], fleet["typical_capacity_now"]
    assert math.isclose(sum(fleet["factors"].values()), math.log(now / then), abs_tol=1e-9)
    assert ask("--history", race) == 1
    text = capsys.readouterr().out
    assert text.startswith("Of 2 servers 1 changed.")
    assert max(map(len, text.splitlines())) <= 80
    assert ask("--history", race, "--markdown") == 1
    assert "| chat | `pool_smaller_startup_race` | high |" in capsys.readouterr().out


def test_one_server_alone_needs_no_name(ordinary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless all of them are asked for."""
    assert ask("--history", ordinary, "--json") == 0
    assert json.loads(capsys.readouterr().out)["server"] == "chat"
    assert ask("--history", ordinary, "--json", "--all") == 0
    assert json.loads(capsys.readouterr().out)["fleet"]["servers"] == 1


@pytest.mark.parametrize(
    "arguments, baseline, now",
    [
        ([], (-90_000 + 60, -86_400 + 60), (-3600 + 60, 60)),
        (["--to", NOW - 600], (-90_600, -87_000), (-4200, -600)),
        (["--baseline", "2h"], (-10_800 + 60, -7200 + 60), (-3600 + 60, 60)),
        (["--baseline", NOW - 86_000], (-86_040, -82_440), (-3600 + 60, 60)),
        (["--from", NOW - 1800], (-1800, -900), (-900 + 60, 60)),
        (["--from", NOW - 1800, "--baseline", "1d"], (-88_200, -86_340), (-1800, 60)),
        (["--window", "15m"], (-87_300 + 60, -86_400 + 60), (-900 + 60, 60)),
        (["--from", int(NOW) - 4 * 3600, "--to", NOW, "--window", "2h"], (-14_400, -7200), (-7200, 0)),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_the_windows_are_those_that_were_asked_for(
    ordinary: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[object],
    baseline: tuple[float, float],
    now: tuple[float, float],
) -> None:
    """The last minute that was watched ends a minute after the last poll."""
    ask("--history", ordinary, "--json", *arguments)
    answer = json.loads(capsys.readouterr().out)
    for part, expected in (("baseline", baseline), ("now", now)):
        found = answer[part]["from"] - NOW, answer[part]["to"] - NOW
        assert found == pytest.approx(expected, abs=60), part


def test_since_its_last_start(race: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The hour after the start has the small pool already."""
    assert ask("--history", race, "--server", "chat", "--baseline", "start", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["baseline"]["from"] == NOW - 6 * 3600
    assert answer["cause"] == "no_change"


@pytest.mark.parametrize(
    "arguments, status, complaint",
    [
        (["--server", "nobody"], 2, "no server is called 'nobody'; known are: chat"),
        (["--baseline", "soon"], 2, "write 2026-11-30T14:00"),
        (["--json", "--markdown"], 2, "choose one"),
        (["--from", str(NOW), "--to", str(NOW)], 2, "give an earlier moment"),
        (["--baseline", "0h"], 2, "give an earlier moment"),
        (["--to", "2001-01-01"], 3, "holds nothing of any server"),
    ],
)
def test_what_cannot_be_asked_is_told(
    ordinary: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    complaint: str,
) -> None:
    """A sentence on standard error, and the status of usage or of not being able to tell."""
    assert ask("--history", ordinary, *arguments) == status
    assert complaint in capsys.readouterr().err


def test_without_a_history_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file where the daemon keeps it: start the daemon, name a file, or ask Prometheus."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    status = ask()
    said = capsys.readouterr().err
    if "holds nothing" not in said:  # a daemon of this machine keeps one
        assert (status, "--prometheus URL" in said) == (3, True)
    assert ask("--history", tmp_path / "none.db") == 3
    assert "there is no history file" in capsys.readouterr().err


def test_prometheus_is_asked_as_whom_one_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tenant and token reach it; its refusals are told with the way out."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    with stub_api() as stub:
        arguments = ["--prometheus", f"{stub.url}/api/v1/query", "--selector", 'job="kvwatch"']
        arguments += [
            "--prometheus-header",
            "X-Scope-OrgID=team-a",
            "--prometheus-bearer-token-file",
            str(token),
        ]
        assert ask(*arguments) == 3
        assert "kvwatch_server_info" in capsys.readouterr().err
        assert stub.sent[0]["x-scope-orgid"] == "team-a"
        stub.status = 401
        assert ask(*arguments) == 3
    said = capsys.readouterr().err
    assert f"{stub.url}/api/v1/query_range: HTTP 401" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prometheus", "ftp://host"],
        ["--prometheus", "http://user:password@host"],
        ["--prometheus", "http://host", "--history", "file"],
        ["--prometheus", "http://host", "--selector", 'a="b"} or up'],
        ["--prometheus", "http://host", "--prometheus-header", "X-Scope-OrgID"],
        ["--prometheus", "http://host", "--prometheus-header", "X: a=b\r\nY"],
        ["--window", "never"],
    ],
)
def test_a_usage_error_is_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 before anything is asked; a password is not repeated."""
    with pytest.raises(SystemExit) as end:
        ask(*arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "usage: kvwatch triage" in said
    assert "password@" not in said


def test_an_age_needs_no_equals_sign(ordinary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--to -2h` is two words."""
    assert ask("--history", ordinary, "--to", "-2h", "--json") in (0, 3)
    assert "expected one argument" not in capsys.readouterr().err


def test_a_terminal_without_pictures_gets_plain_letters(race: Path) -> None:
    """Where blocks cannot be shown, minus signs are."""
    result = subprocess.run(
        [sys.executable, "-m", "kvwatch", "triage", "--history", str(race), "--server", "chat"],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 1, result.stderr
    assert b"----------|" in result.stdout
