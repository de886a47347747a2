"""llama-server's start-up lines, 2023-11 to b11434, and ik_llama.cpp's.

Read in src/llama-*.cpp, common/common.cpp, common/fit.cpp, tools/server (examples/server) and ggml-cuda.cu of
the trees in llama-cpp-python 0.2.20, 0.2.90, 0.3.8 and 0.3.16, of b9093, and in runs of b11434.
"""

from __future__ import annotations

import re

from kvwatch.startup_log.amounts import NUMBER

_MIB = rf"({NUMBER}) Mi?B"

BUILD = re.compile(
    r"\bbuild: (\d+) \(|\bbuild = (\d+) \(|build_info: b?(\d+)|print_info: build (\d+) \(|build"
    r" info:.* build=(\d+)"
)
BEGIN = re.compile(
    r"llama_server: initializing|\bbuild: \d+ \(|\bbuild = \d+ \(|build_info: |print_info: build \d+ \(|build"
    r" info: |ggml_(?:cuda_init|init_cublas|vk_init|sycl_init): found \d+|device_info:"
)
LOADING = re.compile(
    r"load_model: loading model '?([^']*)'?|loaded meta data with \d+ key-value pairs and \d+"
    r" tensors from (.*?) \(version"
)
DRAFT = re.compile(r"loading draft model")
WAKING = re.compile(r"server is exiting sleeping state")
READY = re.compile(
    r"(?:llama_server|main|srv\s.*?): (?:model loaded|server is listening|listening on|starting the main"
    r" loop)|HTTP server listening"
)
TRIAL_BEGINS = re.compile(r"fitting params to device memory|params_fit\w*: getting device memory data")
TRIAL_ENDS = re.compile(r"fitting params to free memory took|successfully fit params|failed to fit params")
DEFICIT = re.compile(r"need to (?:reduce device memory by|use) (\d{1,9}) MiB")
REDUCED = re.compile(r"context size reduced from (\d{1,12}) to (\d{1,12})")
CONTEXT = re.compile(
    r"constructing llama_context|llama_context: n_seq_max +=|new_context_with_model: n_(?:seq_max|ctx) +="
)
SETTING = re.compile(
    r"(?:llama_context|new_context_with_model|init_from_model|llama_init): (n_\w+|kv_unified) += (\S+)"
)
SLOTS = re.compile(
    r"n_slots[ =]+(\d{1,6})(?:.*?n_ctx_slot[ =]+(\d{1,12}))?(?:.*?kv_unified[ =]+'?(true|false))?"
)
SLOT_LENGTH = re.compile(r"new slot,? .*?n_ctx(?:_slot)?[ =]+(\d{1,12})|new slot:.*? n_ctx_slot=(\d{1,12})")
DEVICE = re.compile(r"- +(\S+) *: (.{1,200}?) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)")
USING = re.compile(r"using device (\S+) \((.{1,200}?)\)(?: \([^)]{0,80}\))? - (\d{1,9}) MiB free")
BREAKDOWN = re.compile(r"\| +- (\S+) (?:\((.{1,100}?)\) +)?\| +(\d{1,9}) = +\d{1,9} \+ ")
MODEL = re.compile(rf"load_tensors: +(\S+) (?:model )?buffer size *= *{_MIB}")
KV = re.compile(rf": +(\S+)(?: \S[^:=]{{0,60}})? KV buffer size *= *{_MIB}")
RECURRENT = re.compile(rf": +(\S+) RS buffer size *= *{_MIB}")
OUTPUT = re.compile(rf": +(\S+) +output buffer size *= *{_MIB}")
COMPUTE = re.compile(rf": +(\S+) +compute buffer size *= *{_MIB}")
# `KV self size = 4352.00 MiB, K (q8_0): ..., V (q8_0): ...` to 2025-05, `llama_kv_cache: size = ...` since.
KV_SIZE = re.compile(rf"(?i)KV self size *= *{_MIB}")
CACHE_SIZE = re.compile(rf"llama_kv_cache\w*: size = *{_MIB} \( *(\d{{1,12}}) cells, +(\d{{1,6}}) layers")
RECURRENT_SIZE = re.compile(rf"llama_memory_recurrent\w*: size = *{_MIB}")
TYPES = re.compile(r"(?:K|c\^KV) \((\w+)\):.*?(?:V|kv\^T) \((\w+)\)|(?:K|c\^KV) \((\w+)\):")
OLD = (
    (re.compile(rf"VRAM used: *{_MIB}"), "weights", "GPU"),
    (re.compile(rf"mem required += *{_MIB}"), "weights", "CPU"),
    (re.compile(rf"VRAM kv self = *{_MIB}"), "kv", "GPU"),
    (re.compile(rf"VRAM scratch buffer: *{_MIB}"), "compute", "GPU"),
    (re.compile(rf"compute buffer total size = *{_MIB}"), "compute", "CPU"),
)
"""2023: totals without the names of devices."""
FALCON = re.compile(rf"memory_size = *{_MIB}, n_mem")

WORDS = (
    " buffer size",
    "elf size",
    "llama_kv_cache",
    "llama_memory_recurrent",
    "llama_context",
    "new_context_with_model",
    "llama_server",
    "model: loading model",
    "loading draft model",
    "loaded meta data",
    "model loaded",
    "build",
    "n_slots",
    "new slot",
    "device_info",
    "using device",
    " MiB free)",
    "breakdown",
    "params_fit",
    "fit params",
    "fitting params",
    "exiting sleeping",
    "server is listening",
    "starting the main loop",
    "ggml_cuda_init",
    "ggml_init_cublas",
    "ggml_vk_init",
    "ggml_sycl_init",
    "mem required",
    "VRAM",
    "memory_size =",
    "compute buffer",
)
