"""The names that accelerate 1.15 knows in its file; tests/training/test_accelerate_file.py compares them."""

from __future__ import annotations

from zerotune.errors import nearest

# commands/config/config_args.py: ClusterConfig and BaseConfig; the old names that process_config still takes.
TOP_KEYS = (
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "fp8_config",
    "deepspeed_config",
    "fsdp_config",
    "parallelism_config",
    "megatron_lm_config",
    "mpirun_config",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "command_file",
    "commands",
    "tpu_vm",
    "tpu_env",
    "dynamo_config",
    "fp16",
    "dynamo_backend",
)
# commands/launch.py: the flags of its group for DeepSpeed.
DEEPSPEED_KEYS = (
    "deepspeed_config_file",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_multinode_launcher",
    "deepspeed_moe_layer_cls_names",
)
# utils/dataclasses.py:1507: what may not stand beside deepspeed_config_file, even without a value.
LISTED_TWICE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
)
PRECISIONS = ("no", "fp8", "fp16", "bf16")
DISTRIBUTED_TYPES = ("NO", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU")
DISTRIBUTED_TYPES += ("MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON")
MULTINODE_LAUNCHERS = ("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")


def nearest_key(name: str, known: tuple[str, ...]) -> str:
    """'did you mean', or what to do with a name like no other."""
    close = nearest(name, known, number=1)
    return f"did you mean {close[0]}?" if close else "delete it"
