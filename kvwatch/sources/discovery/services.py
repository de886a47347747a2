"""What the command lines of this machine's processes announce: one service for each address. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from kvwatch.flags.llamacpp_options import PRESETS
from kvwatch.readings import Reason
from kvwatch.target import Hindrance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvwatch.flags.launch import Launch
    from kvwatch.sources.discovery.candidates import Candidate

_TLS = ("--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file", "LLAMA-ARG-SSL-CERT-FILE")
_MULTI_PORT = "--data-parallel-multi-port-external-lb"
_LOCAL_RANKS = ("--data-parallel-size-local", "-dpl")
_MAX_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One server that a command line announces.

    Attributes:
        rank: which of the ports of one command line; 0 almost always.
        members: the processes with that command line: a launcher, the server, copies that it forked.
        host: as stated; None where it is every address, or not known.
        port: None where the command line does not say.
        hindrance: why kvwatch cannot watch it without being told more.

    """

    main: Candidate
    rank: int = 0
    members: frozenset[int]
    host: str | None
    port: int | None
    prefix: str = ""
    hindrance: Hindrance | None = None
    shares_process: bool = False
    """Whether other services are started by the same process, which then stands for none of them."""

    @property
    def key(self) -> tuple[int, int, int]:
        """What identifies it as long as its process lives."""
        return self.main.pid, self.main.start_ticks, self.rank

    @property
    def stated_host(self) -> str:
        """The host that a URL of it would have; loopback for a wildcard."""
        if self.host in (None, "", "0.0.0.0", "localhost"):
            return "127.0.0.1"
        return "::1" if self.host == "::" else str(self.host)

    @property
    def is_name(self) -> bool:
        """Whether the stated host is a name, which only its socket turns into an address."""
        try:
            ip_address(self.stated_host)
        except ValueError:
            return True
        return False


def services_of(candidates: Mapping[int, Candidate]) -> tuple[Service, ...]:
    """Return the services of all candidates, the oldest first.

    A candidate below another with the same address is part of the same server: a copy that was forked and
    gave itself no title. So is the one below a launcher. One with another address is a server of its own, as
    the children of a llama-server router are (tools/server/server-models.cpp).
    """
    groups: dict[int, list[Candidate]] = {}
    heads: dict[int, int] = {}
    for candidate in sorted(candidates.values(), key=lambda one: len(_above(one, candidates))):
        above = next(iter(_above(candidate, candidates)), None)
        head = candidate.pid
        if above is not None and (above.is_launcher or _announced(above) == _announced(candidate)):
            head = heads[above.pid]
        heads[candidate.pid] = head
        groups.setdefault(head, []).append(candidate)
    found = [service for group in groups.values() for service in _services(group)]
    return tuple(sorted(found, key=lambda service: (service.main.start_ticks, service.key)))


def _above(candidate: Candidate, candidates: Mapping[int, Candidate]) -> list[Candidate]:
    return [candidates[pid] for pid in candidate.ancestors if pid in candidates]


def _announced(candidate: Candidate) -> tuple[object, ...]:
    launch = candidate.launch
    return candidate.engine, launch.host, launch.port, launch.socket_path


def _services(group: list[Candidate]) -> Iterator[Service]:
    """Yield what one server's processes announce: nothing where they only work for a server elsewhere."""
    main = next((member for member in group if not member.is_launcher), group[0])
    launch = main.launch
    if launch.headless or (main.readable and _is_router(launch)):
        return
    # Without its environment a llama-server's default may have been overruled; vLLM takes no port from there.
    known = main.readable or launch.engine == "vllm"
    host = launch.host if known or "host" in launch.stated else None
    port = launch.port if known or "port" in launch.stated else None
    ranks = _local_ranks(launch)
    for rank in range(ranks):
        yield Service(
            main=main,
            rank=rank,
            members=frozenset(member.pid for member in group),
            host=host or None,
            port=port + rank if port else None,
            prefix=launch.api_prefix or "",
            hindrance=_hindrance(launch, port),
            shares_process=ranks > 1,
        )


def _is_router(launch: Launch) -> bool:
    """Say whether it is a llama-server without a model, which only starts others (server.cpp, b11434)."""
    return (
        launch.engine == "llamacpp"
        and launch.model is None
        and "model" not in launch.stated
        and not any(words[0] in PRESETS for words in launch.unknown)
    )


def _local_ranks(launch: Launch) -> int:
    """Return how many ports a vLLM opens: with a supervisor one for each local rank (dp_supervisor.py)."""
    given = {words[0].partition("=")[0].replace("_", "-"): words for words in launch.unknown}
    if launch.engine != "vllm" or _MULTI_PORT not in given:
        return 1
    count = next((given[name][-1].rpartition("=")[2] for name in _LOCAL_RANKS if name in given), "")
    return int(count) if count.isdecimal() and 1 <= int(count) <= _MAX_RANKS else 1


def _hindrance(launch: Launch, port: int | None) -> Hindrance | None:
    """Say what keeps kvwatch from reading a server that it was not told about."""
    names = {words[0].partition("=")[0].replace("_", "-") for words in launch.unknown}
    if launch.socket_path:
        detail = f"listens on the Unix socket {launch.socket_path}; kvwatch reads servers over TCP only"
    elif "--grpc" in names:
        detail = "speaks gRPC only; there is no page to read"
    elif names.intersection(_TLS):
        detail = f"speaks HTTPS: configure it, url https://HOST:{port or 'PORT'} with its ca_file"
    else:
        return None
    return Hindrance(reason=Reason.NOT_SUPPORTED, detail=detail)
