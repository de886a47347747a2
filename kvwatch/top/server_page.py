"""All that is known of one server: pools, fits, the engine's figures beside ours, groups, reasons. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.byte_sizes import size
from kvwatch.top.bars import pool_bar
from kvwatch.top.cells import Line, Span, Style, line, pad
from kvwatch.top.lists import finding_lines, gaps_of
from kvwatch.top.paper import percent, short, whole
from kvwatch.top.server_table import state_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.top.paper import Paper
    from kvwatch.top.views import Fits, Pool, Server, View

_TERM = 26
_FIT_HEADS = ("GUARANTEED", "FITS NOW", "EMPTY", "HELD AT MOST", "HEADROOM")


def server_page(server: Server, view: View, paper: Paper) -> list[Line]:
    """Return all that is known of a server."""
    words, style = state_words(server)
    if not paper.current:
        words, style = f"was: {words}", Style.DIM
    lines = [Line(), line((paper.shown(server.name), Style.TITLE))]
    lines += paper.paragraph(words, style)
    lines += _identity(server, view, paper)
    lines += [Line(), *_pools(server, paper)] if server.pools else []
    lines += (
        [Line(), line(("FULL-LENGTH REQUESTS", Style.TITLE)), *_fits(server, paper)] if server.pools else []
    )
    lines += [Line(), *_typical(server, paper)] if server.pools else []
    lines += [Line(), *_comparison(server, paper)] if server.pools else []
    lines += [Line(), *_groups(server, paper)] if server.pools and not server.is_llama else []
    findings = [finding for finding in view.findings if finding.server == server.name]
    changes = [words for name, words in view.changes if name == server.name]
    gaps = [*gaps_of(view.gaps, server.name), *gaps_of(view.unjudged, server.name)]
    if findings or changes:
        lines += [Line(), line(("FINDINGS", Style.TITLE))]
        lines += [one for finding in findings for one in finding_lines(finding, view.taken_at, paper)]
        lines += [one for words in changes for one in paper.paragraph(words, indent="  ")]
    if gaps:
        lines += [Line(), line(("UNKNOWN", Style.TITLE))]
        lines += [one for gap in gaps for one in paper.paragraph(f"{gap.what}: {gap.why}", indent="  ")]
    return lines


def _identity(server: Server, view: View, paper: Paper) -> list[Line]:
    page, unsaid = server.page_why, "neither the page nor the process says"
    engine = f"{server.engine or 'engine unknown'} {server.version or 'version unknown'}"
    held = ", ".join(
        f"{card} {paper.explained(held, 'the driver says N/A', size)}" for card, held in server.held
    )
    rows = [
        ("engine", f"{paper.shown(engine)} at {paper.shown(server.url)}"),
        ("model", paper.explained(server.model, page, paper.shown)),
        ("full length", paper.explained(server.full_length_tokens, page, lambda value: f"{value:,} tokens")),
        ("memory on the cards", held or "unknown: no process of it was found on a card"),
        (
            "started",
            f"unknown: {unsaid}"
            if server.started_at is None
            else paper.ago(server.started_at, view.taken_at),
        ),
    ]
    if server.config_changed_at is not None:
        rows.append(("settings changed", paper.ago(server.config_changed_at, view.taken_at)))
    return _terms(rows, paper)


def _pools(server: Server, paper: Paper) -> list[Line]:
    lines: list[Line] = [line(("POOL", Style.TITLE))]
    for pool in server.pools:
        name = f"rank {paper.shown(pool.rank)}" if len(server.pools) > 1 else "used"
        bar = max(10, min(40, paper.cells - 20))
        figure = paper.figure(pool.usage_ratio, percent)
        lines.append(
            line(
                f"  {name} ",
                *pool_bar(pool.usage_ratio, bar, paper.glyphs, current=paper.current),
                f" {figure}",
            )
        )
        if pool.usage_ratio is None:
            lines += paper.paragraph(f"unknown: {pool.usage_why}", Style.UNKNOWN, indent="    ")
        lines += paper.paragraph(_pool_words(pool, paper), indent="    ")
    return lines


def _pool_words(pool: Pool, paper: Paper) -> str:
    words = []
    if pool.slots is not None:
        busy, total = pool.slots
        words.append(f"{paper.figure(busy)} of {paper.figure(total)} slots busy")
        words.append(f"{paper.figure(pool.free_tokens)} of {paper.figure(pool.capacity_tokens)} tokens free")
    else:
        words.append(f"{paper.figure(pool.free_blocks)} of {paper.figure(pool.usable_blocks)} blocks free")
    if pool.capacity_bytes is not None:
        words.append(f"{paper.figure(pool.capacity_bytes, size)} on each card")
    words.append(f"running {paper.figure(pool.running)}, at most {paper.figure(pool.request_limit)}")
    waiting = ", ".join(f"{paper.figure(count)} {paper.shown(why)}" for why, count in pool.waiting_for)
    words.append(f"waiting {paper.figure(pool.waiting)}" + (f" ({waiting})" if waiting else ""))
    if pool.slots is None:
        words.append(f"preemptions {paper.figure(pool.preemptions)}")
        words.append(f"recompute suspected {paper.figure(pool.suspected)} since kvwatch started")
    else:
        words.append("llama.cpp does not preempt: in a full pool running requests fail with HTTP 500")
    return f" {paper.glyphs.dot} ".join(words)


def _fits(server: Server, paper: Paper) -> list[Line]:
    rows: list[tuple[str, Fits]] = [(f"rank {pool.rank}", pool.fits) for pool in server.pools]
    lines = [_fit_line("", _FIT_HEADS, paper)]
    for name, fits in rows:
        figures = (fits.guaranteed, fits.now, fits.empty, fits.resident_limit, fits.headroom)
        lines.append(_fit_line(name, tuple(paper.figure(value) for value in figures), paper))
    if len(rows) > 1:
        fields = ("guaranteed", "now", "empty", "resident_limit", "headroom")
        lines.append(_fit_line("server", tuple(paper.figure(server.fit(field)) for field in fields), paper))
    if any(fits.guaranteed is None or fits.now is None for _, fits in rows):
        lines += paper.paragraph(f"? is unknown: {server.fits_why}", Style.UNKNOWN, indent="  ")
    if server.lower_bounds:
        text = "Lower bounds: only the engine's start-up charge of a full-length request is known."
        lines += paper.paragraph(text, Style.WARN, indent="  ")
    return lines


def _fit_line(name: str, texts: tuple[str, ...], paper: Paper) -> Line:
    cells = max(6, min(12, (paper.cells - 12) // len(texts) - 1))
    columns = " ".join(pad(text[:cells], cells, right=True) for text in texts)
    return line(f"  {pad(paper.shown(name)[:8], 8)}  {columns}")


def _typical(server: Server, paper: Paper) -> list[Line]:
    lines = [line(("TYPICAL REQUEST", Style.TITLE))]
    for pool in server.pools:
        rank = f"rank {pool.rank}: " if len(server.pools) > 1 else ""
        typical = pool.typical
        if typical is None:
            why = (
                "llama.cpp does not count finished requests"
                if pool.slots is not None
                else "none was seen to finish, or the page does not count them"
            )
            lines += paper.paragraph(f"{rank}unknown: {why}", Style.UNKNOWN, indent="  ")
            continue
        lengths = (
            f"{paper.figure(typical.prompt_tokens)} prompt + {paper.figure(typical.generation_tokens)} "
            f"generated tokens, mean of {paper.figure(typical.requests)}"
        )
        fits = typical.fits
        room = (
            "how many fit is unknown: only full length is known"
            if fits is None
            else f"guaranteed {paper.figure(fits.guaranteed)}, fits now {paper.figure(fits.now)}, "
            f"held at most {paper.figure(fits.resident_limit)}"
        )
        lines += paper.paragraph(f"{rank}{lengths}; {room}", indent="  ")
    return lines


def _comparison(server: Server, paper: Paper) -> list[Line]:
    """Return the engine's own figures beside kvwatch's, and why they differ."""
    lines = [line(("ENGINE'S FIGURE BESIDE OURS", Style.TITLE))]
    lines.append(line(f"  {'':{_TERM}} {'ENGINE':>12} {'KVWATCH':>12}"))
    for pool in server.pools:
        rank = f" (rank {pool.rank})" if len(server.pools) > 1 else ""
        pairs: list[tuple[str, object, object, Callable[[float], str]]] = [
            ("full-length requests", pool.engine_concurrency, pool.fits.resident_limit, short),
            ("tokens the pool holds", pool.engine_tokens, pool.capacity_tokens, whole),
            ("blocks", pool.num_blocks, pool.usable_blocks, whole),
        ]
        for term, engine, ours, form in pairs:
            if engine is None and ours is None:
                continue
            figures = f"{paper.figure(engine, form):>12} {paper.figure(ours, form):>12}"
            lines.append(line(f"  {pad(term + rank, _TERM)} {figures}"))
        worst = paper.explained(
            pool.worst_case_ratio,
            "the pool or the request limit is not known; set request_limit",
            lambda value: f"{short(value)} pools",
        )
        more = [("worst-case demand", worst)]
        if pool.slots is None:
            more += [
                ("blocks of one request", paper.explained(pool.resident_blocks, server.model_why)),
                ("textbook ceiling", paper.explained(pool.ceiling, server.model_why)),
                ("bytes per token", paper.explained(pool.bytes_per_token, server.model_why)),
            ]
        lines += _terms([(term + rank, text) for term, text in more], paper)
    error = server.model_error_ratio
    if error is not None:
        lines += _terms(
            [("model against engine", f"{paper.figure(error, lambda value: f'{value:+.2%}')} blocks")], paper
        )
    lines += paper.paragraph(
        "The engine counts the null block, and what it charges at start; kvwatch what a request holds.",
        Style.DIM,
        indent="  ",
    )
    return lines


def _groups(server: Server, paper: Paper) -> list[Line]:
    lines = [line(("KV GROUPS", Style.TITLE))]
    for group in server.groups:
        window = f", window {group.window:,} tokens" if group.window is not None else ""
        text = (
            f"{group.kind}: {paper.figure(group.layers)} layers, "
            f"blocks of {paper.figure(group.block_size)} tokens, "
            f"{paper.figure(group.page_bytes, size)} a block and layer{window}"
        )
        lines += paper.paragraph(text, indent="  ")
    if not server.groups:
        lines += paper.paragraph(f"unknown: {server.model_why}", Style.UNKNOWN, indent="  ")
    pinned = server.pin_bytes is not None
    share = (
        paper.figure(server.pin_bytes, size)
        if pinned
        else paper.explained(server.share_ratio, server.page_why, percent)
    )
    rows = [
        ("cache dtype", paper.explained(server.cache_dtype, server.page_why, paper.shown)),
        ("pinned pool of each card" if pinned else "share of each card", share),
        ("settings fingerprint", paper.explained(server.fingerprint, server.page_why, paper.shown)),
    ]
    return [*lines, *_terms(rows, paper)]


def _terms(rows: list[tuple[str, str]], paper: Paper) -> list[Line]:
    """Return terms and what they are, one a line; a long one goes on below."""
    lines: list[Line] = []
    for term, text in rows:
        style = Style.UNKNOWN if text.startswith("unknown") else Style.PLAIN
        first, *more = paper.paragraph(text, style, indent=" " * (_TERM + 3))
        head = Span(first.text[_TERM + 3 :], style)
        lines += [line(f"  {pad(term, _TERM)} ", head), *more]
    return lines
