"""`kvwatch log FILE`, `kvwatch log OLD NEW`: what a start-up log says of memory."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kvwatch.readings import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from kvwatch.startup_log.difference import Difference
    from kvwatch.startup_log.facts import Log, Start
    from kvwatch.startup_log.opinion import Opinion

READ, PROBLEMS, USAGE, NOT_RECOGNISED = 0, 1, 2, 3

_COMPRESSED = {
    b"\x1f\x8b": "zcat",
    b"\x28\xb5": "zstdcat",
    b"\xfd7": "xzcat",
    b"BZ": "bzcat",
}

NOTES = """\
It reads what vLLM (0.2.7 to 0.32, V0 too) and llama-server (2023 to b11434) print while they start, as it
stands in a file, in journald, in the output of docker, compose and kubectl, coloured or not, several
processes, servers and starts in one file. For each server the last start is explained in full:

  where the card's memory went       weights, activation, CUDA graphs, KV cache, as a bar
  what the pool holds                tokens, blocks, requests of full length
  which of vLLM's two pins to take   the one that fits the memory asked for, and what a pin freezes
  why it failed                      with the numbers, and the largest length that would have fitted
  what the cost model says           where the model's files are at hand, or --model names them
  what moved                         since the start before, or between two logs (OLD NEW)

Printed GiB have two decimals, so bytes are within 0.005 GiB of what was measured. What the log does not say
is absent, and the text says how to have it printed.

examples:
  kvwatch log vllm.log
  docker logs chat 2>&1 | kvwatch log -
  journalctl --all -u vllm-chat | kvwatch log -        (--all: journald hides coloured lines otherwise)
  kubectl logs --previous chat-0 | kvwatch log --json -
  kvwatch log --pin vllm.log >> vllm.yaml
  kvwatch log yesterday.log today.log

