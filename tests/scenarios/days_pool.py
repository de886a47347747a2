"""Days on which the pool changed: by flags, by somebody else's memory, by sleep, by a rank that died."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios.world import (
    DAY,
    GIB,
    HOUR,
    MINUTE,
    START_SECONDS,
    Day,
    Life,
    ServerScript,
    Squatter,
    Traffic,
)

LONG_AGO = -60 * DAY
STEADY = Life(start=LONG_AGO, share=0.5)
EMBEDDING = Life(
    start=LONG_AGO,
    name="embedding-4b",
    pool_bytes=2 * GIB,
    share=0.2,
    weights_bytes=8 * GIB,
    max_model_len=4096,
)
_SHORT = Traffic(rate=2.0, prompt=300, answer=1, hit_ratio=0.0)


def _growing(start: float, seconds: float, size: float) -> Squatter:
    """Return a process that starts and grows to its size in so many seconds."""

    def held(at: float) -> int | None:
        if at < start:
            return None
        return int(size * min(1.0, (at - start + 15) / seconds))

    return Squatter(pid=77, name="python3", held=held)


POOL_DAYS = (
    Day(
        name="two-servers-start-at-once",
        servers=(
            ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, pool_bytes=int(4.7 * GIB)))),
            ServerScript(
                name="embedding",
                lives=(EMBEDDING, replace(EMBEDDING, start=-6 * HOUR + 15)),
                traffic=lambda _: _SHORT,
            ),
        ),
        cause="pool_smaller_startup_race",
        ratio=(0.36, 0.43),
        factors={"prompt_length": (-0.1, 0.1)},
    ),
    Day(
        name="a-neighbour-grew-while-it-started",
        servers=(ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, pool_bytes=int(6.0 * GIB)))),),
        squatters=(_growing(-6 * HOUR + 20, 120, 6.2 * GIB),),
        cause="pool_smaller_startup_race",
        ratio=(0.46, 0.54),
    ),
    Day(
        name="utilisation-lowered",
        servers=(
            ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, share=0.42, pool_bytes=6 * GIB))),
        ),
        cause="pool_smaller_config",
        ratio=(0.46, 0.54),
        evidence=(),
    ),
    Day(
        name="utilisation-lowered-where-bytes-are-unknown",
        servers=(
            ServerScript(
                lives=(
                    replace(STEADY, model_known=False),
                    replace(STEADY, start=-6 * HOUR, share=0.42, pool_bytes=6 * GIB, model_known=False),
                )
            ),
        ),
        cause="pool_smaller_config",
        ratio=(0.46, 0.54),
    ),
    Day(
        name="utilisation-lowered-twenty-minutes-ago",
        servers=(
            ServerScript(lives=(STEADY, replace(STEADY, start=-20 * MINUTE, share=0.42, pool_bytes=6 * GIB))),
        ),
        cause="pool_smaller_config",
        ratio=(0.46, 0.54),
    ),
    Day(
        name="two-servers-started-at-once-twenty-minutes-ago",
        servers=(
            ServerScript(lives=(STEADY, replace(STEADY, start=-20 * MINUTE, pool_bytes=int(4.7 * GIB)))),
            ServerScript(
                name="embedding",
                lives=(EMBEDDING, replace(EMBEDDING, start=-20 * MINUTE + 15)),
                traffic=lambda _: _SHORT,
            ),
        ),
        cause="pool_smaller_startup_race",
        ratio=(0.36, 0.43),
    ),
    Day(
        name="pin-out-of-step",
        servers=(
            ServerScript(
                lives=(
                    STEADY,
                    replace(STEADY, start=-6 * HOUR, pin_bytes=int(6.26 * GIB), pool_bytes=int(6.26 * GIB)),
                )
            ),
        ),
        cause="pool_smaller_config",
        ratio=(0.48, 0.56),
    ),
    Day(
        name="longest-request-raised",
        servers=(
            ServerScript(
                lives=(
                    STEADY,
                    replace(STEADY, start=-6 * HOUR, max_model_len=65_536, pool_bytes=int(9.1 * GIB)),
                )
            ),
        ),
        cause="pool_smaller_config",
        ratio=(0.72, 0.8),
    ),
    Day(
        name="one-rank-of-two-lost",
        servers=(ServerScript(lives=(replace(STEADY, ranks=2),), rank_gone=(("1", -4 * HOUR),)),),
        cause="rank_lost",
        ratio=(0.46, 0.54),
    ),
    Day(
        name="smaller-after-sleep",
        servers=(
            ServerScript(
                lives=(replace(STEADY, start=-3 * DAY),),
                asleep=((-7 * HOUR, -6 * HOUR, 7 * GIB),),
            ),
        ),
        cause="pool_smaller_sleep_wake",
        ratio=(0.54, 0.63),
    ),
    Day(
        name="smaller-after-a-restart-and-nothing-else-was-seen",
        servers=(ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, pool_bytes=8 * GIB))),),
        cause="pool_smaller_unexplained",
        ratio=(0.62, 0.72),
        at_most="medium",
    ),
    Day(
        name="smaller-after-a-restart-that-nobody-watched",
        servers=(ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, pool_bytes=8 * GIB))),),
        unwatched=((-8 * HOUR, -4 * HOUR),),
        cause="pool_smaller_unexplained",
        ratio=(0.62, 0.72),
        at_most="medium",
    ),
    Day(
        name="utilisation-raised",
        servers=(
            ServerScript(lives=(STEADY, replace(STEADY, start=-6 * HOUR, share=0.6, pool_bytes=20 * GIB))),
        ),
        cause="capacity_grew",
        ratio=(1.55, 1.8),
    ),
    Day(
        name="a-race-that-a-second-restart-mended",
        servers=(
            ServerScript(
                lives=(
                    STEADY,
                    replace(STEADY, start=-9 * HOUR, pool_bytes=5 * GIB),
                    replace(STEADY, start=-3 * HOUR),
                )
            ),
            ServerScript(
                name="embedding",
                lives=(EMBEDDING, replace(EMBEDDING, start=-9 * HOUR + 15)),
                traffic=lambda _: _SHORT,
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="a-neighbour-appears",
        servers=(ServerScript(lives=(STEADY,)),),
        squatters=(_growing(-5 * HOUR, 60, 20 * GIB),),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="a-slow-start-beside-steady-neighbours",
        servers=(
            ServerScript(
                lives=(
                    STEADY,
                    replace(STEADY, start=-6 * HOUR, pool_bytes=8 * GIB, ready_after=4 * START_SECONDS),
                )
            ),
            ServerScript(name="embedding", lives=(EMBEDDING,), traffic=lambda _: _SHORT),
        ),
        cause="pool_smaller_unexplained",
        at_most="medium",
    ),
)
