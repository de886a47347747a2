"""In which releases of vLLM an option of `vllm serve` exists, as far as it was read.

Read in `engine/arg_utils.py` and `entrypoints/openai/cli_args.py` of 0.8.5, 0.9.1, 0.10.0, 0.10.2, 0.11.0,
0.11.2, 0.12.0, 0.13.0, 0.14.1, 0.15.0, 0.18.1, 0.20.0, 0.20.2, 0.22.0, 0.25.1 to 0.32.0: each line of a table
says between which two of these an option came or went. Between the two it is not known; an option in neither
table is in all.
"""

from __future__ import annotations

OLDEST, NEWEST = (0, 8, 5), (0, 32)

_APPEARED = """
0.8.5 0.9.1
    --cuda-graph-sizes --data-parallel-address --data-parallel-backend --data-parallel-rpc-port
    --data-parallel-size-local --disable-hybrid-kv-cache-manager
    --enable-multimodal-encoder-data-parallel --enable-prompt-embeds
    --guided-decoding-disable-additional-properties --guided-decoding-disable-any-whitespace
    --guided-decoding-disable-fallback --kv-events-config --pt-load-map-location -dpa -dpb -dpl -dpp
0.9.1 0.10.0
    --async-scheduling --data-parallel-hybrid-lb --data-parallel-rank --data-parallel-start-rank
    --default-mm-loras --enable-eplb --eplb-log-balancedness --eplb-step-interval --eplb-window-size
    --interleave-mm-strings --logprobs-mode --media-io-kwargs --num-redundant-experts
    --override-attention-dtype -dpn -dpr --enable-force-include-usage
    --enable-tokenizer-info-endpoint
0.10.0 0.10.2
    --convert --decode-context-parallel-size --enable-log-requests --eplb-config
    --io-processor-plugin --kv-cache-memory-bytes --kv-sharing-fast-prefill --logits-processors
    --mamba-cache-dtype --mamba-ssm-cache-dtype --mm-encoder-tp-mode --mm-processor-cache-gb
    --runner --safetensors-load-strategy --skip-mm-profiling -dcp --enable-log-outputs
    --exclude-tools-when-tool-choice-none --h11-max-header-count --h11-max-incomplete-event-size
    --log-error-stack --tool-server --uds
0.10.2 0.11.0
    --allowed-media-domains --dbo-decode-token-threshold --dbo-prefill-token-threshold --enable-dbo
    --expert-placement-strategy --mm-processor-cache-type --mm-shm-cache-max-object-size-mb
    --pooler-config --structured-outputs-config --video-pruning-rate --trust-request-chat-template
0.11.0 0.11.2
    --aggregate-engine-logging --all2all-backend --cudagraph-capture-sizes
    --data-parallel-external-lb --dcp-kv-cache-interleave-size --disable-nccl-for-dp-synchronization
    --ec-transfer-config --enable-mm-embeds --kv-offloading-backend --kv-offloading-size
    --mamba-block-size --master-addr --master-port --max-cudagraph-capture-size
    --mm-encoder-attn-backend --nnodes --node-rank --reasoning-parser-plugin --stream-interval -dpe
    -dph -n -r --tokens-only
0.11.2 0.12.0
    --cp-kv-cache-interleave-size --kv-cache-metrics --kv-cache-metrics-sample --optimization-level
    --prefill-context-parallel-size -cc -pcp
0.12.0 0.13.0
    --attention-backend --attention-config --cudagraph-metrics --enable-layerwise-nvtx-tracing
    --profiler-config -ac
0.13.0 0.14.1
    --allow-deprecated-quantization --enable-logging-iteration-details --enable-mfu-metrics
    --enable-return-routed-experts --enable-tower-connector-lora --ubatch-size -ep
    --default-chat-template-kwargs --enable-log-deltas --enable-offline-docs
0.14.1 0.15.0
    --mamba-cache-mode --mm-encoder-only --ssl-ciphers
0.15.0 0.18.1
    --cpu-offload-params --dcp-comm-backend --distributed-timeout-seconds --enable-elastic-ep
    --enable-ep-weight-filter --enable-flashinfer-autotune --fail-on-environ-validation
    --gdn-prefill-backend --kernel-config --language-model-only --moe-backend --offload-backend
    --offload-group-size --offload-num-in-group --offload-params --offload-prefetch-step
    --performance-mode --shutdown-timeout --specialize-active-lora --weight-transfer-config
    --disable-access-log-for-endpoints
0.18.1 0.20.0
    --enable-mamba-cache-stochastic-rounding --ir-op-priority --kv-cache-dtype-skip-layers
    --lora-target-modules --mamba-backend --mamba-cache-philox-rounds --mm-tensor-ipc --numa-bind
    --numa-bind-cpus --numa-bind-nodes --reasoning-config --renderer-num-workers
    --scheduler-reserve-full-isl -sc --enable-flash-late-interaction
0.20.2 0.22.0
    --cpu-distributed-timeout-seconds --data-parallel-multi-port-external-lb
    --enable-cumem-allocator --enable-mixed-moe-lora-format --linear-backend --mm-encoder-attn-dtype
    --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin --mm-encoder-fp8-scale-save-path
    --quantization-config --safetensors-prefetch-block-size --safetensors-prefetch-num-threads
    --spec-method --spec-model --spec-tokens --use-fp64-gumbel -dpm --data-parallel-supervisor-port
    --dp-supervisor-probe-failure-threshold --dp-supervisor-probe-interval-s
    --dp-supervisor-probe-timeout-s --fingerprint-mode --fingerprint-value
0.22.0 0.25.1
    --device-ids --diffusion-config --jit-monitor-mode --jit-monitor-verbose --mm-ipc-gpu-memory-gb
    --model-class-overrides --prefill-schedule-interval --watermark -dc --enable-per-request-metrics
0.25.1 0.26.0
    --enable-bf16x3-router-gemm --enable-moe-shared-loras --max-num-scheduled-tokens
    --prefix-match-unit
0.26.0 0.27.0
    --enable-fault-tolerance --fault-tolerance-config --kda-prefill-backend --mamba-ssu-algorithm
    --mm-hasher-algorithm --replayssm-buffer-len --use-replayssm --video-pruning-method
    --cohere-format --cohere-is-reasoning-model
0.27.0 0.28.0
    --ec-manager-config --mm-device-do-normalize --mm-processor-device --return-sampling-mask
0.28.0 0.29.0
    --dcp-q-replicate --enable-batch-sharded-sampling --enable-trace-replay --max-num-queued-reqs
    --max-num-queued-tokens --per-request-spec-decode-metrics --prefix-cache-retention-interval
0.29.0 0.30.0
    --dp-sync-interval --elastic-ep-max-dp-size --enable-mamba-fine-grained-prefix-cache
    --enable-nccl-comm-suspend --engram-config --kda-decode-backend --sparse-indexer-topk-backend
    --watermark-config
0.30.0 0.31.0
    --aux-output-config --device-memory-utilization --enable-mamba-shared-prefix-checkpoint
    --log-config-file --log-level --logging-config --long-prefill-token-threshold-adaptive
    --max-lora-cls-labels --max-num-active-seqs --sleep-preserve-parameter-names
    --swa-bounded-replay
0.28.0 0.32.0
    --anthropic-disabled-thinking-effort --enable-scale-out --grpc-port --sse-keep-alive-interval
    --tool-strict-level --trust-request-mm-kwargs
0.31.0 0.32.0
    --custom-histogram-buckets --enable-hc-sp --enable-shm-tensor-arena
    --sleep-mode-offload-cudagraph
"""
"""Absent in the first release, there in the second."""

