#!/usr/bin/env bash
# Fine-tune a 70B model on 2 nodes x 8 A100-80GB. Started once, on the first node of the hostfile, which must reach
# every node by ssh without a password; the checkout, the environment and the model lie on a disk that all see.
#
#   bash launch/two_nodes_8xA100.sh --model_name_or_path /shared/models/Llama-2-70b-hf --dataset_name chats.jsonl
#
# Planned: 73 of a GPU's 79 GiB, and three times as fast as stage3_offload, which needs 900 GiB of host memory a node. If
# the GPUs run out, TEMPLATE=stage3_offload_optimizer needs 16 GiB of a GPU and 700 GiB a node (docs/planner.md).
#
# Edit here, or set the same names in the environment. Everything after the file's name goes to zerotune/train.py.
set -euo pipefail
template=${TEMPLATE:-stage3}              # a name from `zerotune-config list`, or a JSON file
hostfile=${HOSTFILE:-launch/hostfile}     # the nodes and their GPUs
master_port=${MASTER_PORT:-29500}         # open between the nodes
network=${NCCL_SOCKET_IFNAME:-}           # the interface between the nodes (ip addr); empty: NCCL chooses
output_dir=${OUTPUT_DIR:-runs/two_nodes}  # on the shared disk
training=(                                # flags of zerotune/train.py that suit this model and these GPUs
  --bf16 --activation_checkpointing
  --per_device_train_batch_size 1 --max_seq_length 2048 --num_train_epochs 1
)
# ---- nothing to edit below ----

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
if [[ ! -r $hostfile ]]; then
  echo "hostfile $hostfile cannot be read: one line per node, 'NAME slots=GPUS'" >&2
  exit 2
fi
# deepspeed hands the variables of .deepspeed_env in the home folder, and all that begin with NCCL_, to every node.
if [[ -n $network ]]; then
  export NCCL_SOCKET_IFNAME=$network
fi
exec deepspeed --hostfile "$hostfile" --master_port "$master_port" zerotune/train.py --ds "$template" \
  --output_dir "$output_dir" "${training[@]}" "$@"
