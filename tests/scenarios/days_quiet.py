"""Days on which nothing changed, or too little was seen to say."""

from __future__ import annotations

from dataclasses import replace

from tests.scenarios.world import DAY, HOUR, MINUTE, Day, Life, ServerScript, Traffic, steps

LONG_AGO = -60 * DAY
STEADY = Life(start=LONG_AGO)

QUIET_DAYS = (
    Day(name="an-ordinary-day", servers=(ServerScript(lives=(STEADY,)),), cause="no_change", exit_code=0),
    Day(
        name="an-ordinary-week-of-little-traffic",
        servers=(ServerScript(lives=(STEADY,), traffic=lambda _: Traffic(rate=0.05)),),
        baseline="7d",
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="counters-begin-anew",
        servers=(
            ServerScript(
                lives=(STEADY, replace(STEADY, start=-7 * HOUR), replace(STEADY, start=-35 * MINUTE))
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="the-clock-is-set",
        servers=(ServerScript(lives=(STEADY,)),),
        clock_steps=((-1e9, -20 * MINUTE), (-3 * HOUR, 20 * MINUTE)),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="traffic-vanishes",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic()), (-6 * HOUR, Traffic(rate=1e-6))),
            ),
        ),
        cause="not_enough_data",
        exit_code=3,
    ),
    Day(
        name="a-handful-of-requests",
        servers=(ServerScript(lives=(STEADY,), traffic=lambda _: Traffic(rate=0.003)),),
        cause="not_enough_data",
        exit_code=3,
    ),
    Day(
        name="yesterday-was-not-watched",
        servers=(ServerScript(lives=(STEADY,)),),
        unwatched=((-2 * DAY, -6 * HOUR),),
        cause="not_enough_data",
        exit_code=3,
    ),
    Day(
        name="shorter-prompts-and-longer-answers-make-up-for-each-other",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps(
                    (LONG_AGO, Traffic(prompt=1600, answer=800)),
                    (-5 * HOUR, Traffic(prompt=1200, answer=1200)),
                ),
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="lengths-of-all-sizes",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=lambda _: Traffic(rate=0.12, prompt_spread=1.2, answer_spread=1.0),
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="a-third-of-the-traffic",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps((LONG_AGO, Traffic(rate=1.5)), (-5 * HOUR, Traffic(rate=0.5))),
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
    Day(
        name="prefix-sharing-falls",
        servers=(
            ServerScript(
                lives=(STEADY,),
                traffic=steps(
                    (LONG_AGO, Traffic(rate=1.2, hit_ratio=0.7)),
                    (-5 * HOUR, Traffic(rate=1.2, hit_ratio=0.1)),
                ),
            ),
        ),
        cause="no_change",
        exit_code=0,
    ),
)
