"""What vLLM of each version prints for one and the same start, by its format strings."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One start: a card of 44.99 GiB, a share of 0.6, a pool of 74,704 tokens of 16 a block."""

    total: float = 44.99
    free: float = 44.51
    share: float = 0.6
    requested: float = 26.99
    weights: float = 14.99
    activation: float = 1.7
    non_torch: float = 0.63
    graphs: float = 0.5
    estimated: float = 0.55
    kv: float = 9.12
    blocks: int = 4669
    length: int = 32768
    concurrency: float = 2.28
    pin: int = 9_098_455_040
    pin_full: int = 27_905_654_784

    @property
    def tokens(self) -> int:
        """Return what a uniform model's blocks hold."""
        return self.blocks * 16


FACTS = Facts()

VERSIONS = (
    "0.8.5",
    "0.9.1",
    "0.9.2",
    "0.10.0",
    "0.10.2",
    "0.11.0",
    "0.11.2",
    "0.12.0",
    "0.14.1",
    "0.17.0",
    "0.19.1",
    "0.20.2",
    "0.21.0",
    "0.23.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.28.0",
    "0.30.0",
    "0.32.0",
)


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers."""
    return tuple(int(part) for part in version.split("."))


def v1_log(version: str, facts: Facts = FACTS, *, debug: bool = False) -> str:
    """Return the start-up lines of V1, with vLLM's header and the names of its processes."""
    release = numbers(version)
    tagged = release >= (0, 10, 2)
    front = "(APIServer pid=1) " if tagged else ""
    engine = ("(EngineCore pid=90) " if release >= (0, 14) else "(EngineCore_DP0 pid=90) ") if tagged else ""
    lines = []

    def say(process: str, place: str, text: str, level: str = "INFO") -> None:
        lines.append(f"{process}{level} 11-30 20:01:15 [{place}:1] {text}")

    say(front, "api_server.py", f"vLLM API server version {version}")
    say(
        front,
        "utils.py",
        "non-default args: {'model': 'acme/chat-8b', 'max_model_len': 32768, 'gpu_memory_utilization': 0.6}",
    )
    say(
        engine,
        "core.py",
        f"Initializing a V1 LLM engine (v{version}) with config: model='acme/chat-8b',"
        f" speculative_config=None, dtype=torch.bfloat16, max_seq_len={facts.length}, tensor_parallel_size=1,"
        f" pipeline_parallel_size=1, kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching=True",
    )
    memory = " memory" if release >= (0, 11, 2) else ""
    weights = f"{facts.weights:.4f}" if release < (0, 14) else f"{facts.weights}"
    say(engine, "gpu_model_runner.py", f"Model loading took {weights} GiB{memory} and 3.123456 seconds")
    if release >= (0, 19):
        say(
            engine,
            "gpu_model_runner.py",
            f"Estimated CUDA graph memory: {facts.estimated:.2f} GiB total",
        )
    if release >= (0, 9, 1):
        kv = f"{facts.kv:.2f}" if release < (0, 14) else f"{facts.kv}"
        say(engine, "gpu_worker.py", f"Available KV cache memory: {kv} GiB")
    if release >= (0, 20):
        say(
            engine,
            "gpu_worker.py",
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current"
            " --gpu-memory-utilization=0.6000 is equivalent to --gpu-memory-utilization=0.5878 without CUDA"
            " graph memory profiling. To maintain the same effective KV cache size as before, increase"
            " --gpu-memory-utilization to 0.6122. To disable, set"
            " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
        )
    elif release >= (0, 19):
        say(
            engine,
            "gpu_worker.py",
            "In v0.19, CUDA graph memory profiling will be enabled by default"
            " (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1), which more accurately accounts for CUDA graph"
            " memory during KV cache allocation. To try it now, set"
            " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 and increase --gpu-memory-utilization from"
            " 0.6000 to 0.6122 to maintain the same effective KV cache size.",
        )
    tokens = f"KV cache size: {facts.tokens:,} tokens"
    concurrency = f"Maximum concurrency for {facts.length:,} tokens per request: {facts.concurrency:.2f}x"
    if release < (0, 28):
        say(engine, "kv_cache_utils.py", f"GPU {tokens}")
        say(engine, "kv_cache_utils.py", concurrency)
    else:
        say(engine, "kv_cache_utils.py", f"GPU {tokens}, {concurrency}")
    say(
        engine,
        "gpu_model_runner.py",
        f"Graph capturing finished in 12 secs, took {facts.graphs:.2f} GiB",
    )
    if release >= (0, 10, 2):
        at_info = release < (0, 11) or release >= (0, 26)
        if at_info or debug:
            say(engine, "gpu_worker.py", suggestion(release, facts), "INFO" if at_info else "DEBUG")
    say(engine, "core.py", "init engine (profile, create kv cache, warmup model) took 30.11 seconds")
    if release >= (0, 9, 1):
        say(
            front,
            "loggers.py",
            f"Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: {facts.blocks}",
        )
    lines.append(f"{front}INFO:     Application startup complete.")
    return "\n".join(lines) + "\n"


