"""A command as it was given to the operating system, secrets left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.flags.secrets import without_secret_variables, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = ("VLLM_", "LLAMA_ARG_")
_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES"})


def is_wanted(variable: str) -> bool:
    """Say whether an environment variable is one that the engines' settings come from."""
    return variable in _VARIABLES or variable.startswith(_PREFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command; what may be a secret is replaced or left out as soon as it is made.

    Attributes:
        argv: the tokens, program first.
        environ: of the environment only what `is_wanted` names.
        cwd: where relative paths start; None where unknown.

    """

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        wanted = {name: value for name, value in self.environ.items() if is_wanted(name)}
        object.__setattr__(self, "argv", without_secrets(self.argv))
        object.__setattr__(self, "environ", without_secret_variables(wanted))
