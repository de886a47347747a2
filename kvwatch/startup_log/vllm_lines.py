"""vLLM's start-up lines, 0.2.7 to 0.32 and V0, and what each says of which process.

Read in v1/worker/gpu_worker.py, gpu_model_runner.py, cpu_worker.py, v1/core/kv_cache_utils.py,
v1/engine/core.py, v1/metrics/loggers.py, worker/worker.py and executor/executor_base.py of 0.8.5, 0.9.1,
0.9.2, 0.10.0, 0.10.2, 0.11.0, 0.11.2, 0.12.0, 0.14.1, 0.17.0, 0.19.1, 0.20.2, 0.21.0, 0.23.0, 0.25.1, 0.26.0,
0.27.0, 0.28.0, 0.30.0 and 0.32.0; older lines as public reports quote them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvwatch.startup_log.amounts import NUMBER, count, gib

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.startup_log.vllm_start import Process, VllmStart

# `Free memory on device (22.1/23.58 GiB) on startup. Desired GPU memory utilization is (0.9, 21.22 GiB) ...`
# is printed at INFO by 0.10.2 and from 0.26 on, at DEBUG between.
_FREE = re.compile(rf"Free memory on device(?: \S+)? \(({NUMBER})/({NUMBER}) GiB\) on startup\. Desired GPU")
_DESIRED = re.compile(rf"Desired GPU memory utilization is \(({NUMBER}), ({NUMBER}) GiB\)")
_USAGES = {
    "weights_bytes": re.compile(rf"({NUMBER}) GiB for weight\b"),
    "consumed_bytes": re.compile(rf"({NUMBER}) GiB for consumed memory"),
    "activation_bytes": re.compile(rf"({NUMBER}) GiB for peak activation"),
    "non_torch_bytes": re.compile(rf"({NUMBER}) GiB for non-torch memory"),
    "graphs_bytes": re.compile(rf"({NUMBER}) GiB for CUDAGraph memory"),
}
_PIN_FITS = re.compile(r"`--kv-cache-memory=(-?\d{1,18})`[^`]{0,40}?to fit\s+into requested memory")
_PIN_FULL = re.compile(r"`--kv-cache-memory=(-?\d{1,18})`[^`]{0,40}?to fully\s+utilize gpu memory")
_IN_USE = re.compile(rf"kv cache memory in use is (?:({NUMBER}) GiB|(\d{{1,18}}) bytes)")


def _usage(_: VllmStart, process: Process, found: re.Match[str]) -> None:
    text = found.string
    process.facts.update(free_bytes=gib(found.group(1)), total_bytes=gib(found.group(2)))
    desired = _DESIRED.search(text)
    if desired is not None:
        process.facts.update(share=float(desired.group(1)), requested_bytes=gib(desired.group(2)))
    for name, pattern in _USAGES.items():
        usage = pattern.search(text)
        if usage is not None:
            process.facts[name] = gib(usage.group(1))
    for name, pattern in (("suggested_pin_bytes", _PIN_FITS), ("suggested_pin_full_bytes", _PIN_FULL)):
        pin = pattern.search(text)
        if pin is not None:
            process.facts[name] = int(pin.group(1))
    in_use = _IN_USE.search(text)
    if in_use is not None and in_use.group(2) is not None:
        process.facts.update(kv_bytes=int(in_use.group(2)), kv_bytes_exact=True)
    elif in_use is not None:
        process.facts.setdefault("kv_bytes", gib(in_use.group(1)))


def _say(*names: str) -> Callable[[VllmStart, Process, re.Match[str]], None]:
    """Return what keeps the printed GiB of a line under these names."""

    def keep(_: VllmStart, process: Process, found: re.Match[str]) -> None:
        for name, text in zip(names, found.groups(), strict=True):
            process.facts[name] = float(text) if name == "share" else gib(text)

    return keep


def _pinned(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    process.facts.update(free_bytes=gib(found.group(1)), kv_bytes=gib(found.group(2)))
    start.pinned = start.pinned or gib(found.group(2))


def _on_host(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    """Read the CPU backend: its memory is the host's, and VLLM_CPU_KVCACHE_SPACE is a pin."""
    process.facts.update(kv_bytes=gib(found.group(2)), total_bytes=gib(found.group(3)))
    if found.group(1) == "Explicitly":
        start.pinned = start.pinned or gib(found.group(2))