def suggestion(release: tuple[int, ...], facts: Facts) -> str:
    """Return the line with the two pins."""
    head = (
        f"Free memory on device ({facts.free}/{facts.total} GiB) on startup. Desired GPU memory utilization"
        f" is ({facts.share}, {facts.requested} GiB). Actual usage is "
    )
    if release < (0, 27):
        usage = (
            f"{facts.weights} GiB for weight, {facts.activation} GiB for peak activation, {facts.non_torch}"
            f" GiB for non-torch memory, and {facts.graphs} GiB for CUDAGraph memory."
        )
    else:
        # The estimate for CUDA graphs is in the peak activation.
        usage = (
            f"{round(facts.weights + facts.non_torch, 2)} GiB for consumed memory (weights + non-torch),"
            f" {round(facts.activation + facts.estimated, 2)} GiB for peak activation, and {facts.graphs} GiB"
            f" for CUDAGraph memory."
        )
    fits, fully = ("", "") if release < (0, 11) else (" (8.47 GiB)", " (25.99 GiB)")
    used = f"{round(facts.kv * GIB)} bytes" if release < (0, 11) else f"{facts.kv} GiB"
    return (
        f"{head}{usage} Replace gpu_memory_utilization config with `--kv-cache-memory={facts.pin}`{fits} to"
        f" fit into requested memory, or `--kv-cache-memory={facts.pin_full}`{fully} to fully utilize gpu"
        f" memory. Current kv cache memory in use is {used}."
    )


def v0_log(version: str, facts: Facts = FACTS) -> str:
    """Return the start-up lines of the legacy engine."""
    release = numbers(version)
    bracket = release >= (0, 7, 3)

    def line(place: str, text: str) -> str:
        return f"INFO 11-30 20:01:15 {f'[{place}:1]' if bracket else f'{place}:1]'} {text}"

    name = "an LLM engine" if release < (0, 7) else "a V0 LLM engine"
    lines = [
        line("api_server.py", f"vLLM API server version {version}"),
        line(
            "api_server.py",
            "args: Namespace(host=None, port=8000, model='acme/chat-8b', gpu_memory_utilization=0.6,"
            " max_num_seqs=256)",
        ),
        line(
            "llm_engine.py",
            f"Initializing {name} (v{version}) with config: model='acme/chat-8b', speculative_config=None,"
            f" dtype=torch.bfloat16, max_seq_len={facts.length}, tensor_parallel_size=1,"
            f" pipeline_parallel_size=1",
        ),
    ]
    unit = "GB" if release < (0, 7) else "GiB"
    if release < (0, 8):
        lines.append(line("model_runner.py", f"Loading model weights took {facts.weights:.4f} {unit}"))
    else:
        lines.append(
            line("model_runner.py", f"Model loading took {facts.weights:.4f} GiB and 3.123456 seconds")
        )
    lines += [line("worker.py", text) for text in v0_profile(release, facts)]
    what = "GPU" if release < (0, 6, 6) else "cuda"
    lines += [
        line("executor_base.py", f"# {what} blocks: {facts.blocks}, # CPU blocks: 4096"),
        line(
            "executor_base.py",
            f"Maximum concurrency for {facts.length} tokens per request: {facts.concurrency:.2f}x",
        ),
        line("model_runner.py", f"Graph capturing finished in 12 secs, took {facts.graphs:.2f} GiB"),
        line("launcher.py", "Available routes are:"),
    ]
    return "\n".join(lines) + "\n"


def v0_profile(release: tuple[int, ...], facts: Facts) -> list[str]:
    """Return what the profiling of V0 printed."""
    if release < (0, 6, 5):
        peak = facts.weights + facts.activation
        return [
            (
                f"Memory profiling results: total_gpu_memory={facts.total:.2f}GiB"
                f" initial_memory_usage=15.34GiB peak_torch_memory={peak:.2f}GiB"
                f" memory_usage_post_profile=15.35GiB non_torch_memory={facts.non_torch:.2f}GiB"
                f" kv_cache_size={facts.kv:.2f}GiB gpu_memory_utilization={facts.share:.2f}"
            )
        ]
    if release < (0, 7):
        return [
            "Memory profiling results:",
            f"total_gpu_memory\t{facts.total:.2f}GiB",
            f"gpu_memory_utilization\t{facts.share:.2f}",
            f"the current vLLM instance can use\t{facts.requested:.2f}GiB",
            f"model weights take\t{facts.weights:.2f}GiB",
            f"non_torch_memory\t{facts.non_torch:.2f}GiB",
            f"PyTorch activation peak memory\t{facts.activation:.2f}GiB",
            f"available_kv_cache_memory\t{facts.kv:.2f}GiB",
        ]
    return [
        "Memory profiling takes 3.11 seconds",
        (
            f"the current vLLM instance can use total_gpu_memory ({facts.total:.2f}GiB) x"
            f" gpu_memory_utilization ({facts.share:.2f}) = {facts.requested:.2f}GiB"
        ),
        (
            f"model weights take {facts.weights:.2f}GiB; non_torch_memory takes {facts.non_torch:.2f}GiB;"
            f" PyTorch activation peak memory takes {facts.activation:.2f}GiB; the rest of the memory"
            f" reserved for KV Cache is {facts.kv:.2f}GiB."
        ),
    ]
