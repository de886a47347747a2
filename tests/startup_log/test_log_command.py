"""`kvwatch log`: what it prints, its exit status, and its one sentence where a file cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvwatch.cli import main
from tests.replay import CAPTURES
from tests.startup_log.public_cases import CASES, RACE
from tests.startup_log.reading import GIB, LOGS
from tests.startup_log.test_advice import LLAMA_8B
from tests.startup_log.vllm_prints import FACTS, v1_log

UNREADABLE = {
    "a folder": (lambda path: path.mkdir(), 2, "{} is a folder: name the log file in it"),
    "missing": (
        lambda _: None,
        2,
        "{} is not there: name a log file, or - for standard input",
    ),
    "empty": (
        lambda path: path.touch(),
        3,
        "{} is empty: engines write to standard error too, so redirect with > FILE 2>&1",
    ),
    "compressed": (
        lambda path: path.write_bytes(gzip.compress(v1_log("0.28.0").encode())),
        2,
        "{0} is compressed: zcat {0} | kvwatch log -",
    ),
    "binary": (
        lambda path: path.write_bytes(bytes(range(256)) * 64),
        3,
        (
            "{}: no start of vLLM or llama-server is in its 65 lines. Give the log from the server's"
            " first line on"
        ),
    ),
    "another program's": (
        lambda path: path.write_text("GET / 200\n" * 10),
        3,
        (
            "{}: no start of vLLM or llama-server is in its 10 lines. Give the log from the server's"
            " first line on"
        ),
    ),
    "coloured lines that journald hides": (
        lambda path: path.write_text("Nov 30 20:01:15 node7 vllm[4711]: [85B blob data]\n" * 7),
        3,
        (
            "{}: no start of vLLM or llama-server is in its 7 lines; journalctl hid 7 coloured lines as"
            " blobs: run it with --all. Give the log from the server's first line on"
        ),
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names the file and the way out."""
    make, status, sentence = UNREADABLE[name]
    path = tmp_path / "server.log"
    make(path)
    assert main(["log", str(path)]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"kvwatch log: {sentence.format(path)}\n"


def test_no_permission(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file of another user, read by a child that has given its rights away."""
    path = tmp_path / "server.log"
    path.write_text(v1_log("0.28.0"))
    assert main(["log", str(path)]) == 0  # everything is imported
    path.chmod(0)
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        os._exit(main(["log", str(path)]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert f"{path} may not be read by this user: sudo cat {path} | kvwatch log -" in capfd.readouterr().err


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """What the kernel refuses even to root."""
    if not Path("/proc/1/mem").exists():
        pytest.skip("no /proc")
    status = main(["log", "/proc/self/mem"])
    assert status == 2
    assert capsys.readouterr().err.startswith("kvwatch log: /proc/self/mem cannot be read: ")


@pytest.mark.parametrize(
    "path",
    sorted([*CAPTURES.glob("*/*startup.log"), *LOGS.glob("*.log")]),
    ids=lambda path: path.name,
)
def test_every_real_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every log of a real engine is read: text and JSON, 0, or 1 where it says that a start failed."""
    failed = "too-large" in path.name or any(
        word in path.name for word in ("too-small", "no-room", "failure", "no-flash", "no-such")
    )
    assert main(["log", str(path)]) == int(failed)
    text = capsys.readouterr().out
    assert ("FAILED" in text) is failed
    assert main(["log", "--json", str(path)]) == int(failed)
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] in ("vllm", "llama.cpp")
    assert [("error" in start) for start in document["starts"]] == [failed] * len(document["starts"])


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys that scripts rely on."""
    path = tmp_path / "server.log"
    path.write_text(v1_log("0.28.0"))
    assert main(["log", "--json", str(path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["engine"], document["version"], document["lines"]) == ("vllm", "0.28.0", 13)
    (start,) = document["starts"]
    assert {
        "total_bytes",
        "share",
        "weights_bytes",
        "activation_bytes",
        "graphs_bytes",
        "kv_bytes",
        "kv_tokens",
        "num_blocks",
        "max_model_len",
        "max_concurrency",
        "suggested_pin_bytes",
        "suggested_pin_full_bytes",
    } <= set(start)


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A dash reads standard input."""

    class Piped:
        buffer = io.BufferedReader(io.BytesIO(v1_log("0.28.0").encode()))  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "stdin", Piped())
    assert main(["log", "-"]) == 0
    assert "vLLM 0.28.0 with acme/chat-8b" in capsys.readouterr().out