def _plan(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    start.pinned = int(found.group(1))
    process.facts.update(kv_bytes=int(found.group(1)), kv_bytes_exact=True)


def _tokens(_: VllmStart, process: Process, found: re.Match[str]) -> None:
    process.least("kv_tokens", count(found.group(1)))


def _concurrency(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    start.length = count(found.group(1))
    process.least("max_concurrency", float(found.group(2)))


def _blocks(_: VllmStart, process: Process, found: re.Match[str]) -> None:
    process.least("num_blocks", int(found.group(1)))


def _overridden(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    start.profiled_blocks = int(found.group(1))
    process.least("num_blocks", int(found.group(2)))


def _told_blocks(start: VllmStart, _: Process, found: re.Match[str]) -> None:
    start.told_blocks[int(found.group(1))] = int(found.group(2))


def _graphs_counted(start: VllmStart, process: Process, found: re.Match[str]) -> None:
    start.graphs_counted = True
    process.facts.setdefault("share", float(found.group(1)))


def _share(_: VllmStart, process: Process, found: re.Match[str]) -> None:
    process.facts.setdefault("share", float(found.group(1)))


def _fitted(start: VllmStart, _: Process, found: re.Match[str]) -> None:
    start.fitted_from, start.length = int(found.group(1)), int(found.group(2))


def _length(start: VllmStart, _: Process, found: re.Match[str]) -> None:
    if start.length is None:
        start.length = int(found.group(1))


def _batched(start: VllmStart, _: Process, found: re.Match[str]) -> None:
    start.batched_tokens = int(found.group(1))


def _ready(start: VllmStart, _: Process, __: re.Match[str]) -> None:
    start.ready = True


_N = f"({NUMBER})"
LINES: tuple[tuple[re.Pattern[str], Callable[[VllmStart, Process, re.Match[str]], None]], ...] = tuple(
    (re.compile(pattern), handler)
    for pattern, handler in (
        (_FREE.pattern, _usage),
        (rf"Model loading took {_N} Gi?B(?: memory)? and", _say("weights_bytes")),
        (rf"(?:Loading model weights|Model loading) took {_N} Gi?B", _say("weights_bytes")),
        (rf"Available KV cache memory: {_N} GiB", _say("kv_bytes")),
        (rf"Initial free memory {_N} GiB, reserved {_N} ?GiB memory for KV Cache", _pinned),
        (r"Applying persisted startup plan .*?kv_cache_memory_bytes=(\d{1,18})", _plan),
        (rf"(Explicitly|Auto) set \({_N}/{_N}\) GiB for KV cache", _on_host),
        (rf"Graph capturing finished in \d+ secs, took {_N} Gi?B", _say("graphs_bytes")),
        (rf"Estimated CUDA graph memory: {_N} GiB total", _say("graphs_estimated_bytes")),
        (
            rf"CUDA graph memory profiling is enabled .*?--gpu-memory-utilization={_N} is equivalent",
            _graphs_counted,
        ),
        (
            (
                rf"(?:In v0\.19, )?CUDA graph memory profiling (?:will be|is dis)abled .*?"
                rf"--gpu-memory-utilization from {_N} to"
            ),
            _share,
        ),
        (r"[A-Za-z][\w +]* KV cache size: (\d[\d,]{0,19}) tokens", _tokens),
        (r"(?:# )?(?:GPU|CUDA|cuda|ROCM|rocm|XPU|xpu|HPU|hpu|TPU|tpu|cpu) blocks: (\d{1,12})\b", _blocks),
        (r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})", _overridden),
        (
            r"Engine (\d{1,6}): vllm cache_config_info with .*? num_gpu_blocks is: (\d{1,12})",
            _told_blocks,
        ),
        (r"Auto-fit max_model_len: reduced from (\d{1,12}) to (\d{1,12}) to fit", _fitted),
        (r"Using max model len (\d{1,12})", _length),
        (r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,12})", _batched),
        # V0, 0.7 and newer: one line a process for each of these.
        (
            (
                rf"the current vLLM instance can use total_gpu_memory \({_N}GiB\) x gpu_memory_utilization"
                rf" \({_N}\) = {_N}GiB"
            ),
            _say("total_bytes", "share", "requested_bytes"),
        ),
        (
            (
                rf"model weights take {_N}GiB; non_torch_memory takes {_N}GiB; PyTorch activation peak memory"
                rf" takes {_N}GiB; the rest of the memory reserved for KV Cache is {_N}GiB"
            ),
            _say("weights_bytes", "non_torch_bytes", "activation_bytes", "kv_bytes"),
        ),
        # V0, 0.6.5 and 0.6.6: a block of lines.
        (rf"total_gpu_memory\s+{_N}GiB$", _say("total_bytes")),
        (rf"gpu_memory_utilization\s+{_N}$", _share),
        (rf"the current vLLM instance can use\s+{_N}GiB$", _say("requested_bytes")),
        (rf"model weights take\s+{_N}GiB$", _say("weights_bytes")),
        (rf"non_torch_memory\s+{_N}GiB$", _say("non_torch_bytes")),
        (rf"PyTorch activation peak memory\s+{_N}GiB$", _say("activation_bytes")),
        (rf"available_kv_cache_memory\s+{_N}GiB$", _say("kv_bytes")),
        # V0, 0.6.3 and 0.6.4: one line, whose peak holds the weights.
        (
            (
                rf"Memory profiling results: total_gpu_memory={_N}GiB initial_memory_usage={_N}GiB"
                rf" peak_torch_memory={_N}GiB memory_usage_post_profile={_N}GiB non_torch_memory={_N}GiB"
                rf" kv_cache_size={_N}GiB gpu_memory_utilization={_N}"
            ),
            _say(
                "total_bytes",
                "initial_bytes",
                "peak_torch_bytes",
                "after_bytes",
                "non_torch_bytes",
                "kv_bytes",
                "share",
            ),
        ),
        (
            (
                r"Starting vLLM (?:API )?server|Available routes are:|(?:INFO: +)?Application startup"
                r" complete|(?:INFO: +)?Uvicorn running on"
            ),
            _ready,
        ),
    )
)
# On the line of the tokens since 0.28: `GPU KV cache size: 1 tokens, Maximum concurrency for 1 tokens ...`.
CONCURRENCY = re.compile(rf"Maximum concurrency for (\d[\d,]{{0,19}}) tokens per request: {_N}x")
WORDS = (
    "oading took",
    "weights took",
    "weights take",
    "KV cache size",
    "KV cache memory",
    "GiB for KV cache",
    "KV Cache",
    " blocks: ",
    "num_gpu_blocks",
    "gpu_memory",
    "gpu-memory-utilization",
    "max_model_len",
    "max model len",
    "Maximum concurrency",
    "Chunked prefill is",
    "CUDA graph",
    "Graph capturing finished",
    "non_torch_memory",
    "kv_cache_memory",
    "activation peak",
    "current vLLM instance",
    "startup plan",
    "on startup",
    "Starting vLLM",
    "routes are:",
    "startup complete",
    "Uvicorn running",
)
"""Each line above holds one of these; few of those that a server prints for requests do."""


def concurrency(start: VllmStart, process: Process, text: str, *, anywhere: bool) -> bool:
    """Keep the concurrency of a line; say whether it has one."""
    found = CONCURRENCY.search(text) if anywhere or "KV cache size" in text else CONCURRENCY.match(text)
    if found is None:
        return False
    _concurrency(start, process, found)
    return True
