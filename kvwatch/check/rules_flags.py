"""Rules about options that the engine's own parser refuses."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from kvwatch.check.flag_releases import APPEARED, NEWEST, OLDEST, VANISHED, absent_since
from kvwatch.check.rule import Hit
from kvwatch.check.verdict import Severity
from kvwatch.flags import llamacpp_names, llamacpp_options, vllm_names, vllm_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.check.declaration import DeclaredServer
    from kvwatch.check.evidence import Evidence

_VLLM = (
    vllm_names.BOOLEANS
    | vllm_names.FLAGS
    | vllm_names.SINGLES
    | vllm_names.MANIES
    | vllm_names.OPTIONALS
    | vllm_names.FORMER_BOOLEANS
    | vllm_names.FORMER_SINGLES
    | vllm_names.FORMER_MANIES
    | vllm_options.BY_NAME.keys()
)
_LLAMACPP = (
    llamacpp_names.FLAGS
    | llamacpp_names.SINGLES
    | llamacpp_names.PAIRS
    | llamacpp_options.BY_NAME.keys()
    | llamacpp_options.PRESETS
)
_SPELLINGS = {
    field: [name for option in vllm_options.OPTIONS if option.field == field for name in option.names]
    for field in {option.field for option in vllm_options.OPTIONS}
}
_LLAMACPP_BUILD = 11434
"""The build whose own list of options the table is."""
_PER_SLOT = ("--kv-unified-per-slot", 10622, 10666)
"""Absent in the first build read, there in the second."""


def flag_unknown(evidence: Evidence) -> Iterator[Hit]:
    """Find options that no release read has."""
    for server in evidence.declaration.servers:
        launch = server.launch
        known = {"vllm": _VLLM, "llamacpp": _LLAMACPP}.get(launch.engine)
        if known is None:
            continue
        for tokens in launch.unknown:
            name = _name(tokens[0], launch.engine)
            if name is None or _has(known, name, launch.engine):
                continue
            yield _unknown(server, name, known)


def _unknown(server: DeclaredServer, name: str, known: frozenset[str]) -> Hit:
    vllm = server.launch.engine == "vllm"
    version = server.version
    if vllm:
        certain = version is not None and version >= OLDEST and version[:2] <= NEWEST
        read = "vLLM 0.8.5 to 0.32"
    else:
        certain = version == (_LLAMACPP_BUILD,)
        read = f"llama-server b{_LLAMACPP_BUILD}"
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    meant = f" Did you mean {near[0]}?" if near else ""
    refusal = "the server does not start" if certain else "where it is not there, the server does not start"
    return Hit(
        message=f"{server.name}: {name} is no option of {read}: {refusal}.{meant}",
        place=server.where(name),
        severity=Severity.ERROR if certain else Severity.WARNING,
        servers=(server.name,),
    )


def flag_not_in_release(evidence: Evidence) -> Iterator[Hit]:
    """Find options that came after the release that is started, or were gone before it."""
    for server in evidence.declaration.servers:
        launch, version = server.launch, server.version
        if version is None:
            continue
        if launch.engine == "llamacpp" and launch.kv_unified_per_slot and version[0] <= _PER_SLOT[1]:
            yield _not_there(
                server, _PER_SLOT[0], f"b{version[0]}", f"b{_PER_SLOT[2]} has it", "kv_unified_per_slot"
            )
        if launch.engine != "vllm":
            continue
        for name, field in _given(server):
            proof = absent_since(name, version)
            if proof is None:
                continue
            release, later = proof
            when = f"{_dotted(release)} {'has it' if later else 'was the last read with it'}"
            yield _not_there(server, name, f"vLLM {_dotted(version)}", when, field)


def _not_there(server: DeclaredServer, name: str, release: str, when: str, field: str) -> Hit:
    return Hit(
        message=(
            f"{server.name}: {name} is no option of {release} ({when}): the server does not start. Drop it,"
            f" or change the release."
        ),
        place=server.where(field, name),
        servers=(server.name,),
    )


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _given(server: DeclaredServer) -> Iterator[tuple[str, str]]:
    """Yield the options that a vLLM server was given, as far as they are known by name, with their fields."""
    for field in sorted(server.launch.stated & _SPELLINGS.keys()):
        spellings = _SPELLINGS[field]
        # Which of its spellings was used is not kept: one that is in every release clears them all.
        if all(name in APPEARED or name in VANISHED for name in spellings):
            yield spellings[0], field
    for tokens in server.launch.unknown:
        name_given = _name(tokens[0], "vllm")
        if name_given is not None:
            yield name_given, name_given


def _name(word: str, engine: str) -> str | None:
    """Return an option's name as the parser sees it; None where it is a variable or a value."""
    if not word.startswith("-"):
        return None
    if engine == "llamacpp":
        return word.replace("_", "-") if word.startswith("--") else word
    name = word.partition("=")[0].partition(".")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _has(known: frozenset[str], name: str, engine: str) -> bool:
    if name in known:
        return True
    if engine != "vllm":
        return False
    positive = f"--{name.removeprefix('--no-')}"
    if name.startswith("--no-") and positive in known:
        return True
    if name.startswith("-O"):
        return True
    # A beginning stands for the option (argparse).
    return name.startswith("--") and any(one.startswith((name, positive)) for one in known)
