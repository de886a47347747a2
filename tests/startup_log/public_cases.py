"""Start-up lines as public reports quote them, each with the address and what it says.

Where a report quotes no line but its figures, the line is the engine's own format with those figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.startup_log.reading import gib, mib


@dataclass(frozen=True, kw_only=True)
class Case:
    """One report."""

    url: str
    log: str
    starts: tuple[dict[str, Any], ...]
    """What each start must say; None: must not be there."""


_V = "https://github.com/vllm-project/vllm/"
_PROFILED = (
    "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB"
    " peak_torch_memory={}GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size={}GiB"
    " gpu_memory_utilization=0.90\n"
)
_RTX_3090 = {
    "engine": "vllm",
    "total_bytes": gib(23.58),
    "share": 0.9,
    "weights_bytes": gib(14.9888),
    "non_torch_bytes": gib(0.35),
}

CASES: dict[str, Case] = {
    "C01": Case(
        url=f"{_V}issues/10517",
        log="Loading model weights took 14.9888 GB\n"
        + _PROFILED.format("17.06", "3.81")
        + "GPU blocks: 1952, # CPU blocks: 2048\nMaximum concurrency for 20000 tokens per request: 1.56x\n",
        starts=(
            {
                **_RTX_3090,
                "kv_bytes": gib(3.81),
                "num_blocks": 1952,
                "max_concurrency": 1.56,
                "max_model_len": 20000,
                "error": None,
            },
        ),
    ),
    "C02": Case(
        url=f"{_V}issues/10517",
        log="Loading model weights took 14.9888 GB\n"
        + _PROFILED.format("17.98", "2.89")
        + "# GPU blocks: 1478, # CPU blocks: 2048\nMaximum concurrency for 29000 tokens per request: 0.82x\n"
        "The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV"
        " cache (23648). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when"
        " initializing the engine.\n",
        starts=(
            {
                **_RTX_3090,
                "kv_bytes": gib(2.89),
                "num_blocks": 1478,
                "max_concurrency": 0.82,
                "max_model_len": 29000,
                "error": "one request of 29,000 tokens does not fit into a KV cache of 23,648; the largest"
                " --max-model-len that fits is 23,648",
                "error_numbers": {
                    "max_model_len": 29000,
                    "available_tokens": 23648,
                    "estimated_max_model_len": 23648,
                },
            },
        ),
    ),
    "C04": Case(
        url=f"{_V}issues/21348",
        log="Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens\n",
        starts=({"engine": "vllm", "kv_bytes": gib(8.11), "kv_tokens": 178_880, "num_blocks": None},),
    ),
    "C05": Case(
        url=f"{_V}issues/21348",
        log="KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB\n",
        starts=({"engine": "sglang", "kv_bytes": 2 * gib(8.23), "kv_tokens": 367_404},),
    ),
    "C06": Case(
        url=f"{_V}issues/13061",
        log="(VllmWorkerProcess pid=3) INFO 02-11 10:00:00 worker.py:267] model weights take 13.93GiB;"
        " non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.30GiB; the rest of the"
        " memory reserved for KV Cache is 8.69GiB.\n"
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be"
        " stored in KV cache (81536). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
        " when initializing the engine.\n",
        starts=(
            {
                "kv_bytes": gib(8.69),
                "max_model_len": 131_072,
                "error_kind": "kv_too_small",
                "error_numbers": {
                    "max_model_len": 131_072,
                    "available_tokens": 81_536,
                    "estimated_max_model_len": 81_536,
                },
            },
        ),
    ),
    "C07": Case(
        url=f"{_V}pull/12569",
        log="INFO 01-30 03:18:12 gpu_model_runner.py:848] Loading model weights took 67.7229 GB\n"
        "INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381\n"
        "INFO 01-30 03:19:14 kv_cache_utils.py:398] Maximum concurrency for 2048 tokens per"
        " request: 10.79x\n",
        starts=(
            {
                "weights_bytes": gib(67.7229),
                "num_blocks": 1381,
                "max_model_len": 2048,
                "max_concurrency": 10.79,
                "kv_bytes": None,
                "moment": "01-30 03:18:12",
            },
        ),
    ),
    "C08": Case(
        url=f"{_V}pull/13596",
        log="INFO 02-20 01:02:03 [kv_cache_utils.py:522] GPU KV cache size: 2,042,016 tokens\n"
        "INFO 02-20 01:02:03 [kv_cache_utils.py:525] Maximum concurrency for 2,048 tokens per"
        " request: 997.08x\n",
        starts=({"kv_tokens": 2_042_016, "max_model_len": 2048, "max_concurrency": 997.08},),
    ),
    "C09": Case(
        url=f"{_V}issues/2418",
        log="INFO 01-10 08:00:00 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512\n"
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be"
        " stored in KV cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
        " when initializing the engine.\n",
        starts=({"num_blocks": 229, "max_model_len": 4096, "error_kind": "kv_too_small"},),
    ),
    "C10": Case(
        url="https://github.com/OpenRLHF/OpenRLHF/issues/336",
        log="2024-06-28T06:11:52.685300953Z (LLMRayActor pid=20770) INFO 06-28 06:11:45"
        " distributed_gpu_executor.py:45] # GPU blocks: 378, # CPU blocks: 1638\n"
        "2024-06-28T06:11:52.685302801Z (LLMRayActor pid=20770) ERROR 06-28 06:11:45 worker_base.py:145]"
        " Error executing method initialize_cache. This might cause deadlock in distributed execution.\n"
        "2024-06-28T06:11:52.685340690Z (LLMRayActor pid=20770) ERROR 06-28 06:11:45 worker_base.py:145]"
        " ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be"
        " stored in KV cache (6048). Try increasing `gpu_memory_utilization` or decreasing"
        " `max_model_len` when initializing the engine.\n",
        starts=(
            {
                "num_blocks": 378,
                "max_model_len": 8192,
                "error_kind": "kv_too_small",
                "error_numbers": {
                    "max_model_len": 8192,
                    "available_tokens": 6048,
                    "estimated_max_model_len": 6048,
                },
            },
        ),
    ),
    "C12": Case(
        url="https://github.com/eugr/spark-vllm-docker/issues/396",
        log="Available KV cache memory: 22.5 GiB\n"
        "ValueError: To serve at least one request with the model's max seq len (196608), 23.25 GiB KV cache"
        " is needed, which is larger than the available KV cache memory (22.5 GiB). Based on the available"
        " memory, the estimated maximum model length is 190272.\n"
        "(APIServer pid=1) INFO 09-14 10:00:00 [api_server.py:1] vLLM API server version"
        " 0.29.1rc1.dev17+gd2d649e67\n(Worker_TP0 pid=9) INFO 09-14 10:01:00 [gpu_worker.py:1] Available KV"
        " cache memory: 28.74 GiB\n(EngineCore pid=8) INFO 09-14 10:01:00 [kv_cache_utils.py:1] GPU KV cache"
        " size: 240,816 tokens, Maximum concurrency for 196,608 tokens per request: 1.22x\n",
        starts=(
            {
                "kv_bytes": gib(22.5),
                "max_model_len": 196_608,
                "error_kind": "kv_too_small",
                "error_numbers": {
                    "max_model_len": 196_608,
                    "needed_bytes": gib(23.25),
                    "available_bytes": gib(22.5),
                    "estimated_max_model_len": 190_272,
                },
            },
            {
                "version": "0.29.1rc1.dev17+gd2d649e67",
                "kv_bytes": gib(28.74),
                "kv_tokens": 240_816,
                "max_model_len": 196_608,
                "max_concurrency": 1.22,
                "error": None,
            },
        ),
    ),
    "C13": Case(
        url="https://github.com/guqiong96/Lvllm/issues/35",
        log="        (EngineCore_DP0 pid=15098) INFO 02-12 08:33:42 [gpu_model_runner.py:4216] Model loading"
        " took 11.55 GiB memory and 1940.360672 seconds\n"
        "        (EngineCore_DP0 pid=15098) INFO 02-12 08:34:25 [gpu_worker.py:360] Available KV cache"
        " memory: 12.57 GiB\n        (EngineCore_DP0 pid=15098) INFO 02-12 08:34:25 [kv_cache_utils.py:1307]"
        " GPU KV cache size: 53,136 tokens\n",
        starts=({"weights_bytes": gib(11.55), "kv_bytes": gib(12.57), "kv_tokens": 53_136},),
    ),
    "C14": Case(
        url="https://github.com/dphnAI/sonar/pull/166",
        log="INFO:     # GPU blocks: 13228, # CPU blocks: 2048\n",
        starts=({"num_blocks": 13_228},),
    ),
    "C15": Case(
        url=f"{_V}issues/27508",
        log="(EngineCore_DP0 pid=8884) ERROR 10-25 11:00:00 [core.py:708] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=8884) ERROR 10-25 11:00:00 [core.py:708] ValueError: To serve at least one"
        " request with the models's max seq len (131072), (4.54 GiB KV cache is needed, which is larger than"
        " the available KV cache memory (1.71 GiB). Based on the available memory, the estimated maximum"
        " model length is 48384. Try increasing `gpu_memory_utilization` or decreasing"
        " `max_model_len` when initializing the engine.\n",
        starts=(
            {
                "max_model_len": 131_072,
                "kv_bytes": gib(1.71),
                "error": "one request of 131,072 tokens needs 4.54 GiB of KV cache and there are 1.71 GiB:"
                " 2.83 GiB too little; the largest --max-model-len that fits is 48,384",
            },
        ),
    ),
    "C15 out of memory": Case(
        url=f"{_V}issues/27508",
        log="(EngineCore_DP0 pid=8884) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00"
        " MiB. GPU 0 has a total capacity of 79.11 GiB of which 140.75 MiB is free. Process 3270336 has 78.96"
        " GiB memory in use. Of the allocated memory 68.83 GiB is allocated by PyTorch, with 660.00 MiB"
        " allocated in private pools (e.g., CUDA Graphs), and 331.08 MiB is reserved by PyTorch but"
        " unallocated.\n",
        starts=(
            {
                "total_bytes": gib(79.11),
                "error_kind": "out_of_memory",
                "error_numbers": {
                    "tried_bytes": mib(786),
                    "total_bytes": gib(79.11),
                    "free_bytes": mib(140.75),
                    "processes_bytes": gib(78.96),
                    "torch_bytes": gib(68.83),
                    "unused_bytes": mib(331.08),
                },
            },
        ),
    ),
    "C16": Case(
        url="https://github.com/mitchross/talos-argocd-proxmox/pull/1995",
        log="(Worker_TP0 pid=201) INFO 08-16 09:00:00 [gpu_worker.py:541] Available KV cache memory: 4.99"
        " GiB\n(EngineCore pid=99) INFO 08-16 09:00:00 [kv_cache_utils.py:2146] GPU KV cache size: 302,921"
        " tokens\n(EngineCore pid=99) INFO 08-16 09:00:00 [kv_cache_utils.py:2147] Maximum concurrency for"
        " 131,072 tokens per request: 2.31x\n",
        starts=(
            {
                "kv_bytes": gib(4.99),
                "kv_tokens": 302_921,
                "max_model_len": 131_072,
                "max_concurrency": 2.31,
            },
        ),
    ),
    "C19": Case(
        url=f"{_V}issues/28228",
        log="(Worker_TP1 pid=302) INFO 11-06 12:00:00 [gpu_worker.py:298] Available KV cache memory: 2.30"
        " GiB\n(Worker_TP0 pid=301) INFO 11-06 12:00:00 [gpu_worker.py:298] Available KV cache memory: 2.34"
        " GiB\n(EngineCore_DP0 pid=300) WARNING 11-06 12:00:00 [kv_cache_utils.py:982] Add 1 padding layers,"
        " may waste at most 5.00% KV cache memory\n"
        "(EngineCore_DP0 pid=300) INFO 11-06 12:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 75,840"
        " tokens\n(EngineCore_DP0 pid=300) INFO 11-06 12:00:00 [kv_cache_utils.py:1091] Maximum concurrency"
        " for 120,000 tokens per request: 2.48x\n",
        starts=(
            {
                "kv_bytes": gib(2.30),
                "kv_tokens": 75_840,
                "max_model_len": 120_000,
                "max_concurrency": 2.48,
            },
        ),
    ),
    "C21": Case(
        url="https://www.redhat.com/pt-br/blog/enhancing-deepseek-models-mla-and-fp8-optimizations-vllm",
        log="INFO 02-01 10:00:00 kv_cache_utils.py:522] GPU KV cache size: 512,000 tokens\n",
        starts=({"kv_tokens": 512_000},),
    ),
    "C24": Case(
        url=f"{_V}issues/44376",
        log="ValueError: To serve at least one request with the model's max seq len (30000), (6.66 GiB KV"
        " cache is needed, which is larger than the available KV cache memory (5.44 GiB). Based on the"
        " available memory, the estimated maximum model length is 13528. Try increasing"
        " `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n",
        starts=(
            {
                "max_model_len": 30_000,
                "error_numbers": {
                    "max_model_len": 30_000,
                    "needed_bytes": gib(6.66),
                    "available_bytes": gib(5.44),
                    "estimated_max_model_len": 13_528,
                },
            },
        ),
    ),
    "C25": Case(
        url="https://github.com/ggml-org/llama.cpp/issues/11200",
        log="llama_new_context_with_model: n_ctx      = 32768\n"
        "llama_kv_cache_init:      CUDA0 KV buffer size =  2788.00 MiB\n"
        "llama_kv_cache_init:      CUDA1 KV buffer size =  1564.00 MiB\n"
        "llama_new_context_with_model: KV self size  = 4352.00 MiB, K (q8_0): 2176.00 MiB, V"
        " (q8_0): 2176.00 MiB\n",
        starts=(
            {
                "engine": "llama.cpp",
                "kv_bytes": mib(4352),
                "kv_tokens": 32_768,
                "slots": {
                    "cache_type_k": "q8_0",
                    "cache_type_v": "q8_0",
                    "fit_seen": False,
                    "contexts": 1,
                },
            },
        ),
    ),
    "C26": Case(
        url="https://github.com/abetlen/llama-cpp-python/issues/66",
        log="llama_init_from_file: kv self size  = 1560.00 MB\n",
        starts=({"engine": "llama.cpp", "kv_bytes": mib(1560)},),
    ),
    "C29": Case(
        url="https://github.com/ikawrakow/ik_llama.cpp/pull/259",
        log="llama_new_context_with_model: n_ctx      = 32768\n"
        "llama_new_context_with_model: KV self size  = 1166.62 MiB, c^KV (q8_0): 1166.62 MiB,"
        " kv^T: not used\n",
        starts=({"engine": "llama.cpp", "kv_bytes": mib(1166.62), "kv_tokens": 32_768},),
    ),
    "C31": Case(
        url="https://github.com/ggml-org/ggml/pull/231",
        log="falcon_model_load: memory_size =   480.00 MB, n_mem = 122880\n",
        starts=({"engine": "llama.cpp", "kv_bytes": mib(480)},),
    ),
    "C32": Case(
        url="https://github.com/GeniePod/genie-claw/issues/410",
        log="llama_context: n_ctx         = 32768\n"
        "llama_kv_cache: size =  768.00 MiB ( 32768 cells,  24 layers,  1/1 seqs), K (f16):  384.00 MiB, V"
        " (f16):  384.00 MiB\n"
        "llama_memory_recurrent: size =   72.98 MiB (     1 cells,  24 layers,  1 seqs), R (f32):    0.98"
        " MiB, S (f32):   72.00 MiB\n",
        starts=(
            {
                "engine": "llama.cpp",
                "kv_bytes": mib(768),
                "recurrent_bytes": mib(72.98),
                "kv_tokens": 32_768,
            },
        ),
    ),
    "C33": Case(
        url="https://github.com/ggml-org/llama.cpp/pull/23792",
        log="llama_memory_recurrent:      CUDA0 RS buffer size =   174.56 MiB\n"
        "llama_memory_recurrent:      CUDA1 RS buffer size =   124.69 MiB\n"
        "llama_memory_recurrent: size =  299.25 MiB (     2 cells,  64 layers,  2 seqs), R (f32):   11.25"
        " MiB, S (f32):  288.00 MiB\n"
        "srv    load_model: initializing, n_slots = 2, n_ctx_slot = 24576, kv_unified = 'false'\n",
        starts=(
            {
                "engine": "llama.cpp",
                "recurrent_bytes": mib(174.56) + mib(124.69),
                "kv_tokens": 49_152,
                "max_model_len": 24_576,
            },
        ),
    ),
    "C39": Case(
        url=f"{_V}issues/55827",
        log="(EngineCore pid=7) INFO 09-21 10:00:00 [gpu_worker.py:578] Available KV cache memory: -3.21"
        " GiB\n(EngineCore pid=7) ERROR 09-21 10:00:00 [core.py:1346] EngineCore failed to start.\n"
        "(EngineCore pid=7) ERROR 09-21 10:00:00 [core.py:1346] ValueError: No available memory for the cache"
        " blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n",
        starts=(
            {
                "kv_bytes": gib(-3.21),
                "error_kind": "no_kv_memory",
                "error": "the share is 3.21 GiB too small before the first block of KV cache",
            },
        ),
    ),
    "C41": Case(
        url="https://github.com/noonghunna/club-3090/issues/295",
        log="(EngineCore pid=43) INFO 08-01 08:00:00 [kv_cache_utils.py:1870] GPU KV cache size: 620,944"
        " tokens, Maximum concurrency for 262,144 tokens per request: 2.37x\n",
        starts=({"kv_tokens": 620_944, "max_model_len": 262_144, "max_concurrency": 2.37},),
    ),
    "C42": Case(
        url=f"{_V}issues/54458",
        log="GPU KV cache size: 1,077,542 tokens, Maximum concurrency for 262,144 tokens per request:"
        " 4.11x\n",
        starts=({"kv_tokens": 1_077_542, "max_model_len": 262_144, "max_concurrency": 4.11},),
    ),
}

RACE = tuple(
    "(APIServer pid=1) INFO 09-21 10:00:00 [api_server.py:1] vLLM API server version 0.28.1rc1\n"
    "(APIServer pid=1) INFO 09-21 10:00:00 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-ASR-1.7B'}\n"
    "(EngineCore pid=7) INFO 09-21 10:00:30 [gpu_model_runner.py:5516] Model loading took 3.87 GiB memory and"
    " 2.1 seconds\n"
    f"(EngineCore pid=7) INFO 09-21 10:01:00 [gpu_worker.py:578] Available KV cache memory: {kv} GiB\n"
    f"(EngineCore pid=7) INFO 09-21 10:01:00 [kv_cache_utils.py:1869] GPU KV cache size: {tokens} tokens,"
    f" Maximum concurrency for 8,192 tokens per request: {concurrency}x\n"
    for kv, tokens, concurrency in (("4.72", "44,176", "5.39"), ("1.84", "17,216", "2.10"))
)
"""C39: the same flags, started alone and beside a neighbour that was starting too."""
