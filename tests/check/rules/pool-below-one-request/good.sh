#!/bin/sh
set -eu
exec vllm serve /models/eight \
    --served-model-name chat \
    --kv-cache-memory-bytes 6G \
    --max-model-len 16384
