"""Passwords of basic auth: bcrypt in a thread, one at a time, and what it said, kept under a secret key."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import bcrypt

from kvwatch.sources.threads import BlockingCalls

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT = 128
"""Outcomes that are remembered, right and wrong ones apart: a flood of wrong ones pushes out no right one."""
_MOST_WAITING = 16
_MOST_WAITING_OF_ONE_PEER = 4
_BCRYPT_BYTES = 72
"""What bcrypt looks at: hashes of longer passwords were made of their first 72 bytes."""
_DEADLINE_SECONDS = 60.0


class TooManyChecksError(Exception):
    """So many passwords wait for bcrypt that one more would only wait too."""


class Passwords:
    """Check passwords. An unknown user costs what a known one does, so that time tells nobody who is one.

    Args:
        users: user name to bcrypt hash; may be replaced.

    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self.users = users
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: dict[bytes, asyncio.Task[bool]] = {}
        self._waiting_of: Counter[str] = Counter()
        self._one_at_a_time = asyncio.Lock()
        self._blocking = BlockingCalls("kvwatch-bcrypt")

    async def admits(self, authorization: str, *, peer: str) -> bool:
        """Tell whether an Authorization header names a user and the right password.

        Raises TooManyChecksError where `peer`, an address, or all together have asked too much.
        """
        user, password = _credentials(authorization)
        if user is None:
            return False
        known = self.users.get(user)
        expected = known or _hash_of_nothing(self._cost(self._digest(user.encode())))
        key = self._digest(user.encode(), password, expected)
        if key in self._right:
            self._right.move_to_end(key)
            return True
        if key in self._wrong:
            self._wrong.move_to_end(key)
            return False
        return await self._checked(key, password, expected, peer, is_known=known is not None)

    async def _checked(
        self, key: bytes, password: bytes, expected: bytes, peer: str, *, is_known: bool
    ) -> bool:
        """Wait for bcrypt; those who ask the same thing wait for one check."""
        task = self._waiting.get(key)
        if task is None:
            if len(self._waiting) >= _MOST_WAITING or self._waiting_of[peer] >= _MOST_WAITING_OF_ONE_PEER:
                raise TooManyChecksError
            task = asyncio.create_task(self._check(key, password, expected, is_known=is_known))
            self._waiting[key] = task
            self._waiting_of[peer] += 1
            task.add_done_callback(lambda _: self._forget(key, peer))
        # A client that goes away ends its own wait only.
        return await asyncio.shield(task)

    def _forget(self, key: bytes, peer: str) -> None:
        self._waiting.pop(key, None)
        self._waiting_of[peer] -= 1
        if self._waiting_of[peer] <= 0:
            del self._waiting_of[peer]

    async def _check(self, key: bytes, password: bytes, expected: bytes, *, is_known: bool) -> bool:
        async with self._one_at_a_time:
            matches = await self._blocking.run(
                lambda: bcrypt.checkpw(password[:_BCRYPT_BYTES], expected), deadline_seconds=_DEADLINE_SECONDS
            )
        is_right = matches and is_known
        kept = self._right if is_right else self._wrong
        kept[key] = None
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return is_right

    def _digest(self, *parts: bytes) -> bytes:
        """Return what stands for a password in memory; nobody can compute it, nor tell its parts apart."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def _cost(self, digest: bytes) -> int:
        """Return the cost for an unknown user: that of one of the known ones, always the same one."""
        costs = sorted(int(hashed[4:6]) for hashed in self.users.values())
        return costs[digest[0] % len(costs)] if costs else 10


def _hash_of_nothing(cost: int) -> bytes:
    """Return a hash that takes as long to check as any of this cost; whether it matches is never asked."""
    return b"$2b$%02d$" % cost + b"." * 53


def _credentials(authorization: str) -> tuple[str | None, bytes]:
    """Return user and password of a Basic header (RFC 7617); None for what is none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode("utf-8") if colon else None), password
    except (binascii.Error, UnicodeError, ValueError):
        return None, b""
