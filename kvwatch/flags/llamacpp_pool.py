"""Work out a llama-server's slots, whether they share one pool, and its cells, each only where it is certain.

Follows `llama_server` (tools/server/server.cpp) and the `llama_context` constructor (src/llama-context.cpp)
of b11434; the rounding is the same since b9093.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwatch.flags.llamacpp_options import AUTO_SLOTS

if TYPE_CHECKING:
    from kvwatch.flags.options import Statements

_CELL_STEP = 256


def settle_pool(statements: Statements, applied: dict[str, Any], *, modern: bool) -> None:
    """State what follows from `-np`, `-kvu`, `-c` and `--kv-unified-per-slot`; add defaults to `applied`."""
    stated = statements.values
    if "parallel" in stated:
        _settle_slots(statements, applied, stated["parallel"], stated)
    elif "parallel" in applied and "parallel" not in statements.doubtful:
        _settle_slots(statements, applied, applied["parallel"], applied)
    elif stated.get("kv_unified") is False:
        # Taken back where slots turn out to be automatic.
        statements.doubt(("kv_unified",), "-np: not given, and its default is not known")
    cells = _cells(statements, applied, modern=modern)
    if cells is not None:
        statements.put("pool_tokens", cells)


def _settle_slots(
    statements: Statements, applied: dict[str, Any], parallel: int | None, source: dict[str, Any]
) -> None:
    """State slots and sharing as surely as the number they follow from: it is in `source`."""
    if parallel is None or parallel == 0:
        return
    if parallel > 0:
        source["request_limit"] = parallel
        applied["kv_unified"] = False
        return
    # Automatic slots share one pool even where `--no-kv-unified` was given.
    source["request_limit"] = AUTO_SLOTS
    statements.values.pop("kv_unified", None)
    statements.doubtful.discard("kv_unified")
    source["kv_unified"] = True


def _cells(statements: Statements, applied: dict[str, Any], *, modern: bool) -> int | None:
    """Return the pool's cells; None where `--fit`, the model or an unknown build decides them."""
    known = {name: value for name, value in applied.items() if name not in statements.doubtful}
    known |= statements.values
    slots, unified = known.get("request_limit"), known.get("kv_unified")
    if slots is None and "parallel" not in statements.doubtful | statements.values.keys():
        # An unknown build has one slot (until 2025) or several that share one pool: one stream either way.
        slots = unified = 1
    if slots is None or unified is None:
        return None
    size = known.get("ctx_size")
    if "ctx_size" not in statements.doubtful | statements.values.keys() and modern:
        size = slots * (known.get("kv_unified_per_slot") or 0)
    if size is None or size <= 0:
        return None
    streams = 1 if unified else slots
    cells: int = _padded(_padded(size) // streams) * streams
    return cells if modern or cells == size else None


def _padded(cells: int) -> int:
    return -(-cells // _CELL_STEP) * _CELL_STEP
