"""Days on which a token became dearer or cheaper: engine, model, cache dtype."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios.world import DAY, GIB, HOUR, Day, Life, ServerScript, Traffic, dense, windowed

LONG_AGO = -60 * DAY
STEADY = Life(start=LONG_AGO)
# vLLM 0.18.1 deals layers of 10 and 14 to two groups of 14 where there were three of 10
# (v1/core/kv_cache_utils.py: 1.25 became 1.5), so that a full block takes 14 pages for its 10 layers.
HYBRID = Life(
    start=LONG_AGO,
    model=windowed(full=10, window=14),
    name="hybrid-4b",
    version="0.16.0",
    max_model_len=65_536,
)

TOKEN_DAYS = (
    Day(
        name="engine-upgrade-makes-tokens-dearer",
        servers=(
            ServerScript(
                lives=(HYBRID, replace(HYBRID, start=-6 * HOUR, version="0.24.0")),
                traffic=lambda _: Traffic(prompt=9000),
            ),
        ),
        cause="token_dearer_engine",
        ratio=(0.7, 0.86),
    ),
    Day(
        name="same-pin-other-tokens-after-an-upgrade",
        servers=(
            ServerScript(
                lives=(
                    replace(HYBRID, pin_bytes=int(6.26 * GIB), pool_bytes=int(6.26 * GIB)),
                    replace(
                        HYBRID,
                        start=-6 * HOUR,
                        version="0.24.0",
                        pin_bytes=int(6.26 * GIB),
                        pool_bytes=int(6.26 * GIB),
                    ),
                ),
                traffic=lambda _: Traffic(prompt=1700, answer=300),
            ),
        ),
        cause="token_dearer_engine",
    ),
    Day(
        name="engine-upgrade-makes-tokens-cheaper",
        servers=(
            ServerScript(
                lives=(
                    replace(HYBRID, hybrid_manager=False),
                    replace(HYBRID, start=-6 * HOUR, version="0.17.0"),
                ),
                traffic=lambda _: Traffic(prompt=9000),
            ),
        ),
        cause="capacity_grew",
        ratio=(1.2, 3.0),
    ),
    Day(
        name="cache-dtype-from-fp8-to-auto",
        servers=(
            ServerScript(
                lives=(replace(STEADY, cache_dtype="fp8"), replace(STEADY, start=-6 * HOUR)),
            ),
        ),
        cause="token_dearer_cache_dtype",
        ratio=(0.46, 0.54),
    ),
    Day(
        name="model-revision-swapped",
        servers=(
            ServerScript(
                lives=(STEADY, replace(STEADY, start=-6 * HOUR, model=dense(num_key_value_heads=16))),
            ),
        ),
        cause="token_dearer_model",
        ratio=(0.46, 0.54),
    ),
)
