"""llama-server of llama.cpp: /props, then /metrics, and /slots only while it has work.

Fields were read in examples/server/server.cpp and tools/server/server.cpp of 2024-08 to 2025-08, and in
tools/server/server-context.cpp and server-task.cpp of b9093 to b11434. Builds are told apart by what is on
their pages: `build_info` may be "b0-unknown".

A request to /slots wakes a sleeping server and resets an idle one's timer in every build, and /metrics does
up to b10502; /props does neither. A router loads a model when a page of that model is asked for, so it is
asked for nothing but its list of models.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvwatch.engines.adapter import Adapter, required_body
from kvwatch.engines.exposition_text import Samples, read_samples
from kvwatch.readings import EngineReading, RankReading, Reason, Slot, SlotPool, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import Page

PROPS, METRICS, SLOTS, MODELS = "/props", "/metrics", "/slots", "/models"

PROCESSING = "llamacpp:requests_processing"
DEFERRED = "llamacpp:requests_deferred"
GENERATED = "llamacpp:tokens_predicted_total"
PROMPT = "llamacpp:prompt_tokens_total"
LONGEST = "llamacpp:n_tokens_max"
LONGEST_BEFORE = "llamacpp:n_past_max"  # its name at first, from 2025-08 on
PROMPT_CACHED = "llamacpp:prompt_tokens_cached_total"  # came between b10405 and b10435
RESIDENT_RATIO = "llamacpp:kv_cache_usage_ratio"  # these two went in May 2025
RESIDENT = "llamacpp:kv_cache_tokens"
IN_EVERY_BUILD = (PROCESSING, DEFERRED, GENERATED, PROMPT)
# Not prompt_tokens_seconds and predicted_tokens_seconds: any scrape, also another's, restarts their window.
WANTED = (*IN_EVERY_BUILD, LONGEST, LONGEST_BEFORE, PROMPT_CACHED)
SPELLINGS = {"llamacpp_": "llamacpp:"}
_MOST_SLOTS = 4_096  # far more than any server starts with


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
    if not isinstance(props, dict) or props.get("is_sleeping") is True:
        return None
    if props.get("role") == "router":
        return None if MODELS in pages else MODELS
    if METRICS not in pages:
        return METRICS
    if SLOTS in pages or pages[METRICS].body is None or props.get("endpoint_slots") is False:
        return None
    # A build that does not say how many slots it has does not say whether it sleeps either: it cannot.
    if "total_slots" not in props and "is_sleeping" not in props:
        return SLOTS
    try:
        samples = read_samples(pages[METRICS].body or "", wanted=(PROCESSING, DEFERRED), spellings=SPELLINGS)
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
        raise SourceError(Reason.NOT_SUPPORTED, _where_the_models_are(pages.get(MODELS)))
    entries = _slot_entries(pages.get(SLOTS))
    defaults = props.get("default_generation_settings")
    limit = _whole(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
    total = _whole(props.get("total_slots", len(entries) if entries else None))
    if limit is None or total is None or limit < 1 or total < 1:
        raise SourceError(Reason.PARSE_ERROR, f"{PROPS} does not state total_slots and n_ctx")
    sleeping = props.get("is_sleeping")
    pool = SlotPool(total_slots=total, slot_limit_tokens=limit, busy_slots=None)
    rank = RankReading(rank="0", slots=pool)
    missing: tuple[str, ...] = ()
    if sleeping is not True:
        body = required_body(pages, METRICS)
        samples = read_samples(body, wanted=WANTED, spellings=SPELLINGS)
        if samples.count(PROCESSING) is None:
            raise SourceError(Reason.NO_ENGINE_SERIES, f"no {PROCESSING} on {METRICS}")
        old = _old_gauges(body)
        rank = _rank(samples, pool, entries, old)
        missing = (
            *_missing(props, samples, entries),
            *(name for name, value in old.items() if value is None),
        )
    model_path = props.get("model_path")
    return EngineReading(
        engine="llamacpp",
        ranks=(rank,),
        model=next((name for key in ("model_alias", "model_path") if (name := _text(props.get(key)))), None),
        model_path=_text(props.get("model_path")),
        version=_text(props.get("build_info")),
        release=_release(props),
        full_length_tokens=rank.slots.slot_limit_tokens if rank.slots else limit,
        sleeping=sleeping if isinstance(sleeping, bool) else None,
        settings=(("model_path", str(model_path)), ("n_ctx", str(limit)), ("total_slots", str(total))),
        missing=missing,
    )


def _rank(
    samples: Samples, pool: SlotPool, entries: list[Any] | None, old: Mapping[str, float | None]
) -> RankReading:
    processing, deferred = samples.count(PROCESSING), samples.count(DEFERRED)
    prompt, cached = samples.value(PROMPT), samples.value(PROMPT_CACHED)
    longest = samples.count(LONGEST)
    ratio, resident = old.get(RESIDENT_RATIO), old.get(RESIDENT)
    slots = None if entries is None else tuple(_slot(entry, samples) for entry in entries)
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
            longest_tokens=samples.count(LONGEST_BEFORE) if longest is None else longest,
            # Cells are rounded up from -c, so a full pool may read slightly more than 1.
            resident_ratio=None if ratio is None else min(1.0, ratio),
            resident_tokens=None if resident is None else int(resident),
        ),
    )


def _old_gauges(body: str) -> dict[str, float | None]:
    """Return the gauges of the cache of builds up to May 2025, None where one has no value; else nothing.

    The ratio divides by -c, and by 0 where that was left out: it then reads nan or inf on a good page
    (server.cpp of 2024-08 and 2025-05).
    """
    names = (RESIDENT_RATIO, RESIDENT)
    if not any(name.removeprefix("llamacpp:") in body for name in names):
        return {}
    values: dict[str, float | None] = {}
    for name in names:
        try:
            value = read_samples(body, wanted=(name,), spellings=SPELLINGS).value(name)
        except SourceError:
            value = None
        values[name] = None if value is None or value < 0 else value
    return values


def _slot_entries(page: Page | None) -> list[Any] | None:
    """Return what /slots lists; None when it was not asked or is switched off."""
    if page is None or page.body is None:
        return None
    document = _json(page)
    if not isinstance(document, list) or not document:
        raise SourceError(Reason.PARSE_ERROR, f"{SLOTS} is no JSON array of slots")
    if len(document) > _MOST_SLOTS:
        raise SourceError(Reason.TOO_LARGE, f"{SLOTS} lists more than {_MOST_SLOTS} slots")
    return document


def _slot(entry: Any, samples: Samples) -> Slot:
    limit = _whole(entry.get("n_ctx")) if isinstance(entry, dict) else None
    busy = _is_busy(entry) if isinstance(entry, dict) else None
    if limit is None or busy is None:
        raise SourceError(Reason.PARSE_ERROR, f"a slot of {SLOTS} lacks n_ctx or is_processing")
    token = _next_token(entry)
    # Until its first token is decoded, nobody says how much of a prompt is still to come. And builds before
    # the counter of reused tokens leave the last request's n_remain and n_decoded standing (up to b10405).
    current = bool(_whole(token.get("n_decoded"))) and bool(samples.of(PROMPT_CACHED))
    return Slot(
        limit_tokens=limit,
        busy=busy,
        resident_tokens=_whole(entry.get("n_prompt_tokens")),
        remaining_tokens=_whole(token.get("n_remain")) if current else None,
    )


def _is_busy(entry: Mapping[str, Any]) -> bool | None:
    busy = entry.get("is_processing")
    if busy is None:  # an enum instead, 0 for idle, in 2024
        state = _whole(entry.get("state"))
        return None if state is None else state != 0
    return busy if isinstance(busy, bool) else None


def _next_token(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one object: as it is up to 2025, out of an array of one since (b9093)."""
    token = entry.get("next_token")
    if isinstance(token, list):
        token = token[0] if token else None
    return token if isinstance(token, dict) else {}


