"""Requests of exact length that are under way, sent in a way that a proof decides."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from load import WATCH_TIMEOUT, Answer, ask, exchange, find_target

MOST_SECONDS = 300.0
GAP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Shape:
    """The tokens of one request: its prompt, and what it generates."""

    prompt: int
    generate: int

    def __str__(self) -> str:
        return f"{self.prompt} + {self.generate}"


@dataclass
class Crowd:
    """Requests to one engine; each has a random prompt, so that none shares a prefix with another."""

    port: int
    seed: int = 1
    model: str = ""
    """Under another name than the server's first."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More keys of each request."""
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(64))
    _sent: list[Future[Answer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        target = find_target(self.port)
        self._target = replace(target, model=self.model or target.model, extra=self.extra)
        self._random = random.Random(self.seed)  # noqa: S311 - no secret

    def send(self, count: int, shape: Shape, *, gap: float = GAP_SECONDS) -> None:
        """Send so many requests, one after another without waiting for an answer."""
        for _ in range(count):
            self.send_prompt(self._random.choices(range(256), k=shape.prompt), shape.generate)
            time.sleep(gap)

    def send_prompt(self, prompt: list[int], generate: int) -> None:
        """Send one request with a prompt of the caller's."""
        deadline = time.monotonic() + MOST_SECONDS
        self._sent.append(self._pool.submit(ask, self._target, prompt, generate, deadline))

    def send_slowly(self, count: int, shape: Shape) -> None:
        """Send so many requests, each when the prompt of the one before has been read."""
        for _ in range(count):
            read = self._prompt_tokens()
            self.send(1, shape, gap=0.0)
            deadline = time.monotonic() + MOST_SECONDS
            while self._prompt_tokens() < read + shape.prompt and time.monotonic() < deadline:
                time.sleep(GAP_SECONDS)

    def _prompt_tokens(self) -> float:
        """Return the engine's count of prompt tokens, which moves when a request's first token is out."""
        _, body = exchange(self.port, "GET", "/metrics", timeout=WATCH_TIMEOUT)
        found = re.search(rb"^vllm:prompt_tokens_total\{.*\} (\S+)$", body, re.MULTILINE)
        return float(found[1]) if found else 0.0

    @property
    def done(self) -> bool:
        """Tell whether all that was sent is answered."""
        return all(sent.done() for sent in self._sent)

    def outcomes(self) -> Counter[str]:
        """Wait for all answers and count them by HTTP status."""
        answers = Counter(sent.result().outcome for sent in self._sent)
        self._sent.clear()
        return answers