_VANISHED = """
0.9.1 0.10.0
    --device --enable-reasoning --max-prompt-adapter-token --max-prompt-adapters
    --qlora-adapter-name-or-path --tokenizer-pool-extra-config --tokenizer-pool-size
    --tokenizer-pool-type --use-v2-block-manager --prompt-adapters
0.10.0 0.10.2
    --enable-prompt-adapter --multi-step-stream-outputs --num-scheduler-steps
    --override-neuron-config
0.10.2 0.11.0
    --disable-async-output-proc --max-seq-len-to-capture --preemption-mode --scheduler-delay-factor
0.11.0 0.11.2
    --enable-lora-bias --rope-scaling --rope-theta
0.11.2 0.12.0
    --eplb-log-balancedness --eplb-step-interval --eplb-window-size --guided-decoding-backend
    --guided-decoding-disable-additional-properties --guided-decoding-disable-any-whitespace
    --guided-decoding-disable-fallback --lora-extra-vocab-size --num-lookahead-slots
    --num-redundant-experts --override-pooler-config
0.12.0 0.13.0
    --cuda-graph-sizes --disable-mm-preprocessor-cache --enable-multimodal-encoder-data-parallel
    --task
0.15.0 0.18.1
    --disable-log-requests --logits-processor-pattern --swap-space
0.18.1 0.20.0
    --disable-frontend-multiprocessing
0.26.0 0.27.0
    --max-long-partial-prefills --max-num-partial-prefills
0.27.0 0.28.0
    --calculate-kv-scales --override-attention-dtype
0.29.0 0.30.0
    --enable-bf16x3-router-gemm
0.30.0 0.31.0
    --enable-mamba-fine-grained-prefix-cache
"""
"""There in the first release, absent in the second."""


def _read(table: str) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    for line in table.strip().splitlines():
        if line.startswith(" "):
            found.update(dict.fromkeys(line.split(), (before, after)))
        else:
            before, after = (tuple(map(int, word.split("."))) for word in line.split())
    return found


APPEARED = _read(_APPEARED)
VANISHED = _read(_VANISHED)


def absent_since(name: str, release: tuple[int, ...]) -> tuple[tuple[int, ...], bool] | None:
    """Return the release read that proves that an option is not there, and whether it came later.

    None where it is there, or where that is not known.
    """
    came, went = APPEARED.get(name), VANISHED.get(name)
    if came is not None and release <= came[0]:
        return came[1], True
    if went is not None and release >= went[1]:
        return went[0], False
    return None
