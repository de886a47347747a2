"""Days on which the clients changed: longer requests, more of them, or neither memory nor length."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios.world import (
    DAY,
    GIB,
    HOUR,
    MINUTE,
    Day,
    Life,
    ServerScript,
    Traffic,
    dense,
    steps,
    windowed,
)

LONG_AGO = -60 * DAY
STEADY = Life(start=LONG_AGO)
PROMPTS_DOUBLE = steps((LONG_AGO, Traffic()), (-5 * HOUR, Traffic(prompt=3200)))


def _drift(at: float) -> Traffic:
    """Prompts that double within a week."""
    return Traffic(prompt=1600 * (1 + min(1.0, max(0.0, (at + 7 * DAY) / (7 * DAY)))))


CANARY = (
    ServerScript(
        lives=(STEADY,),
        traffic=steps((LONG_AGO, Traffic(rate=0.6)), (-3 * HOUR, Traffic(rate=0.3))),
    ),
    ServerScript(
        name="canary",
        device=1,
        lives=(Life(start=-3 * HOUR, model=dense(num_key_value_heads=16), name="chat-9b"),),
        traffic=lambda _: Traffic(rate=0.3),
    ),
)
"""Half of the traffic goes to a server of another model."""

REQUEST_DAYS = (
    Day(
        name="prompts-double",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=PROMPTS_DOUBLE,
            ),
        ),
        cause="prompts_longer",
        ratio=(0.5, 0.62),
        factors={"prompt_length": (-0.7, -0.48), "pool": (0, 0), "cost_per_token": (0, 0)},
    ),
    Day(
        name="answers-grow",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic()), (-5 * HOUR, Traffic(answer=1500))),
            ),
        ),
        cause="answers_longer",
        ratio=(0.55, 0.75),
        factors={"generation_length": (-0.6, -0.3), "pool": (0, 0)},
    ),
    Day(
        name="prompts-double-on-a-hybrid",
        servers=(
            ServerScript(
                lives=(Life(start=LONG_AGO, model=windowed(full=6, window=28), name="hybrid-4b"),),
                traffic=steps((LONG_AGO, Traffic(prompt=4000)), (-5 * HOUR, Traffic(prompt=8000))),
            ),
        ),
        cause="prompts_longer",
        ratio=(0.5, 0.95),
    ),
    Day(
        name="prompts-double-where-bytes-are-unknown",
        servers=(
            ServerScript(
                lives=(replace(STEADY, model_known=False),),
                traffic=PROMPTS_DOUBLE,
            ),
        ),
        cause="prompts_longer",
        ratio=(0.5, 0.62),
    ),
    Day(
        name="prompts-drift-over-a-week",
        servers=(ServerScript(lives=(STEADY,), traffic=_drift),),
        baseline="7d",
        cause="prompts_longer",
        ratio=(0.5, 0.62),
    ),
    Day(
        name="prompts-double-and-kvwatch-was-down-half-the-time",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=PROMPTS_DOUBLE,
            ),
        ),
        unwatched=tuple((-at * HOUR + 30 * MINUTE, -at * HOUR + 60 * MINUTE) for at in range(1, 28)),
        cause="prompts_longer",
        ratio=(0.5, 0.62),
    ),
    Day(
        name="prompts-double-and-that-hour-was-not-watched-yesterday",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=PROMPTS_DOUBLE,
            ),
        ),
        unwatched=((-27 * HOUR, -23.5 * HOUR),),
        watched_closely=((-23.5 * HOUR, -21 * HOUR),),
        cause="prompts_longer",
        ratio=(0.5, 0.62),
    ),
    Day(
        name="prompts-double-on-two-ranks",
        servers=(
            ServerScript(
                lives=(replace(STEADY, ranks=2),),
                traffic=PROMPTS_DOUBLE,
            ),
        ),
        cause="prompts_longer",
        ratio=(0.5, 0.62),
    ),
    Day(
        name="the-incident",
        servers=(
            ServerScript(
                lives=(replace(STEADY, pool_bytes=int(9.1 * GIB), share=0.75),),
                # 30 users who hardly pause: as many requests as fit, and then requests of twice the length.
                traffic=steps(
                    (LONG_AGO, Traffic(rate=5, users=30, hit_ratio=0)),
                    (-9 * DAY, Traffic(rate=5, users=30, prompt=3900, hit_ratio=0)),
                ),
            ),
        ),
        baseline="30d",
        cause="prompts_longer",
        ratio=(0.42, 0.52),
        factors={"pool": (0, 0), "cost_per_token": (0, 0)},
    ),
    Day(
        name="prompts-double-half-an-hour-ago",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic()), (-30 * MINUTE, Traffic(prompt=3200))),
            ),
        ),
        cause="prompts_longer",
        ratio=(0.6, 0.85),
    ),
    Day(
        name="prompts-halve",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic(prompt=3200)), (-5 * HOUR, Traffic())),
            ),
        ),
        cause="capacity_grew",
        ratio=(1.6, 2.0),
    ),
    Day(
        name="prompts-and-answers-grow-alike",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps(
                    (LONG_AGO, Traffic(prompt=1000, answer=900)),
                    (-5 * HOUR, Traffic(prompt=1700, answer=1600)),
                ),
            ),
        ),
        cause="mixed",
        ratio=(0.5, 0.65),
    ),
    Day(
        name="the-engine-stands-still-for-more-than-an-hour",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic()), (-70 * MINUTE, Traffic(stalled=True, users=60))),
            ),
        ),
        cause="stalled_not_memory",
    ),
    Day(
        name="request-limit-lowered-and-the-pool-a-little-smaller",
        servers=(
            ServerScript(
                lives=(STEADY, Life(start=-6 * HOUR, request_limit=8, pool_bytes=int(11.5 * GIB))),
                traffic=lambda _: Traffic(rate=1.2, users=40),
            ),
        ),
        cause="request_limit",
    ),
    Day(
        name="traffic-triples",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic(rate=1.6)), (-5 * HOUR, Traffic(rate=4.8, users=70))),
            ),
        ),
        cause="more_traffic",
        ratio=(0.94, 1.06),
    ),
    Day(
        name="request-limit-lowered",
        servers=(
            ServerScript(
                lives=(STEADY, Life(start=-6 * HOUR, request_limit=8)),
                traffic=lambda _: Traffic(rate=1.2, users=40),
            ),
        ),
        cause="request_limit",
    ),
    Day(
        name="stall-with-a-free-pool",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic()), (-25 * MINUTE, Traffic(stalled=True, users=60))),
            ),
        ),
        cause="stalled_not_memory",
    ),
    Day(
        name="pool-and-prompts-60-to-40",
        servers=(
            ServerScript(
                lives=(
                    replace(STEADY, share=0.9),
                    Life(start=-6 * HOUR, share=0.84, pool_bytes=int(12 * GIB * 0.619)),
                ),
                traffic=steps((LONG_AGO, Traffic()), (-5 * HOUR, Traffic(prompt=2354))),
            ),
        ),
        cause="mixed",
        ratio=(0.4, 0.5),
        factors={"pool": (-0.49, -0.47), "prompt_length": (-0.42, -0.22)},
    ),
    Day(
        name="model-of-twice-the-heads-in-a-canary",
        servers=CANARY,
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="a-canary-has-no-yesterday",
        about="canary",
        servers=CANARY,
        cause="not_enough_data",
        exit_code=3,
    ),
)
