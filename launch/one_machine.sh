#!/usr/bin/env bash
# Fine-tune on the GPUs of one machine (or on its CPU, if it has none).
#
#   bash launch/one_machine.sh                                   the default job
#   bash launch/one_machine.sh --model_name_or_path MODEL_FOLDER --dataset_name chats.jsonl
#
# Edit here, or set the same names in the environment. Everything after the file's name goes to zerotune/train.py.
set -euo pipefail
template=${TEMPLATE:-stage3_offload}  # a name from `zerotune-config list`, or a JSON file
num_gpus=${NUM_GPUS:-}                # ranks on this machine; empty: one per GPU
master_port=${MASTER_PORT:-29500}     # another one for every job that runs at the same time
# ---- nothing to edit below ----

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
options=(--master_port "$master_port")
if [[ -n $num_gpus ]]; then
  options+=(--num_gpus "$num_gpus")
fi
exec deepspeed "${options[@]}" zerotune/train.py --ds "$template" "$@"
