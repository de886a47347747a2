"""A server of a snapshot's document: what it can take, and why not more. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.top.fields import fields, number, ratio, rows, text, whole, word, words
from kvwatch.top.views import Fits, Group, Kind, Pool, Server, Typical
from kvwatch.top.why import no_fits, no_usage, page_lacks, source_why

if TYPE_CHECKING:
    from collections.abc import Mapping

SEVERITIES = ("critical", "warning", "info")
NONE = len(SEVERITIES)
_ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
_BOUNDS = {
    "queue": "requests wait for capacity",
    "slots": "request slots taken",
    "memory": "no room in the pool",
}


def server_of(
    row: Mapping[str, Any], document: Mapping[str, Any], worst: Mapping[str, int], labels: Mapping[str, str]
) -> Server:
    """Return one server; `worst` is the severity of each server's worst finding, `labels` names cards."""
    target, reading = fields(row.get("target")), fields(row.get("reading"))
    name = text(target.get("name"))
    raw_name = str(target.get("name"))
    suspected = {
        str(one.get("rank")): whole(one.get("requests"))
        for one in rows(document.get("recompute_suspected"))
        if one.get("server") == target.get("name")
    }
    pools = tuple(_pool(rank, row, suspected) for rank in rows(row.get("ranks")))
    fits_why = no_fits(document, row, raw_name)
    kind = _kind(reading, pools)
    engine = word(reading.get("engine")) or word(target.get("engine"))
    page_why = page_lacks(row)
    return Server(
        name=name,
        url=text(target.get("url")),
        kind=kind,
        why=_why(kind, pools, fits_why),
        fits_why=fits_why,
        page_why=page_why,
        model_why=source_why(document, "model", raw_name) or page_why,
        engine=None if engine is None else _ENGINES.get(engine, engine),
        version=word(reading.get("version")),
        model=word(reading.get("model")),
        full_length_tokens=whole(row.get("full_length_tokens")),
        pools=pools,
        groups=tuple(_group(group) for group in rows(row.get("groups"))),
        model_error_ratio=number(row.get("model_error_ratio")),
        cache_dtype=word(row.get("cache_dtype")) or word(reading.get("cache_dtype")),
        share_ratio=number(row.get("share_ratio")),
        pin_bytes=whole(row.get("pin_bytes")),
        fingerprint=word(row.get("fingerprint")),
        started_at=number(row.get("started_at")),
        config_changed_at=number(row.get("config_changed_at")),
        held=tuple(
            (labels.get(uuid, text(uuid)), whole(held))
            for uuid, held in fields(row.get("device_bytes")).items()
        ),
        missing=words(reading.get("missing")),
        severity=worst.get(name, NONE),
    )


def _kind(reading: Mapping[str, Any], pools: tuple[Pool, ...]) -> Kind:
    if not reading:
        return Kind.SILENT
    if reading.get("sleeping") is True:
        return Kind.ASLEEP
    fits = [pool.fits.guaranteed for pool in pools]
    if not fits or any(fit is None for fit in fits):
        return Kind.UNKNOWN
    return Kind.OPEN if any(fits) else Kind.FULL


def _why(kind: Kind, pools: tuple[Pool, ...], fits_why: str) -> str:
    if kind is Kind.FULL:
        bounds = dict.fromkeys(pool.fits.bound_by for pool in pools if pool.fits.bound_by)
        return ", ".join(_BOUNDS.get(bound, bound) for bound in bounds)
    if kind is Kind.SILENT:
        return fits_why
    if kind is Kind.ASLEEP:
        return "nothing fits until it wakes"
    return fits_why if kind is Kind.UNKNOWN else ""


def _pool(rank: Mapping[str, Any], server: Mapping[str, Any], suspected: Mapping[str, int | None]) -> Pool:
    reading, load = fields(rank.get("reading")), fields(rank.get("load"))
    slots = fields(reading.get("slots"))
    waiting = {text(why): whole(count) for why, count in fields(reading.get("waiting")).items()}
    return Pool(
        rank=text(reading.get("rank")),
        usage_ratio=ratio(rank.get("usage_ratio")),
        usage_why=no_usage(server, rank),
        fits=_fits(fields(rank.get("full"))),
        running=whole(load.get("running")),
        waiting=whole(load.get("waiting")),
        waiting_for=tuple((why, count) for why, count in waiting.items() if count),
        request_limit=whole(load.get("request_limit")),
        preemptions=whole(reading.get("preemptions_total")),
        suspected=suspected.get(str(reading.get("rank"))),
        usable_blocks=whole(rank.get("usable_blocks")),
        free_blocks=whole(rank.get("free_blocks")),
        block_size=whole(reading.get("block_size")),
        resident_blocks=whole(rank.get("resident_blocks")),
        capacity_tokens=number(rank.get("capacity_tokens")),
        free_tokens=number(rank.get("free_tokens")),
        capacity_bytes=whole(rank.get("capacity_bytes")),
        bytes_per_token=number(rank.get("bytes_per_token")),
        ceiling=whole(rank.get("ceiling")),
        worst_case_ratio=number(rank.get("worst_case_ratio")),
        engine_concurrency=number(reading.get("max_concurrency")),
        engine_tokens=whole(reading.get("kv_size_tokens")),
        start_blocks=whole(rank.get("start_blocks")),
        num_blocks=whole(reading.get("num_blocks")),
        typical=_typical(fields(rank.get("typical"))),
        slots=(whole(slots.get("busy_slots")), whole(slots.get("total_slots"))) if slots else None,
        lower_bounds=rank.get("basis") == "admission",
    )


def _fits(row: Mapping[str, Any]) -> Fits:
    return Fits(
        guaranteed=whole(row.get("guaranteed")),
        now=whole(row.get("now")),
        empty=whole(row.get("empty")),
        resident_limit=whole(row.get("resident_limit")),
        headroom=whole(row.get("headroom")),
        bound_by=word(row.get("bound_by")),
    )


def _typical(row: Mapping[str, Any]) -> Typical | None:
    length = fields(row.get("length"))
    if not length:
        return None
    fit = fields(row.get("fit"))
    return Typical(
        prompt_tokens=number(length.get("prompt_tokens")),
        generation_tokens=number(length.get("generation_tokens")),
        requests=number(length.get("requests")),
        fits=_fits(fit) if fit else None,
    )


def _group(row: Mapping[str, Any]) -> Group:
    return Group(
        kind=text(row.get("kind")),
        layers=whole(row.get("layers")),
        block_size=whole(row.get("block_size")),
        page_bytes=whole(row.get("page_bytes")),
        window=whole(row.get("window")),
    )
