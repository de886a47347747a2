"""Every fuzz target on its seeds and on spoilt copies of them; `make fuzz` goes on, guided by coverage."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.targets import targets

COPIES = 40
LONGEST_SECONDS = 10.0
BITS = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"-1",
    b"99999999999999999999",
    b"NaN",
    b"1e999",
    b"[" * 2000,
    b'"',
    b"\n",
    b"{}",
)


def spoilt(seed: bytes, dice: random.Random) -> bytes:
    """Return a copy with a few pieces cut, doubled, moved or replaced."""
    data = bytearray(seed)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice((1, 4, 40, 400)))
        data[at:end] = dice.choice((*BITS, bytes(data[at:end]) * 2, dice.randbytes(3)))
    return bytes(data)


@pytest.mark.parametrize("name", targets())
def test_no_input_breaks_a_reader(name: str) -> None:
    """Neither real input nor a spoilt copy raises, gives a number that is none, or takes long."""
    target, dice = targets()[name], random.Random(name)  # noqa: S311
    inputs = [*target.seeds[:8], b"", *(spoilt(dice.choice(target.seeds), dice) for _ in range(COPIES))]
    for data in inputs:
        began = time.process_time()
        target.run(data)
        assert time.process_time() - began < LONGEST_SECONDS
