#!/bin/sh
set -eu
exec vllm serve /models/eight \
    --served-model-name chat \
    --kv-cache-memory-bytes 2G \
    --max-model-len 32768
