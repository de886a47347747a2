#!/bin/sh
set -eu
exec llama-server -m /models/plain.gguf --alias chat \
    -c 8192 -np 1 -ngl all \
    --cache-type-v q8_0
