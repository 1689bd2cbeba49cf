"""What each shipped template is for. ds_configs/README.md explains their numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """purpose: one line for `list`. suits, costs: for docs/templates.md."""

    purpose: str
    suits: str
    costs: str


TEMPLATES = {
    "stage1": Template(
        "divides the optimizer states; the least communication",
        "a model whose weights and gradients fit on each GPU, but whose Adam states do not",
        "nothing against plain data parallelism: one reduction and one gather per step, as there",
    ),
    "stage1_offload": Template(
        "stage 1 with the optimizer on the CPU",
        "one GPU, where dividing brings nothing and the 12 bytes per weight of Adam do not fit",
        "the step runs on the CPU; 16 bytes of host memory per weight, over all ranks together",
    ),
    "stage2": Template(
        "divides optimizer states and gradients; the default for models that fit",
        "up to about 13B on eight 80 GB GPUs: 2 bytes per weight whole on each, 14 divided among them",
        "the same bytes on the wire as stage 1",
    ),
    "stage2_offload": Template(
        "stage 2 with the optimizer on the CPU",
        "weights fit on each GPU, gradients and states do not; or one GPU with a model of a few billion weights",
        "the step runs on the CPU; gradients go to the host in every backward pass",
    ),
    "stage3": Template(
        "divides the weights too; for models larger than one GPU",
        "a model that fits on all GPUs together",
        "weights are gathered in forward and again in backward: 1.5 times the traffic of stage 2",
    ),
    "stage3_nvme": Template(
        "stage 3 with weights and optimizer on a local NVMe disk; the last resort",
        "a model whose states exceed the host's memory",
        "every step reads and writes the 12 bytes per weight of Adam on the disk; needs libaio and a local NVMe disk",
    ),
    "stage3_offload": Template(
        "stage 3 with weights and optimizer on the CPU; the most saving without a disk",
        "a model larger than all GPUs together, with 18 bytes of host memory per weight",
        "weights cross PCIe in forward and backward, the step runs on the CPU",
    ),
    "stage3_offload_optimizer": Template(
        "stage 3 with the optimizer on the CPU, the weights on the GPUs",
        "weights and gradients fit on all GPUs together, the states do not",
        "the step runs on the CPU; forward and backward as fast as stage 3",
    ),
}
