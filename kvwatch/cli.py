"""The command line: its options and what they teach. `commands.py` says what each command does."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from typing import TYPE_CHECKING

from kvwatch import __version__
from kvwatch.commands import (
    FINE,
    PROBLEMS,
    check,
    completion,
    cost,
    dashboards,
    demo,
    explain,
    log,
    once,
    plan,
    run,
    top,
    triage,
)
from kvwatch.options import (
    add_config_options,
    add_demo_options,
    add_listen_option,
    add_web_config_option,
    duration,
    history,
    size,
    span,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_AGE = re.compile(r"-\d[\d.]*\s*(?:s|m|min|h|d|w)(?:\s+ago)?", re.ASCII)
_MOMENT_OPTIONS = ("--from", "--to", "--baseline")

_ABOUT = """\
kvwatch says how many full-length requests your LLM inference servers can take now.

It polls NVML for the memory of each process, reads the pages of vLLM and llama.cpp, and exports
Prometheus gauges such as kvwatch_full_length_requests_fit_now. What is unknown is absent, never zero.
"""

_EXAMPLES = """\
examples:
  kvwatch demo                                    try it: a built-in fleet, no GPU and no engine needed
  kvwatch once                                    one look at every vLLM and llama-server of this machine
  kvwatch once --server http://10.0.0.7:8000      one look at a server elsewhere, beside them
  kvwatch triage --server chat                    capacity fell: which factor moved, and what to do
  kvwatch cost MODEL --pool 12GiB                 what a token, a block, a request of a model takes
  kvwatch log vllm.log                            where a start's memory went, and the pin to set
  kvwatch check docker-compose.yml                do these servers fit their cards together
  kvwatch plan --help                             will it fit: card, model, length, requests
  kvwatch help KvwatchNoRoom                      what an alert, a metric, a page says
  kvwatch top --url http://10.0.0.5:9836          a live view of a daemon; without --url, of this machine
  kvwatch run                                     the daemon; metrics on http://127.0.0.1:9836/metrics

exit status: 0 fine, 1 problems found, 2 usage or configuration error, 3 cannot tell
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    options = parser.parse_args(_with_ages(sys.argv[1:] if arguments is None else arguments))
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        status = command(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + 2
    except BrokenPipeError:
        # The reader has gone, as in `kvwatch once | head`; leave nothing for Python to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"kvwatch: cannot write the output: {error.strerror}", file=sys.stderr)
        return PROBLEMS
    return status


def _with_ages(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with an age such as `--to -2h` as one word: argparse takes it for an option."""
    joined: list[str] = []
    for word in arguments:
        if _AGE.fullmatch(word) and joined and joined[-1] in _MOMENT_OPTIONS:
            word = f"{joined.pop()}={word}"  # noqa: PLW2901
        joined.append(word)
    return joined


def _parser() -> argparse.ArgumentParser:
    from kvwatch.check_command import add_arguments as add_check_arguments  # noqa: PLC0415
    from kvwatch.completion_command import add_arguments as add_completion_arguments  # noqa: PLC0415
    from kvwatch.cost_command import add_arguments  # noqa: PLC0415
    from kvwatch.dashboards_command import add_arguments as add_dashboards_arguments  # noqa: PLC0415
    from kvwatch.help_command import add_arguments as add_help_arguments  # noqa: PLC0415
    from kvwatch.log_command import add_arguments as add_log_arguments  # noqa: PLC0415
    from kvwatch.plan_command import add_arguments as add_plan_arguments  # noqa: PLC0415
    from kvwatch.top_command import add_arguments as add_top_arguments  # noqa: PLC0415
    from kvwatch.triage.options import add_arguments as add_triage_arguments  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="kvwatch",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"kvwatch {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = _add_command(commands, "run", run, "run the daemon")
    add_config_options(command)
    add_listen_option(command)
    command.add_argument(
        "--history",
        type=history,
        metavar="FILE",
        help="keep the history there; off: keep none (default: the usual place, 30 days)",
    )
    add_web_config_option(command)
    command.add_argument("--interval", type=duration, metavar="TIME", help="time between polls (default 5s)")
    command.add_argument(
        "--log.format",
        dest="log_format",
        choices=("logfmt", "json"),
        help="style of the log (default logfmt)",
    )

    command = _add_command(commands, "once", once, "poll once and print what is known")
    add_config_options(command)
    command.add_argument("--json", action="store_true", help="print everything as JSON; null is unknown")

    command = _add_command(commands, "top", top, "show a live view in the terminal: servers, cards, findings")
    add_config_options(command)
    add_top_arguments(command)

    command = _add_command(
        commands, "cost", cost, "say what a model costs: bytes per token, requests per pool"
    )
    add_arguments(command, size)

    command = _add_command(
        commands,
        "log",
        log,
        "explain a start-up log: where the memory went, the pin to set, why it failed",
    )
    add_log_arguments(command)

    command = _add_command(
        commands,
        "check",
        check,
        "check a card's configuration as a set: compose, Kubernetes, units, scripts, before anything starts",
    )
    add_check_arguments(command)

    command = _add_command(
        commands,
        "plan",
        plan,
        "say whether servers will fit their cards, with which pin, and what each lever buys",
    )
    add_plan_arguments(command)

    command = _add_command(
        commands, "triage", triage, "say why capacity changed: which factor moved, and the likely cause"
    )
    add_triage_arguments(command, span)

    command = _add_command(
        commands,
        "dashboards",
        dashboards,
        "write Grafana dashboards, Prometheus rules and alerts into a folder",
    )
    add_dashboards_arguments(command)

    command = _add_command(
        commands, "demo", demo, "run the daemon on a built-in fleet: no GPU, no engine needed"
    )
    add_demo_options(command)

    command = _add_command(commands, "help", explain, "explain a command, a metric, an alert, or show a page")
    add_help_arguments(command)

    command = _add_command(
        commands, "completion", completion, "print what a shell needs to complete commands"
    )
    add_completion_arguments(command)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=_COMMAND_NOTES.get(name, "")
    )
    command.set_defaults(command=function)
    return command


_COMMAND_NOTES = {
    "run": "With no arguments it finds every vLLM and llama-server of this machine, and goes on looking: by "
    "the command lines of processes, and from GPU processes to a port that answers. Servers of a file and of "
    "--server are watched beside them, each once. As root, or with CAP_SYS_PTRACE, in the host's PID and "
    "network namespaces it sees them all. SIGHUP loads the configuration again; a bad file keeps the old "
    "one. SIGUSR1 lets the driver go, for a GPU reset or a driver upgrade; SIGUSR2 takes it up again. "
    "SIGTERM ends the daemon.",
    "once": "With no arguments it looks for every vLLM and llama-server of this machine. Exit status: 0 all "
    "was readable, 1 something was not, 2 configuration error, 3 nothing was.",
    "top": "Press ? for the keys. Exit status: 0 ended by a key, 2 configuration error or no terminal.",
    "cost": "Exit status: 0, or 1 where the model or an option is not known: then there is no number at all.",
    "dashboards": "They belong to this version. Files that you changed are left and named. Exit status: 0, "
    "or 1 where a file was left or could not be written.",
    "demo": "A scripted day in fast motion: load, preemption, longer prompts, a start-up race.",
}
