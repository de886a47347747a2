"""How far chance moves a mean length, told by the window's own minutes. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_FEWEST_STEPS = 8


def standard_error(steps: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return the standard error of total tokens / total requests; None where too few steps tell.

    `steps` are (requests, tokens) of the window's steps. Their scatter around the common mean is that of a
    ratio estimate (W. G. Cochran, Sampling Techniques, 6.4): it knows how unequal requests are, and that they
    come in waves, which a count of requests does not.
    """
    known = [(requests, tokens) for requests, tokens in steps if requests and tokens is not None]
    if len(known) < _FEWEST_STEPS:
        return None
    requests = math.fsum(count for count, _ in known)
    mean = math.fsum(tokens for _, tokens in known) / requests
    scatter = math.fsum((tokens - mean * count) ** 2 for count, tokens in known)
    return math.sqrt(scatter * len(known) / (len(known) - 1)) / requests
