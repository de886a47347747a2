#!/usr/bin/env bash
set -euo pipefail

MODELS=${MODELS:-/srv/models}
COMMON=(
  --host 127.0.0.1
  --enable-prefix-caching
)

CUDA_VISIBLE_DEVICES=0 vllm serve "$MODELS/chat" \
  --served-model-name chat \
  --gpu-memory-utilization 0.55 \
  --max-model-len 16384 \
  "${COMMON[@]}" --port 8000 > chat.log 2>&1 &

for gpu in 1 2; do
  CUDA_VISIBLE_DEVICES=$gpu llama-server -m "$MODELS/small-$gpu.gguf" \
    -c 32768 -np 4 --port "808$gpu" &
done

if [[ -n "${WITH_DOCKER:-}" ]]; then
  docker run -d --rm --gpus '"device=3"' -v "$MODELS:/models:ro" --name embed \
    vllm/vllm-openai:v0.11.0 --model /models/embed --max-model-len 8192
fi
wait
