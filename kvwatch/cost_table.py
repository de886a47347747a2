"""The report of `kvwatch cost` as text that teaches: where each figure comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.byte_sizes import size
from kvwatch.table import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def render_cost(report: Mapping[str, Any], assumptions: list[str]) -> str:
    """Return the report as paragraphs."""
    paragraphs = list(_vllm(report) if report["engine"] == "vllm" else _llamacpp(report))
    if report["weights_bytes"] is not None:
        paragraphs.append(f"Weights, by the files: {size(report['weights_bytes'])} over all ranks.")
    if assumptions:
        lines = (f"  {text}" for text in assumptions)
        paragraphs.append("\n".join(["Assumed, since nothing said otherwise", *lines]))
    return "\n\n".join(paragraphs) + "\n"


def _vllm(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{report['architecture']} on vLLM, of each rank: {report['bytes_per_token']:,.0f} bytes for each"
        f" further token (windows full), {report['bytes_per_block']:,} bytes a block"
    )
    if not report["groups"]:
        yield "The model keeps no KV cache: it costs no pool."
        return
    groups: list[tuple[str, ...]] = [("KV GROUP", "LAYERS", "TOKENS A BLOCK", "BYTES A PAGE", "WINDOW")]
    groups += [
        (
            group["kind"],
            f"{group['layers']:,}",
            f"{group['block_size']:,}",
            f"{group['page_size_bytes']:,}",
            "" if group["window"] is None else f"{group['window']:,}",
        )
        for group in report["groups"]
    ]
    taught = "A request takes block ids of every group; a page is one layer's part of a block."
    yield "\n".join([taught, *columns(groups)])
    lengths: list[tuple[str, ...]] = [
        ("LENGTH", "A", "R", "BYTES HELD", "WITHOUT BLOCKS", "FIT EMPTY", "HELD", "CEILING")
    ]
    lengths += [_vllm_length(line) for line in report["lengths"]]
    taught = "Blocks a request needs to be admitted (A) and holds at most while it decodes (R)"
    yield "\n".join([taught, *columns(lengths)])
    least = report["minimum_pool_bytes"]
    yield (
        f"Smallest pool that starts: {size(least)} = {least:,} bytes,"
        f" {report['start_blocks']:,} blocks for one request of full length."
    )
    if report["num_blocks"] is None:
        yield "Give --pool SIZE to see how many requests fit."
        return
    yield (
        f"This pool: {report['num_blocks']:,} blocks, {report['usable_blocks']:,} of them usable"
        f" (one null block). The engine prints\n{report['kv_cache_size_tokens']:,} tokens and a maximum"
        f" concurrency of {report['max_concurrency']:.2f}x."
    )


def _vllm_length(line: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (line[key] for key in ("fit_empty", "resident_limit", "ceiling"))
    return (
        f"{line['length']:,}",
        f"{line['admission_blocks']:,}",
        f"{line['resident_blocks']:,}",
        size(line["bytes"]),
        size(line["logical_bytes"]),
        *("-" if count is None else f"{count:,}" for count in counts),
    )


def _llamacpp(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{report['architecture']} on llama-server: {report['bytes_per_token']:,.0f} bytes for each token of"
        f" context, {size(report['total_bytes'])} in all, allocated at start"
    )
    pool = "one pool that all share" if report["kv_unified"] else "a pool of its own for each"
    yield (
        f"{report['slots']} slots of at most {report['full_length_tokens']:,} tokens, {pool}:"
        f" {report['pool_tokens']:,} tokens"
    )
    caches: list[tuple[str, ...]] = [("CACHE", "KIND", "CELLS", "STREAMS", "LAYERS", "K", "V")]
    caches += [
        (
            cache["name"],
            cache["kind"],
            f"{cache['cells']:,}",
            f"{cache['streams']:,}",
            f"{cache['layers']:,}",
            size(cache["k_bytes"]),
            size(cache["v_bytes"]),
        )
        for cache in report["caches"]
    ]
    if report["caches"]:
        yield "\n".join(columns(caches))
    if report["recurrent_bytes"]:
        yield f"Recurrent states: {size(report['recurrent_bytes'])}, whatever the length."
    lengths = [("LENGTH", "FIT EMPTY")]
    lengths += [(f"{line['length']:,}", f"{line['fit_empty']:,}") for line in report["lengths"]]
    yield "\n".join(columns(lengths))
    if report["fit_may_change"]:
        changes = " and ".join(report["fit_may_change"])
        yield f"--fit is on: with little free memory the start may lower {changes}."
