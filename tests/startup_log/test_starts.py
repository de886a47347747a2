"""Several starts in one file, several processes in one start, and what did not start."""

from __future__ import annotations

import pytest

from tests.startup_log.reading import LOGS, documents, gib, mib, only, read, read_file
from tests.startup_log.vllm_prints import v0_log, v1_log

TWO_RANKS = """\
(APIServer pid=1) INFO 11-30 20:01:15 [api_server.py:1] vLLM API server version 0.12.0
(EngineCore_DP0 pid=90) INFO 11-30 20:01:15 [core.py:1] Initializing a V1 LLM engine (v0.12.0) with config: \
model='acme/chat-8b', max_seq_len=32768, tensor_parallel_size=2, pipeline_parallel_size=1, \
data_parallel_size=1
(Worker_TP0 pid=91) INFO 11-30 20:01:16 [gpu_model_runner.py:1] Model loading took 7.5 GiB memory and 3.1 \
seconds
(Worker_TP1 pid=92) INFO 11-30 20:01:16 [gpu_model_runner.py:1] Model loading took 7.5 GiB memory and 3.1 \
seconds
(Worker_TP0 pid=91) INFO 11-30 20:01:17 [gpu_worker.py:1] Available KV cache memory: 8.69 GiB
(Worker_TP1 pid=92) INFO 11-30 20:01:17 [gpu_worker.py:1] Available KV cache memory: 7.46 GiB
(EngineCore_DP0 pid=90) INFO 11-30 20:01:18 [kv_cache_utils.py:1] GPU KV cache size: 94,912 tokens
(EngineCore_DP0 pid=90) INFO 11-30 20:01:18 [kv_cache_utils.py:1] GPU KV cache size: 81,536 tokens
(EngineCore_DP0 pid=90) INFO 11-30 20:01:18 [kv_cache_utils.py:1] Maximum concurrency for 32,768 tokens per \
request: 2.49x
"""


@pytest.mark.parametrize("make", [v1_log, v0_log], ids=["V1", "V0"])
@pytest.mark.parametrize("version", ["0.8.5", "0.10.0", "0.10.2"])
def test_restarts(make: object, version: str) -> None:
    """Each start of a file is one, whether the processes have names and pids or not."""
    log = make(version)  # type: ignore[operator]
    later = log.replace("14.99", "13.99").replace("pid=1)", "pid=2)").replace("pid=90)", "pid=190)")
    starts = read(log * 2 + later).starts
    assert len(starts) == 3
    assert [start.ready for start in starts] == [True, True, True]
    assert [start.memory.weights_bytes for start in starts] == [gib(14.99), gib(14.99), gib(13.99)]


def test_a_crash_loop() -> None:
    """A start that dies before its engine, again and again, is so many starts."""
    crash = (
        "INFO 11-30 20:01:15 [api_server.py:1043] vLLM API server version 0.8.5\n"
        "INFO 11-30 20:01:15 [api_server.py:1044] args: Namespace(model='acme/chat-8b', max_num_seqs=256)\n"
        "Traceback (most recent call last):\n"
        "ValueError: Free memory on device (10.2/44.99 GiB) on startup is less than desired GPU memory"
        " utilization (0.9, 40.49 GiB). Decrease GPU memory utilization or reduce GPU memory used"
        " by other processes.\n"
    )
    starts = documents(crash * 3)
    assert [start["error_kind"] for start in starts] == ["not_enough_free"] * 3
    assert starts[0]["error"] == (
        "10.2 of 44.99 GiB were free at start and the share of 0.9 is 40.49 GiB: 30.29 GiB too little"
    )
    assert (starts[0]["total_bytes"], starts[0]["share"]) == (gib(44.99), 0.9)


def test_the_last_starts_are_kept() -> None:
    """A server that restarts without end costs no memory without end."""
    log = read("INFO 11-30 20:01:15 [api_server.py:1] vLLM API server version 0.8.5\n" * 1500)
    assert (len(log.starts), log.left_out) == (1000, 500)
    assert log.starts[-1].line == 1500


