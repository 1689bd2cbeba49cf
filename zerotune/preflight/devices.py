"""Do the devices of this machine suit the job: enough of them, and the precision asked for?"""

from __future__ import annotations

from zerotune.errors import UsageError


def check(local_world_size: int, bf16: bool, fp16: bool) -> None:
    """Compare ranks and precision with the devices.

    Args:
        local_world_size: ranks on this node.

    Raises:
        UsageError: more ranks than GPUs, or fp16 or bf16 that the device lacks.
    """
    import torch
    from deepspeed.accelerator import get_accelerator

    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if local_world_size > gpus:
            raise UsageError(
                f"{local_world_size} ranks on this node but {gpus} GPU{'s' * (gpus != 1)}. "
                f"Start with --num_gpus {gpus} (deepspeed) or --nproc_per_node {gpus} (torchrun)."
            )
    _check_precision(get_accelerator(), torch, bf16, fp16)


def _check_precision(accelerator, torch, bf16: bool, fp16: bool) -> None:
    name = accelerator.device_name()
    shown = torch.cuda.get_device_name() if name == "cuda" else name
    if bf16 and fp16:
        raise UsageError("--bf16 and --fp16 exclude each other. Keep one.")
    if fp16 and not accelerator.is_fp16_supported():
        raise UsageError(
            f"--fp16: DeepSpeed cannot train in fp16 on this device ({shown}). Use --bf16, or neither for fp32."
        )
    if bf16 and not _has_bf16(accelerator, torch, name):
        raise UsageError(f"--bf16: this device ({shown}) has no bf16. Use --fp16, or neither for fp32.")


def _has_bf16(accelerator, torch, name: str) -> bool:
    if name == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return accelerator.is_bf16_supported()
