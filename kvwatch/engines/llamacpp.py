"""llama-server of llama.cpp, b9279 and newer: /props, then /metrics, and /slots only while it has work.

Fields were read in tools/server/server-context.cpp and server-task.cpp of b9093 to b11434. A request to
/slots wakes a sleeping server and resets an idle one's timer in every build, and /metrics does up to
b10502; /props does neither.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvwatch.engines.adapter import Adapter, required_body
from kvwatch.engines.exposition_text import Samples, read_samples
from kvwatch.readings import EngineReading, RankReading, Reason, Slot, SlotPool, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import Page

PROPS, METRICS, SLOTS = "/props", "/metrics", "/slots"

PROCESSING = "llamacpp:requests_processing"
DEFERRED = "llamacpp:requests_deferred"
LONGEST = "llamacpp:n_tokens_max"
GENERATED = "llamacpp:tokens_predicted_total"
PROMPT = "llamacpp:prompt_tokens_total"
PROMPT_CACHED = "llamacpp:prompt_tokens_cached_total"
EXPECTED = (PROCESSING, DEFERRED, LONGEST, GENERATED, PROMPT)
WANTED = (*EXPECTED, PROMPT_CACHED)  # the last came between b10405 and b10435


def recognises(body: str) -> bool:
    """Tell whether a /props page is a llama-server's."""
    return '"default_generation_settings"' in body


def next_path(pages: Mapping[str, Page]) -> str | None:
    """Go on to /metrics only when the server is awake, to /slots only when it works anyway."""
    if PROPS not in pages:
        return PROPS
    if pages[PROPS].body is None:
        return None
    props = _json(pages[PROPS])
    if not isinstance(props, dict) or props.get("is_sleeping") is True or props.get("role") == "router":
        return None
    if METRICS not in pages:
        return METRICS
    if SLOTS in pages or pages[METRICS].body is None or props.get("endpoint_slots") is False:
        return None
    try:
        samples = read_samples(pages[METRICS].body or "", wanted=(PROCESSING, DEFERRED))
        at_work = (samples.count(PROCESSING) or 0) + (samples.count(DEFERRED) or 0)
    except SourceError:
        return None  # `read` says why
    return SLOTS if at_work else None


def read(pages: Mapping[str, Page]) -> EngineReading:
    """Read a llama-server's pages; raises SourceError when they do not make a reading."""
    required_body(pages, PROPS)
    props = _json(pages[PROPS])
    if not isinstance(props, dict):
        raise SourceError(Reason.PARSE_ERROR, f"{PROPS} is no JSON object")
    if props.get("role") == "router":
        raise SourceError(Reason.NOT_SUPPORTED, "a router: watch the servers that it starts instead")
    defaults = props.get("default_generation_settings")
    limit = _whole(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
    total = _whole(props.get("total_slots"))
    if limit is None or total is None or limit < 1 or total < 1:
        raise SourceError(Reason.PARSE_ERROR, f"{PROPS} does not state total_slots and n_ctx")
    sleeping = props.get("is_sleeping")
    pool = SlotPool(total_slots=total, slot_limit_tokens=limit, busy_slots=None)
    rank = RankReading(rank="0", slots=pool)
    missing: tuple[str, ...] = ()
    if sleeping is not True:
        samples = read_samples(
            required_body(pages, METRICS), wanted=WANTED, spellings={"llamacpp_": "llamacpp:"}
        )
        if samples.count(PROCESSING) is None:
            raise SourceError(Reason.NO_ENGINE_SERIES, f"no {PROCESSING} on {METRICS}")
        rank = _rank(samples, pool, pages.get(SLOTS))
        missing = tuple(name for name in EXPECTED if not samples.of(name))
    model_path = props.get("model_path")
    return EngineReading(
        engine="llamacpp",
        ranks=(rank,),
        model=next((name for key in ("model_alias", "model_path") if (name := _text(props.get(key)))), None),
        version=_text(props.get("build_info")),
        full_length_tokens=rank.slots.slot_limit_tokens if rank.slots else limit,
        sleeping=sleeping if isinstance(sleeping, bool) else None,
        settings=(("model_path", str(model_path)), ("n_ctx", str(limit)), ("total_slots", str(total))),
        missing=missing,
    )


def _rank(samples: Samples, pool: SlotPool, slots_page: Page | None) -> RankReading:
    processing, deferred = samples.count(PROCESSING), samples.count(DEFERRED)
    slots = _slots(slots_page)
    prompt, cached = samples.value(PROMPT), samples.value(PROMPT_CACHED)
    return RankReading(
        rank="0",
        running=processing,
        waiting={} if deferred is None else {"deferred": deferred},
        generation_tokens_total=samples.value(GENERATED),
        # prompt_tokens_total leaves the reused tokens out (server-task.cpp, b11434).
        prefix_cache_queries_total=None if prompt is None or cached is None else prompt + cached,
        prefix_cache_hits_total=cached,
        slots=SlotPool(
            total_slots=pool.total_slots,
            # /slots is fresh where /props keeps the value from before a sleep.
            slot_limit_tokens=slots[0].limit_tokens if slots else pool.slot_limit_tokens,
            busy_slots=sum(slot.busy for slot in slots) if slots else processing,
            slots=slots,
            longest_tokens=samples.count(LONGEST),
        ),
    )


def _slots(page: Page | None) -> tuple[Slot, ...] | None:
    """Read /slots; None when it was not asked or is switched off."""
    if page is None or page.body is None:
        return None
    document = _json(page)
    if not isinstance(document, list) or not document:
        raise SourceError(Reason.PARSE_ERROR, f"{SLOTS} is no JSON array of slots")
    return tuple(_slot(entry) for entry in document)


def _slot(entry: Any) -> Slot:
    limit = _whole(entry.get("n_ctx")) if isinstance(entry, dict) else None
    if limit is None or not isinstance(entry.get("is_processing"), bool):
        raise SourceError(Reason.PARSE_ERROR, f"a slot of {SLOTS} lacks n_ctx or is_processing")
    # One object up to 2025, an array of one object since (b9093).
    token = entry.get("next_token")
    if isinstance(token, list):
        token = token[0] if token else None
    remaining = _whole(token.get("n_remain")) if isinstance(token, dict) else None
    return Slot(
        limit_tokens=limit,
        busy=entry["is_processing"],
        resident_tokens=_whole(entry.get("n_prompt_tokens")),
        remaining_tokens=remaining,
    )


def _whole(value: object) -> int | None:
    """Read a count as llama-server keeps it, in 64 bits; -1 is its word for unlimited."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if isinstance(value, int) and whole else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(page: Page) -> Any:
    try:
        return json.loads(page.body or "")
    except (ValueError, RecursionError) as error:
        raise SourceError(Reason.PARSE_ERROR, f"{page.path}: {error}") from error


ADAPTER = Adapter(name="llamacpp", first_path=PROPS, recognises=recognises, next_path=next_path, read=read)