def test_a_pipe() -> None:
    """The program itself, behind a pipe that closes late."""
    run = subprocess.run(
        [sys.executable, "-m", "kvwatch", "log", "--pin", "-"],
        input=v1_log("0.28.0"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, f"kv-cache-memory-bytes: {FACTS.pin}\n")


def test_pin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line alone on standard output, its reasons beside it; nothing to pin is a sentence and 3."""
    path = tmp_path / "server.log"
    path.write_text(v1_log("0.28.0"))
    assert main(["log", "--pin", str(path)]) == 0
    output = capsys.readouterr()
    assert output.out == f"kv-cache-memory-bytes: {FACTS.pin}\n"
    assert "kvwatch log: It is the suggestion that fits into the memory asked for" in output.err

    path.write_text(CASES["C24"].log)
    assert main(["log", "--pin", str(path)]) == 3
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        "kvwatch log: nothing to pin: the start failed: there is no pool of it to keep\n",
    )


def test_pin_of_one_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log of two servers has two pins."""
    path = tmp_path / "compose.log"
    path.write_text("a-1  | GPU KV cache size: 7 tokens\nb-1  | GPU KV cache size: 9 tokens\n")
    assert main(["log", "--pin", str(path)]) == 2
    assert capsys.readouterr().err == (
        "kvwatch log: 2 servers are in this log (a-1, b-1): give --pin the log of one\n"
    )


def test_two_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OLD and NEW beside each other, as text and as JSON."""
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    for path, text in zip((old, new), RACE, strict=True):
        path.write_text(text)
    assert main(["log", str(old), str(new)]) == 0
    text = capsys.readouterr().out
    text = " ".join(text.split())
    assert "KV cache 4.72 GiB 1.84 GiB -2.88 GiB" in text
    assert "another process most likely took card memory" in text
    assert main(["log", "--json", str(old), str(new)]) == 0
    document = json.loads(capsys.readouterr().out)
    moved = {row["name"]: row.get("change") for row in document["moved"]}
    assert moved["KV cache"] == round(1.84 * GIB) - round(4.72 * GIB)
    assert main(["log", "--pin", str(old), str(new)]) == 2
    assert capsys.readouterr().err == "kvwatch log: --pin takes one log\n"
    assert main(["log", "-", "-"]) == 2


def test_start_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two starts in one file: a line for the first, the second in full, and what moved."""
    path = tmp_path / "server.log"
    path.write_text("".join(RACE))
    assert main(["log", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Earlier starts in this log: 1" in text
    assert "Since the start before\n  The KV cache moved by -2.88 GiB, -61 %." in text


def test_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--model brings the cost model in; a path in the log that is here does so by itself."""
    path, model = tmp_path / "server.log", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA_8B))
    path.write_text(v1_log("0.28.0"))
    assert main(["log", str(path)]) == 0
    assert "Cost model" not in capsys.readouterr().out
    assert main(["log", "--model", str(model), str(path)]) == 0
    assert "This pool makes 74,704 tokens; the engine says 74,704: they agree." in capsys.readouterr().out
    assert main(["log", "--model", str(tmp_path / "none"), str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"kvwatch log: --model {tmp_path / 'none'}: ")

    path.write_text(v1_log("0.28.0").replace("acme/chat-8b", str(model)))
    assert main(["log", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["starts"][0]["cost_model"]["agrees"] is True


def test_text_of_a_log_is_shown_tame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's name in a log cannot write to the terminal as it likes."""
    path = tmp_path / "server.log"
    path.write_text(v1_log("0.28.0").replace("acme/chat-8b", "acme\u202e\u200bchat"))
    assert main(["log", str(path)]) == 0
    assert "\u202e" not in capsys.readouterr().out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Help says what is read, what it answers, and the exit statuses."""
    with pytest.raises(SystemExit):
        main(["log", "--help"])
    text = capsys.readouterr().out
    for words in ("journalctl --all", "kvwatch log --pin", "within 0.005 GiB", "exit status: 0 read, 1"):
        assert words in text