exit status: 0 read, 1 a start in it failed or ran out of memory later, 2 the file cannot be read,
3 no start of an engine is in it, or there is nothing to pin
"""


class LogError(Exception):
    """What keeps a log from being read, in a sentence; `status` is the exit status."""

    def __init__(self, text: str, status: int = USAGE) -> None:
        super().__init__(text)
        self.status = status


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `kvwatch log`, and what it teaches."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = NOTES
    command.add_argument("log", metavar="FILE", help="a start-up log; - reads standard input")
    command.add_argument(
        "new", metavar="NEW", nargs="?", help="a later log: FILE is the earlier one, compare them"
    )
    command.add_argument(
        "--json", action="store_true", help="print everything as JSON; what is not said is absent"
    )
    command.add_argument(
        "--pin", action="store_true", help="print only the line that pins this pool in the configuration file"
    )
    command.add_argument(
        "--model",
        metavar="MODEL",
        help="config.json, model folder or GGUF, where the path in the log is not here",
    )


def run_log(options: argparse.Namespace) -> int:
    """Print what a log, or two, say; return the exit status."""
    try:
        if options.new is not None:
            return _compare(options)
        log = _read(options.log)
        return _pin(log) if options.pin else _explain(options, log)
    except LogError as error:
        print(f"kvwatch log: {error}", file=sys.stderr)
        return error.status


def _explain(options: argparse.Namespace, log: Log) -> int:
    opinions = [
        _opinion(start, options.model, latest=at == len(log.starts) - 1)
        for at, start in enumerate(log.starts)
    ]
    if options.json:
        from kvwatch.startup_log.document import log_document  # noqa: PLC0415

        print(json.dumps(log_document(options.log, log, opinions), indent=2, ensure_ascii=False))
    else:
        from kvwatch.startup_log.report import render_log  # noqa: PLC0415

        print(render_log(log, opinions, _changes(log)), end="")
    return _status(log.starts)


def _changes(log: Log) -> list[Difference | None]:
    """Return what moved since the start of the same server before each."""
    from kvwatch.startup_log.difference import compare  # noqa: PLC0415

    before: dict[str, Start] = {}
    changes: list[Difference | None] = []
    for start in log.starts:
        earlier = before.get(start.source)
        changes.append(None if earlier is None else compare(earlier, start))
        before[start.source] = start
    return changes


def _compare(options: argparse.Namespace) -> int:
    from kvwatch.startup_log.difference import compare  # noqa: PLC0415

    if options.pin:
        raise LogError("--pin takes one log")
    if options.log == options.new == "-":
        raise LogError("only one of the two logs can come from standard input")
    logs = _read(options.log), _read(options.new)
    old, new = logs[0].starts[-1], logs[1].starts[-1]
    difference = compare(old, new)
    if options.json:
        from kvwatch.startup_log.document import difference_document  # noqa: PLC0415

        document = difference_document(options.log, options.new, difference)
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        from kvwatch.startup_log.report import render_difference  # noqa: PLC0415

        print(render_difference(old, new, difference, (options.log, options.new)), end="")
    return _status([new])


def _pin(log: Log) -> int:
    from kvwatch.startup_log.pins import advise  # noqa: PLC0415

    sources = {start.source for start in log.starts}
    if len(sources) > 1:
        names = ", ".join(sorted(source or "(no name)" for source in sources)[:8])
        raise LogError(f"{len(sources)} servers are in this log ({names}): give --pin the log of one")
    pin = advise(log.starts[-1])
    if pin.line is None:
        raise LogError(f"nothing to pin: {pin.refusal}", NOT_RECOGNISED)
    print(pin.line)
    for remark in pin.remarks:
        print(f"kvwatch log: {remark}", file=sys.stderr)
    return READ


def _status(starts: Sequence[Start]) -> int:
    failed = any(start.failure is not None or start.later_failure is not None for start in starts)
    return PROBLEMS if failed else READ


def _opinion(start: Start, named: str | None, *, latest: bool) -> Opinion | str | None:
    """Return the cost model's view of a start, or why it has none; None where no model is named or found.

    A file that --model names is an answer to the last start; a path in the log to its own.
    """
    from kvwatch.sources.model_path import find_model  # noqa: PLC0415

    name = named if named is not None and latest else start.model
    if name is None or start.engine not in ("vllm", "llama.cpp"):
        return None
    try:
        model = find_model(name)
    except (SourceError, OSError, ValueError) as error:
        if named is not None and latest:
            raise LogError(f"--model {name}: {error}") from error
        return None
    from kvwatch.startup_log.opinion import NoOpinionError, judge_llamacpp, judge_vllm  # noqa: PLC0415

    try:
        if start.engine == "llama.cpp":
            return "that is no GGUF file" if model.gguf is None else judge_llamacpp(start, model.gguf)
        return (
            "vLLM's cost is known from a config.json"
            if model.config is None
            else judge_vllm(start, model.config)
        )
    except NoOpinionError as error:
        return str(error)


def _read(name: str) -> Log:
    """Read a log; raise LogError with a sentence that names the file and the way out."""
    from kvwatch.startup_log.reading import read_log  # noqa: PLC0415

    try:
        with _opened(name) as stream:
            start = stream.peek(4)[:4] if hasattr(stream, "peek") else b""
            if not start:
                raise LogError(
                    f"{name} is empty: engines write to standard error too, so redirect with > FILE 2>&1",
                    NOT_RECOGNISED,
                )
            tool = _COMPRESSED.get(bytes(start[:2]))
            if tool is not None:
                raise LogError(f"{name} is compressed: {tool} {name} | kvwatch log -")
            log = read_log(stream)
    except OSError as error:
        raise LogError(_why(name, error)) from error
    if not log.starts:
        hidden = (
            f"; journalctl hid {log.blobs:,} coloured lines as blobs: run it with --all" if log.blobs else ""
        )
        raise LogError(
            f"{name}: no start of vLLM or llama-server is in its {log.lines:,} lines{hidden}. Give the log"
            f" from the server's first line on",
            NOT_RECOGNISED,
        )
    return log


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb")


def _why(name: str, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return f"{name} is a folder: name the log file in it"
    if isinstance(error, FileNotFoundError):
        return f"{name} is not there: name a log file, or - for standard input"
    if isinstance(error, PermissionError):
        return f"{name} may not be read by this user: sudo cat {name} | kvwatch log -"
    return f"{name} cannot be read: {error.strerror or error}"
