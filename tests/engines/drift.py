"""Look for every name that the adapters know on the pages of live engines, and print what is missing.

    python -m tests.engines.drift 8100 8200     in the repository's root

The engine behind a port is found out as the daemon does, and only what its adapter asks for is fetched.
Exits with 1 when a name that a present release should have is missing, 2 when a page cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from kvwatch.engines import detect
from kvwatch.readings import Page, Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.engines.adapter import Adapter

HOST = "127.0.0.1"  # the only host there is
TIMEOUT_SECONDS = 30.0
# Known for older releases, or there only in some configurations or after a first event.
NOT_EXPECTED = {
    # The last is missing with several API servers.
    "vllm": {"vllm:gpu_cache_usage_perc", "vllm:num_requests_swapped", "process_start_time_seconds"},
    "llamacpp": {"llamacpp:n_past_max", "llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens"},
    "sglang": {"sglang:max_total_num_tokens_swa", "sglang:num_retracted_requests_total"},
}
# Labels of info series that are read by name.
LABELS = {
    "vllm": [
        "block_size",
        "cache_dtype",
        "enable_prefix_caching",
        "engine",
        "gpu_memory_utilization",
        "is_attention_free",
        "kv_cache_max_concurrency",
        "kv_cache_memory_bytes",
        "kv_cache_size_tokens",
        "kv_offloading_size",
        "mamba_block_size",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
        "num_gpu_blocks",
        "num_gpu_blocks_override",
        "sliding_window",
    ],
}
_STATUS = {401: Reason.UNAUTHORIZED, 404: Reason.NOT_FOUND, 501: Reason.NOT_ENABLED, 503: Reason.LOADING}


def fetch(port: int, path: str) -> Page:
    """Fetch one page."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=TIMEOUT_SECONDS) as answer:
            return Page(path=path, body=answer.read().decode(), status=answer.status)
    except urllib.error.HTTPError as error:
        return Page(
            path=path, body=None, reason=_STATUS.get(error.code, Reason.HTTP_ERROR), status=error.code
        )
    except OSError as error:
        return Page(path=path, body=None, reason=Reason.UNREACHABLE, detail=str(error))


def visit(port: int) -> tuple[Adapter, dict[str, Page]]:
    """Fetch what the engine's adapter asks for."""
    pages: dict[str, Page] = {}
    while isinstance(found := detect(pages), str):
        pages[found] = fetch(port, found)
    while (path := found.next_path(pages)) is not None:
        pages[path] = fetch(port, path)
    return found, pages


def drift(port: int) -> Iterator[str]:
    """Print what a port's engine says and yield the names that are missing from its pages."""
    adapter, pages = visit(port)
    reading = adapter.read(pages)
    text = pages["/metrics"].body or "" if "/metrics" in pages else ""
    known = set(importlib.import_module(f"kvwatch.engines.{adapter.name}").WANTED)
    shown = set(re.findall(r"^([a-zA-Z_:][\w:]*)", text, re.MULTILINE)) & known
    labels = {label: f'{label}="' in text for label in LABELS.get(adapter.name, ())}
    print(f"{port} {adapter.name} {reading.version or '?'}: pages {', '.join(pages)}")
    print(f"  {len(shown)} of {len(known)} known series, {sum(labels.values())} of {len(labels)} labels")
    not_expected = NOT_EXPECTED.get(adapter.name, set())
    for name in sorted(known - shown):
        print(f"  {'not there, as expected' if name in not_expected else 'MISSING'}: {name}")
    unknown = [
        field.name for field in dataclasses.fields(reading.ranks[0])
        if getattr(reading.ranks[0], field.name) in (None, {})
    ]  # fmt: skip
    print(f"  unknown of rank {reading.ranks[0].rank}: {', '.join(unknown) or 'nothing'}")
    yield from sorted(known - shown - not_expected)
    yield from (f"label {label}" for label, there in labels.items() if not there)
    yield from reading.missing


def main() -> int:
    """Check the engines behind the ports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ports", metavar="PORT", type=int, nargs="+")
    status = 0
    for port in parser.parse_args().ports:
        try:
            missing = list(drift(port))
        except SourceError as error:
            print(f"{port}: {error}")
            status = 2
            continue
        if missing:
            print(f"  {len(missing)} missing: {', '.join(missing)}")
            status = max(status, 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
