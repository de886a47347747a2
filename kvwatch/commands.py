"""What each command does: it imports what it needs, so that help answers at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvwatch import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from kvwatch.app import Daemon
    from kvwatch.config import Config
    from kvwatch.wiring import Devices

FINE, PROBLEMS, USAGE = 0, 1, 2


def run(options: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT."""
    load = _loader(options)
    config = _load_or_complain(load)
    if config is None:
        return USAGE
    return _serve(config, load=load if options.config else None, devices=None)


def once(options: argparse.Namespace) -> int:
    """Poll once and print what is known."""
    from kvwatch.once_command import run_once  # noqa: PLC0415

    config = _load_or_complain(_loader(options))
    return USAGE if config is None else run_once(config, as_json=options.json)


def triage(options: argparse.Namespace) -> int:
    """Say what changed a server's capacity."""
    from kvwatch.triage.command import run_triage  # noqa: PLC0415

    return run_triage(options)


def demo(options: argparse.Namespace) -> int:
    """Run the daemon on the built-in fleet."""
    from kvwatch.demo.command import run_demo  # noqa: PLC0415

    return run_demo(options.listen, speed=options.speed, opening=options.opening)


def cost(options: argparse.Namespace) -> int:
    """Print what a model costs."""
    from kvwatch.cost_command import run_cost  # noqa: PLC0415

    return run_cost(options)


def check(options: argparse.Namespace) -> int:
    """Say whether the servers that files describe fit their cards."""
    from kvwatch.check_command import run_check  # noqa: PLC0415

    return run_check(options)


def plan(options: argparse.Namespace) -> int:
    """Say whether servers will fit their cards."""
    from kvwatch.plan_command import run_plan  # noqa: PLC0415

    return run_plan(options)


def log(options: argparse.Namespace) -> int:
    """Explain a start-up log."""
    from kvwatch.log_command import run_log  # noqa: PLC0415

    return run_log(options)


def dashboards(options: argparse.Namespace) -> int:
    """Write the dashboards and rules."""
    from kvwatch.dashboards_command import run_dashboards  # noqa: PLC0415

    return run_dashboards(options)


def completion(options: argparse.Namespace) -> int:
    """Print a shell's completion script."""
    from kvwatch.completion_command import run_completion  # noqa: PLC0415

    return run_completion(options.parser, options.shell)


def explain(options: argparse.Namespace) -> int:
    """Explain a topic."""
    from kvwatch.help_command import run_help  # noqa: PLC0415

    return run_help(options.parser, options.topic)


def top(options: argparse.Namespace) -> int:
    """Show a live view in the terminal."""
    from kvwatch.top_command import run_top  # noqa: PLC0415

    return run_top(options, lambda: _load_or_complain(_loader(options)))


def _serve(config: Config, *, load: Callable[[], Config] | None, devices: Devices | None) -> int:
    import asyncio  # noqa: PLC0415

    from kvwatch.allocator import keep_trimming  # noqa: PLC0415
    from kvwatch.app import Daemon  # noqa: PLC0415
    from kvwatch.config import ConfigError  # noqa: PLC0415
    from kvwatch.logs import set_up_logging  # noqa: PLC0415

    keep_trimming()
    set_up_logging(config.log.format, config.log.level)

    async def serve() -> None:
        daemon = Daemon(
            config, load=load, devices=devices, on_listen=lambda *bound: _announce(daemon, *bound)
        )
        await daemon.run()

    try:
        asyncio.run(serve())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"kvwatch: cannot listen on {config.listen}: {error.strerror or error}", file=sys.stderr)
        return PROBLEMS
    return FINE


def _announce(daemon: Daemon, host: str, port: int) -> None:
    from kvwatch.config import Listen  # noqa: PLC0415

    address = Listen(host=host, port=port)
    scheme = "https" if daemon.is_encrypted else "http"
    print(f"kvwatch {__version__} listens on {scheme}://{address}/", file=sys.stderr, flush=True)


def _loader(options: argparse.Namespace) -> Callable[[], Config]:
    """Return what reads the configuration: the file, then the options of the command line."""

    def load() -> Config:
        from kvwatch.config import Server, default_config, load_config  # noqa: PLC0415
        from kvwatch.engines import ADAPTERS  # noqa: PLC0415

        config = load_config(options.config, ADAPTERS) if options.config else default_config()
        updates: dict[str, object] = {} if options.discovery else {"discovery": False}
        if options.server:
            updates["servers"] = (*config.servers, *(Server(url=url) for url in options.server))
        if getattr(options, "listen", None):
            updates["listen"] = options.listen
        if getattr(options, "web_config_file", None):
            updates["web_config_file"] = options.web_config_file.absolute()
        if getattr(options, "interval", None):
            updates["interval_seconds"] = options.interval
        if getattr(options, "history", None):
            updates["history"] = options.history(config.history)
        if getattr(options, "log_format", None):
            updates["log"] = config.log.model_copy(update={"format": options.log_format})
        return config.model_copy(update=updates)

    return load


def _load_or_complain(load: Callable[[], Config]) -> Config | None:
    from kvwatch.config import ConfigError  # noqa: PLC0415

    try:
        return load()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return None