def test_the_smallest_rank_decides() -> None:
    """Every rank gets the pool of the one with the least memory, and the tokens are the planner's least."""
    (start,) = documents(TWO_RANKS)
    assert start["kv_bytes"] == gib(7.46)
    assert start["kv_tokens"] == 81_536
    assert start["expected_ranks"] == 2
    assert [(rank["name"], rank["kv_bytes"]) for rank in start["ranks"]] == [
        ("Worker_TP0", gib(8.69)),
        ("Worker_TP1", gib(7.46)),
    ]


def test_the_pin_is_that_of_the_smallest_rank() -> None:
    """Two ranks, two suggestions: one pin is set for both, so the smaller."""
    line = next(line for line in v1_log("0.28.0").splitlines() if "Free memory on device" in line)
    lines = [
        line.replace("EngineCore pid=90", f"Worker_TP{rank} pid={91 + rank}").replace(
            "=9098455040`", f"={pin}`"
        )
        for rank, pin in enumerate((9_098_455_040, 8_000_000_000))
    ]
    (start,) = documents("\n".join(lines))
    assert start["suggested_pin_bytes"] == 8_000_000_000


def test_engines_of_data_parallel_ranks() -> None:
    """Two engines of one start are two pools, not two starts."""
    start = only(read_file(LOGS / "vllm-0.32.0-two-engines.log"))
    assert [(engine.name, engine.kv_tokens) for engine in start.engines] == [
        ("EngineCore_DP0", 3200),
        ("EngineCore_DP1", 3200),
    ]
    assert start.expected_ranks == 2
    assert len(start.ranks) == 2


def test_engines_without_names() -> None:
    """Before 0.10.1 data-parallel engines had no names: the arguments say how many there are."""
    front = (
        "INFO 11-30 20:01:15 [api_server.py:1] vLLM API server version 0.9.2\n"
        "INFO 11-30 20:01:15 [cli_args.py:1] non-default args: {'model': 'm', 'data_parallel_size': 2}\n"
    )
    engine = "INFO 11-30 20:01:15 [core.py:1] Initializing a V1 LLM engine (v0.9.2) with config: model='m'\n"
    assert len(read(front + engine * 2 + front + engine * 2).starts) == 2


def test_rank_that_stopped_at_once() -> None:
    """What a stopped server says last (its engine is dead) is no failed start."""
    start = only(read_file(LOGS / "vllm-0.32.0-stopped.log"))
    assert (start.ready, start.failure, start.later_failure) == (True, None, None)


