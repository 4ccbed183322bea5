#!/bin/bash
# Everything on a new machine with eight GPUs
export NANOCHAT_BASE_DIR="$HOME/.cache/nanochat"
[ -d ".venv" ] || uv venv
uv sync --extra gpu
source .venv/bin/activate
torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=20 --run=$WANDB_RUN
