"""What a process is, from its command line and the title that it gave itself. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.flags import vllm
from kvwatch.readings import ProcessRole
from kvwatch.sources.launches import HINTS, engine_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# As comm shows them, cut to 15 characters: vllm/utils/system_utils.py, set_process_title, with the names of
# v1/engine/core.py and v1/executor/multiproc_executor.py (0.10.1 to 0.32); sglang/srt/managers/scheduler.py.
_ENGINE_NAMES = (
    "VLLM::EngineCor",
    "VLLM::DPEngineC",
    "VLLM::StageEngi",
    "VLLM::Worker",
    "sglang::schedul",
)
_TITLE = "VLLM::"
_ACTOR = "ray::"
# The prefix of a title is VLLM_PROCESS_NAME_PREFIX.
_ENGINE_TITLE = re.compile(r"\S+::(?:(?:DP|Stage)?EngineCore\w*|Worker(?:_[A-Z]+\d+)*)")
_FORKED = "multiprocessing"
_HEADLESS = "--headless"


def role_of(name: str, argv: Sequence[str]) -> ProcessRole | None:
    """Say what a process is; None where that cannot be told.

    `name` is its comm, `argv` its words, a single one where it gave itself a title. A child of Python's
    multiprocessing says nothing of what it does.
    """
    title = argv[0] if len(argv) == 1 else ""
    if name.startswith(_ENGINE_NAMES) or _ENGINE_TITLE.fullmatch(title):
        return ProcessRole.ENGINE
    if name.startswith(_TITLE):
        return ProcessRole.SERVER
    if name.startswith(_ACTOR):
        return ProcessRole.ACTOR
    if not argv:
        return None
    if any(hint.decode() in word for word in argv for hint in HINTS):
        engine = engine_of(argv)
        if engine is not None:
            headless = engine == vllm.ENGINE and _HEADLESS in argv
            return ProcessRole.LAUNCHER if headless else ProcessRole.SERVER
    return None if any(_FORKED in word for word in argv) else ProcessRole.OTHER
