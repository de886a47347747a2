"""The engines: each module beside this one defines one `ADAPTER` and nothing else knows its name.

A module with an underscore in its name is a part of others: of one engine's (ENGINE_part) or of all.
"""

from __future__ import annotations

import importlib
import pkgutil

from kvwatch.engines.adapter import Adapter
from kvwatch.readings import Page, Reason, SourceError


def _load() -> dict[str, Adapter]:
    adapters: dict[str, Adapter] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == "adapter" or "_" in module.name:
            continue
        adapter = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ADAPTER", None)
        if not isinstance(adapter, Adapter) or adapter.name in adapters:
            msg = f"kvwatch/engines/{module.name}.py must define one ADAPTER with a name of its own"
            raise ImportError(msg)
        adapters[adapter.name] = adapter
    return adapters


ADAPTERS = _load()

# /metrics may wake a sleeping llama-server (up to b10502), so pages that cannot are asked first.
_PROBE_ORDER = sorted(ADAPTERS.values(), key=lambda adapter: (adapter.first_path == "/metrics", adapter.name))


def detect(pages: dict[str, Page]) -> Adapter | str:
    """Return the adapter that recognises the pages, or the path to fetch next to find out.

    Raises SourceError with the reason of the last page when none of them is an engine's.
    """
    page: Page | None = None
    for adapter in _PROBE_ORDER:
        page = pages.get(adapter.first_path)
        if page is None:
            return adapter.first_path
        if page.reason in (Reason.UNREACHABLE, Reason.TIMEOUT):
            break
        if page.body is not None and adapter.recognises(page.body):
            return adapter
    if page is None or page.reason is None:
        raise SourceError(Reason.NO_ENGINE_SERIES, f"no known engine: tried {', '.join(sorted(ADAPTERS))}")
    raise SourceError(page.reason, page.detail)