FAILURES = {
    "vllm-0.32.0-pool-too-small.log": (
        "kv_too_small",
        (
            "one request of 1,024 tokens needs 0.0 GiB of KV cache and there are 0.0 GiB: less than 0.01 GiB"
            " too little; the largest --max-model-len that fits is 288"
        ),
    ),
    "vllm-0.32.0-no-room-at-start.log": (
        "not_enough_free",
        "11.49 of 12.84 GiB were free at start and the share of 0.99 is 12.71 GiB: 1.22 GiB too little",
    ),
    "vllm-0.32.0-other-failure.log": (
        "failed",
        (
            "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers. Allowed"
            " NUMA nodes are [0]. Please try to bind threads manually or decrease DP/TP/PP"
        ),
    ),
    "llamacpp-b11434-context-too-large.log": (
        "out_of_memory",
        (
            "30.52 GiB for the KV cache could not be allocated on CPU; --ctx-size 4,000,000 costs 8.00 MiB"
            " for each 1,024 tokens; by its own projection about 2,446,336 fit"
        ),
    ),
    "llamacpp-b11434-context-too-large-default-verbosity.log": (
        "out_of_memory",
        "30.52 GiB for the KV cache could not be allocated on CPU",
    ),
    "llamacpp-b11434-no-flash-attention.log": (
        "flash_attention",
        "a quantised V cache needs flash attention: set --flash-attn on, or --cache-type-v f16",
    ),
    "llamacpp-b11434-no-such-file.log": (
        "failed",
        "llama_model_loader: failed to load model from /nonexistent.gguf",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_real_failures(name: str) -> None:
    """A real engine that did not start: the reason that it states, and none of the hollow ones."""
    failure = only(read_file(LOGS / name)).failure
    assert failure is not None
    assert (failure.kind, failure.text) == FAILURES[name]


LLAMA_FAILURES = {
    "weights": (
        (
            "load_tensors: loading model tensors, this can take a while... (mmap = true, direct_io = false)\n"
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc"
            " failed: out of memory\n"
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624\n"
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
        ),
        "141.42 GiB for the weights could not be allocated on CUDA0",
    ),
    "compute buffers, 2024": (
        (
            "llama_kv_cache_init:      CUDA0 KV buffer size =   180.00 MiB\n"
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc"
            " failed: out of memory\n"
            "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9332334592\n"
            "llama_new_context_with_model: failed to allocate compute buffers\n"
            "llama_init_from_gpt_params: error: failed to create context with model 'm.gguf'\n"
        ),
        "8.69 GiB for the compute buffers could not be allocated on CUDA0",
    ),
    "KV cache, 2023": (
        (
            "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
            "llama_new_context_with_model: kv_cache_init() failed for self-attention cache\n"
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 1: cudaMalloc"
            " failed: out of memory\n"
            "error: failed to create context with model 'm.gguf'\n"
        ),
        "16.00 GiB for the KV cache could not be allocated on device 1",
    ),
}


@pytest.mark.parametrize("name", LLAMA_FAILURES)
def test_llama_server_that_ran_out_of_memory(name: str) -> None:
    """What could not be allocated, how much, and where."""
    text, sentence = LLAMA_FAILURES[name]
    loaded = "llama_model_loader: loaded meta data with 3 key-value pairs and 9 tensors from m.gguf (version"
    failure = only(read(f"{loaded} GGUF V3 (latest))\n{text}")).failure
    assert failure is not None
    assert failure.text == sentence


def test_an_allocation_that_was_tried_again() -> None:
    """llama-server goes on without pipeline parallelism: no failure."""
    text = (
        "1.06.520.077 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1:"
        " cudaMalloc failed: out of memory\n"
        "1.06.520.084 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA1 buffer of size 54262464512\n"
        "1.06.520.086 E graph_reserve: failed to allocate compute buffers\n"
        "1.06.520.107 W sched_reserve: compute buffer allocation failed, retrying without pipeline"
        " parallelism\n1.07.304.130 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 50176,"
        " kv_unified = 'false'\n1.07.304.131 I srv  llama_server: model loaded\n"
    )
    start = only(read(text))
    assert (start.failure, start.ready, start.max_model_len) == (None, True, 50_176)


def test_out_of_memory_after_the_start() -> None:
    """A server that served, and then died for memory, did start: both are said."""
    text = v1_log("0.28.0") + (
        "(EngineCore pid=90) ERROR 12-01 03:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory."
        " Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 44.99 GiB of which 1.20 GiB is free."
        " Process 55 has 20.10 GiB memory in use. Including non-PyTorch memory, this process has"
        " 23.69 GiB memory in use.\n"
    )
    (start,) = documents(text)
    assert "error" not in start
    assert start["later_error"] == (
        "2.50 GiB could not be allocated, the card has 44.99 GiB, 1.20 GiB were free, the process held 23.69"
        " GiB, processes of the card held 20.10 GiB"
    )
    assert start["later_error_numbers"]["tried_bytes"] == gib(2.5)


def test_profiling_that_a_neighbour_disturbed() -> None:
    """A neighbour that gives memory back while vLLM measures voids the measure."""
    text = (
        "(EngineCore pid=90) ERROR 11-30 20:01:15 [core.py:1] EngineCore failed to start.\n"
        "(EngineCore pid=90) ERROR 11-30 20:01:15 [core.py:1] AssertionError: Error in memory profiling."
        " Initial free memory 30.12 GiB, current free memory 35.5 GiB. This happens when other processes"
        " sharing the same container release GPU memory while vLLM is profiling during initialization.\n"
    )
    (start,) = documents(text)
    assert start["error_kind"] == "profiling_disturbed"
    assert start["error_numbers"] == {"free_bytes": gib(30.12), "free_after_bytes": gib(35.5)}


def test_a_prompt_that_looks_like_a_start() -> None:
    """What a client writes is inside a request's line, which does not begin as an engine's own lines do."""
    text = v1_log("0.28.0") + (
        "(APIServer pid=1) INFO 11-30 20:05:00 [logger.py:1] Received request cmpl-1: prompt: 'vLLM API"
        " server version 9.9.9\\nGPU KV cache size: 1 tokens, CUDA out of memory. Tried to"
        " allocate 9.00 GiB', params: x\n"
    )
    (start,) = documents(text)
    assert (start["version"], start["kv_tokens"]) == ("0.28.0", 74_704)
    assert "later_error" not in start


def test_fit_trials_are_no_contexts() -> None:
    """With -lv 5 the contexts that --fit only tries are printed too: they hold nothing."""
    start = only(read_file(LOGS / "llamacpp-b11434-fit-trial-visible.log"))
    assert start.memory.kv_bytes == mib(64)
    assert start.memory.weights_bytes == mib(48.54)
    assert start.slots is not None
    assert start.slots.contexts == 1


def test_a_draft_has_a_context_of_its_own() -> None:
    """A draft model's weights and cache are in the process too."""
    start = only(read_file(LOGS / "llamacpp-b11434-draft.log"))
    assert start.memory.kv_bytes == 2 * mib(16)
    assert start.memory.weights_bytes == 2 * mib(48.54)
    assert start.kv_tokens == 2048
    assert start.slots is not None
    assert start.slots.contexts == 2


def test_a_router_and_its_children() -> None:
    """The router loads nothing; each child is a server of its own."""
    starts = read_file(LOGS / "llamacpp-b11434-router.log").starts
    assert [(start.model, start.ready, start.memory.kv_bytes) for start in starts] == [
        ("mdir/a.gguf", True, mib(16)),
        ("mdir/b.gguf", True, mib(16)),
    ]
    assert len({start.source for start in starts}) == 2


def test_a_server_that_slept() -> None:
    """Waking loads the model again: a start, of which the log says the device once only."""
    first, second = read_file(LOGS / "llamacpp-b11434-sleep.log").starts
    assert (first.ready, second.ready) == (True, True)
    assert second.memory == first.memory


def test_default_verbosity() -> None:
    """Without -lv 4 llama-server says its slots and nothing of memory."""
    start = only(read_file(LOGS / "llamacpp-b11434-default-verbosity.log"))
    assert (start.ready, start.max_model_len, start.kv_tokens, start.memory.kv_bytes) == (
        True,
        4096,
        None,
        None,
    )


def test_auto_fit() -> None:
    """--max-model-len -1: the length that vLLM made of it, and the model's own."""
    start = only(read_file(LOGS / "vllm-0.32.0-two-ranks-fitted.log"))
    assert (start.fitted_from, start.max_model_len, start.kv_tokens) == (2048, 608, 640)
    assert [rank.name for rank in start.ranks] == ["Worker_TP0", "Worker_TP1"]


def test_gpu_and_host_memory_of_a_llama_server() -> None:
    """What lies on the cards is counted; what lies in host memory is said apart."""
    text = (
        "build: 4701 (be3bbd62) with cc for x86_64-linux-gnu\n"
        "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4080 SUPER) - 15035 MiB"
        " free\nload_tensors:   CPU_Mapped model buffer size =  1640.62 MiB\n"
        "load_tensors:        CUDA0 model buffer size =  5434.38 MiB\n"
        "llama_init_from_model: n_seq_max     = 1\n"
        "llama_init_from_model: n_ctx         = 4096\n"
        "llama_kv_cache_init:        CPU KV buffer size =    16.00 MiB\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =   128.00 MiB\n"
        "llama_init_from_model: KV self size  =  144.00 MiB, K (f16):   72.00 MiB, V (f16):   72.00 MiB\n"
        "llama_init_from_model:  CUDA_Host  output buffer size =     0.58 MiB\n"
        "llama_init_from_model:      CUDA0 compute buffer size =   300.75 MiB\n"
        "llama_init_from_model:  CUDA_Host compute buffer size =    12.01 MiB\n"
        "main: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
    )
    (start,) = documents(text)
    assert start["version"] == "b4701"
    assert start["weights_bytes"] == mib(5434.38)
    assert start["kv_bytes"] == mib(128)
    assert start["activation_bytes"] == mib(300.75)
    assert start["free_bytes"] == mib(15035)
    assert "total_bytes" not in start
    assert start["host_bytes"] == mib(1640.62) + mib(16) + mib(0.58) + mib(12.01)
    assert start["ready"] is True


def test_llama_server_of_2023() -> None:
    """Totals without the names of devices."""
    text = (
        "main: build = 1620 (fe680e3)\n"
        "llm_load_tensors: mem required  =   70.44 MiB\n"
        "llm_load_tensors: VRAM used: 5563.55 MiB\n"
        "llama_new_context_with_model: n_ctx      = 4096\n"
        "llama_kv_cache_init: VRAM kv self = 2048.00 MiB\n"
        "llama_new_context_with_model: kv self size  = 2048.00 MiB\n"
        "llama_build_graph: non-view tensors processed: 740/740\n"
        "llama_new_context_with_model: compute buffer total size = 282.00 MiB\n"
        "llama_new_context_with_model: VRAM scratch buffer: 278.68 MiB\n"
    )
    (start,) = documents(text)
    assert (start["version"], start["kv_tokens"]) == ("b1620", 4096)
    assert start["weights_bytes"] == mib(5563.55)
    assert start["kv_bytes"] == mib(2048)
    assert start["activation_bytes"] == mib(278.68)
    assert start["host_bytes"] == mib(70.44) + mib(282)


def test_windows_and_full_layers() -> None:
    """A model with windows prints two caches a device, which add up."""
    text = (
        "llama_context: n_ctx         = 8192\n"
        "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n"
        "llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB\n"
        "llama_kv_cache: size =   64.00 MiB (  8192 cells,   5 layers,  4/1 seqs), K (f16):   32.00 MiB, V"
        " (f16):   32.00 MiB\n"
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 2560 cells\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   100.00 MiB\n"
    )
    assert only(read(text)).memory.kv_bytes == mib(164)


def test_context_lowered_by_fit() -> None:
    """--fit lowers a context that was not given: what it was and what it is."""
    text = (
        "common_init_result: fitting params to device memory, for bugs during this step try to reproduce"
        " them\nllama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device"
        " memory by 3000 MiB\nllama_params_fit_impl: context size reduced from 131072 to 40960 -> need 5632"
        " MiB less memory in total\nllama_params_fit: successfully fit params to free device memory\n"
        "llama_context: n_ctx         = 40960\n"
        "llama_kv_cache:      CUDA0 KV buffer size =  2560.00 MiB\n"
    )
    start = only(read(text))
    assert start.slots is not None
    assert (start.slots.reduced_from, start.kv_tokens, start.memory.kv_bytes) == (131_072, 40_960, mib(2560))


def test_breakdown_of_a_card() -> None:
    """The table that llama-server prints at its end says the card's size."""
    text = (
        "load_tensors:        CUDA0 model buffer size =  5434.38 MiB\n"
        "common_memory_breakdown_print: | memory breakdown [MiB] | total   free     self   model   context  "
        " compute    unaccounted |\n"
        "common_memory_breakdown_print: |   - CUDA0 (RTX 3090)   | 24124 =  9210 + (14000 =  5434 +    8192"
        " +     374) +         914 |\n"
    )
    (start,) = documents(text)
    assert (start["total_bytes"], start["weights_bytes"]) == (mib(24124), mib(5434.38))
    assert start["devices"][0]["description"] == "RTX 3090"


def test_lines_that_any_program_writes() -> None:
    """A build number, a web server that came up: no start of an engine."""
    assert read("build: 4701 (be3bbd62)\nINFO:     Application startup complete.\n").starts == ()