def _missing(props: Mapping[str, Any], samples: Samples, entries: list[Any] | None) -> tuple[str, ...]:
    """Name what a build of this one's features has and this one has not."""
    missing = [name for name in IN_EVERY_BUILD if not samples.of(name)]
    # Sleeping came after the high-water mark, both under its first and its later name.
    if "is_sleeping" in props and not samples.of(LONGEST) and not samples.of(LONGEST_BEFORE):
        missing.append(LONGEST)
    if samples.of(PROMPT_CACHED):
        missing += [] if "is_sleeping" in props else [f"{PROPS} is_sleeping"]
        busy = [entry for entry in entries or () if _is_busy(entry)]
        if any(_whole(entry.get("n_prompt_tokens")) is None for entry in busy):
            missing.append(f"{SLOTS} n_prompt_tokens")
        missing += [
            f"{SLOTS} next_token.{field}"
            for field in ("n_decoded", "n_remain")
            if any(field not in _next_token(entry) for entry in busy)
        ]
    return tuple(missing)


def _where_the_models_are(page: Page | None) -> str:
    """Say which servers a router has started; each is one of its own, on another port after each load."""
    try:
        document = {} if page is None or page.body is None else _json(page)
    except SourceError:
        document = {}
    cards = document.get("data") if isinstance(document, dict) else None
    places = [place for card in cards if (place := _place(card))] if isinstance(cards, list) else None
    running = (
        "the list of its models could not be read"
        if places is None
        else ", ".join(places) or "none is loaded now"
    )
    return f"a router holds no model itself: watch the servers that it starts instead ({running})"


def _place(card: Any) -> str | None:
    """Return model and address of a running child, from the command line that /models states."""
    status = card.get("status") if isinstance(card, dict) else None
    if not isinstance(status, dict) or status.get("value") not in ("loaded", "sleeping"):
        return None
    arguments = status.get("args")
    words = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else []
    options = dict(pairwise(words))
    return f"{card.get('id')} at http://{options.get('--host', '?')}:{options.get('--port', '?')}"


def _whole(value: object) -> int | None:
    """Read a count as llama-server keeps it, in 64 bits; -1 is its word for unlimited."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    return value if isinstance(value, int) and whole else None


def _release(props: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the build number, else the oldest that the page proves: is_sleeping came with b9093."""
    build = re.match(r"b([1-9]\d*)", _text(props.get("build_info")) or "")
    if build is not None:
        return (int(build.group(1)),)
    return (9093,) if "is_sleeping" in props else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _json(page: Page) -> Any:
    try:
        return json.loads(page.body or "")
    except (ValueError, RecursionError) as error:
        raise SourceError(Reason.PARSE_ERROR, f"{page.path}: {error}") from error


ADAPTER = Adapter(name="llamacpp", first_path=PROPS, recognises=recognises, next_path=next_path, read=read)
