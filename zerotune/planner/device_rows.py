# ruff: noqa: E501 (a table)
"""Accelerators and their links. Every row names where its numbers come from.

memory_gib: what torch.cuda.get_device_properties().total_memory shows, a few per cent below the name.
bf16, fp16, fp32: dense peak in TFLOP/s, as the Trainer would use them (no sparsity; fp32 without TF32).
MI250 is one of the two dies of a card, which torch shows as one device.
memory_gbs: device memory in GB/s. peer_gbs: to another GPU of the node, each direction, all links together
(NVLink, Infinity Fabric; PCIe where there is none). pcie_gbs: host to device, each direction, as measured of pinned
memory: about 0.85 of the link's raw rate. network_gbs: of one node, each direction, unless the user says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

PCIE3, PCIE4, PCIE5 = 13.0, 26.0, 55.0


@dataclass(frozen=True)
class Device:
    """Units as above. bf16 is 0 where the device has none."""

    name: str
    memory_gib: float
    bf16: float
    fp16: float
    fp32: float
    memory_gbs: float
    peer_gbs: float
    pcie_gbs: float
    network_gbs: float
    source: str
    host_gib: float | None = None
    host_gbs: float = 100.0

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    @property
    def is_cpu(self) -> bool:
        return self.name.startswith("CPU")


NVIDIA = "https://www.nvidia.com/content/dam/en-zz/Solutions"
DEVICES = {
    row.name: row
    for row in (
        Device("A100-40GB", 39.4, 312, 312, 19.5, 1555, 300, PCIE4, 50, f"{NVIDIA}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"),
        Device("A100-80GB", 79.1, 312, 312, 19.5, 2039, 300, PCIE4, 50, f"{NVIDIA}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"),
        Device("H100-80GB", 79.1, 989, 989, 67, 3350, 450, PCIE5, 400, "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"),
        Device("H200", 139.8, 989, 989, 67, 4800, 450, PCIE5, 400, "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"),
        Device("B200", 178.3, 2250, 2250, 75, 7700, 900, PCIE5, 400, "https://resources.nvidia.com/en-us-blackwell-architecture/datasheet"),
        Device("V100-16GB", 15.8, 0, 125, 15.7, 900, 150, PCIE3, 12.5, "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"),
        Device("V100-32GB", 31.7, 0, 125, 15.7, 900, 150, PCIE3, 12.5, "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"),
        Device("T4", 14.6, 0, 65, 8.1, 320, PCIE3, PCIE3, 6.25, f"{NVIDIA}/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"),
        Device("A10", 22.0, 125, 125, 31.2, 600, PCIE4, PCIE4, 12.5, f"{NVIDIA}/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"),
        Device("L4", 22.0, 121, 121, 30.3, 300, PCIE4, PCIE4, 12.5, "https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet"),
        Device("L40S", 44.4, 362, 362, 91.6, 864, PCIE4, PCIE4, 25, "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"),
        Device("RTX-3090", 23.6, 71, 71, 35.6, 936, PCIE4, PCIE4, 12.5, "https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"),
        Device("RTX-4090", 23.5, 165, 165, 82.6, 1008, PCIE4, PCIE4, 12.5, "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"),
        Device("MI250", 64.0, 181, 181, 22.6, 1638, 50, PCIE4, 50, "https://www.amd.com/content/dam/amd/en/documents/instinct-business-docs/product-briefs/instinct-mi250-datasheet.pdf"),
        Device("MI300X", 191.7, 1307, 1307, 163, 5300, 448, PCIE5, 400, "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"),
        Device("CPU", 64.0, 0.5, 0, 1.0, 40, 10, 10, 1.25, "a guess for a server socket: no accelerator to read a datasheet of; give a row of your own"),
    )
}  # fmt: skip
ALIASES = {
    "A100": "A100-80GB",
    "H100": "H100-80GB",
    "V100": "V100-32GB",
    "A10G": "A10",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "H200-141GB": "H200",
    "B200-180GB": "B200",
    "A100-40": "A100-40GB",
    "A100-80": "A100-80GB",
}
