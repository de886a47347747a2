"""`kvwatch help` and `kvwatch completion`: topics are explained, shells complete what the parser knows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kvwatch import cli, help_command
from kvwatch.metrics import CATALOGUE

ROOT = Path(__file__).parents[2]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command line; return its status, its output and what it complained of."""
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_help_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a topic every command, page and alert is named."""
    status, text, _ = said(capsys, "help")
    assert status == 0
    for file in (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "runbooks").glob("Kvwatch*.md")):
        assert file.stem in text.split()
    assert "kvwatch triage --server chat" in text


@pytest.mark.parametrize("command", ["run", "once", "triage", "cost", "log", "demo", "help", "completion"])
def test_help_of_a_command_is_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`kvwatch help COMMAND` says what `kvwatch COMMAND --help` does."""
    _, text, _ = said(capsys, "help", command)
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert text.startswith(capsys.readouterr().out)


def test_help_explains_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """Each family is a topic, with or without its prefix: its meaning, its labels, and its runbooks."""
    parser = cli._parser()
    for metric in CATALOGUE:
        assert help_command.run_help(parser, metric.name) == 0
        assert metric.help in capsys.readouterr().out
        assert help_command.run_help(parser, metric.name.removeprefix("kvwatch_")) == 0
    capsys.readouterr()
    _, text, _ = said(capsys, "help", "full_length_requests_headroom")
    assert "labels: server, rank" in text
    assert "KvwatchNoRoom" in text


def test_help_of_an_alert_is_its_runbook(capsys: pytest.CaptureFixture[str]) -> None:
    """An alert's name brings its runbook, a page's name its page, also one that a command shares."""
    assert said(capsys, "help", "KvwatchNoRoom")[1] == (ROOT / "docs/runbooks/KvwatchNoRoom.md").read_text()
    assert said(capsys, "help", "discovery")[1] == (ROOT / "docs/discovery.md").read_text()
    assert said(capsys, "help", "triage.md")[1] == (ROOT / "docs/triage.md").read_text()


@pytest.mark.parametrize(
    "topic, guess",
    [
        ("headroom", "did you mean kvwatch_full_length_requests_headroom?"),
        ("KvwatchNoRom", "did you mean KvwatchNoRoom"),
        ("zzz", "`kvwatch help` lists the topics"),
    ],
)
def test_an_unknown_topic_is_an_error_with_a_guess(
    topic: str, guess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no topic exits with 2 and says what may have been meant."""
    status, text, complaint = said(capsys, "help", topic)
    assert (status, text) == (2, "")
    assert guess in complaint


COMPLETIONS = {
    ("kvwatch", "tri"): {"triage"},
    ("kvwatch", "run", "--no-d"): {"--no-discovery"},
    ("kvwatch", "run", "--log.format", ""): {"logfmt", "json"},
    ("kvwatch", "run", "--config", "mine"): {"mine.yaml"},
    ("kvwatch", "log", "mine"): {"mine.yaml"},
}


def test_bash_completes_commands_options_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real bash that has sourced the script offers commands, options, choices and names of files."""
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "script").write_text(said(capsys, "completion", "bash")[1], encoding="utf-8")
    for words, expected in COMPLETIONS.items():
        before, last = words[-2], words[-1]
        program = (
            f"source ./script; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
            f"_shtab_kvwatch kvwatch {shlex.quote(last)} {before}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert set(done.stdout.split()) == expected, (words, done.stderr)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_told_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each script names every command of the parser."""
    status, script, _ = said(capsys, "completion", shell)
    assert status == 0
    assert help_command.commands_of(cli._parser()).keys() <= set(re.findall(r"[\w-]+", script))
