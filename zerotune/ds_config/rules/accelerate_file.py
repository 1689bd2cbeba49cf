"""ZT026 and ZT73x: a config inside the file that `accelerate config` writes. accelerate_file.py finds these."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .reading import text_rule
from .rule import case

READS = "accelerate 1.15 commands/config/config_args.py:209, commands/launch.py:1263, utils/launch.py:565"
BUILDS = "accelerate 1.15 utils/dataclasses.py:1226"
HEAD = "distributed_type: DEEPSPEED\nnum_processes: 8\n"
GOOD = f"{HEAD}mixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  zero3_init_flag: true\n"


def _row(id: str, slug: str, severity: str, why: str, *bad: str, source: str = READS) -> None:
    text_rule(
        id,
        slug,
        severity,
        why,
        source,
        [case(text, entry="accelerate") for text in bad],
        [case(GOOD, entry="accelerate")],
    )


_row(
    "ZT026",
    "yaml-reading",
    ERROR,
    "The text is no YAML that yaml.safe_load, with which accelerate reads its file, takes: tabs, brackets, several documents. "
    "Or it is YAML with neither accelerate's keys nor DeepSpeed's.",
    f"{HEAD}deepspeed_config:\n\tzero_stage: 2\n",
    f"{HEAD}deepspeed_config: {{zero_stage: 2\n",
    f"{HEAD}---\ndeepspeed_config: {{}}\n",
)
_row(
    "ZT730",
    "accelerate-unknown-key",
    ERROR,
    "accelerate launch stops with a ValueError at any key of its file that it does not know.",
    f"{HEAD}zero_stage: 2\ndeepspeed_config: {{}}\n",
    f"{HEAD}mixed_precison: bf16\n",
)
_row(
    "ZT731",
    "accelerate-ignored-key",
    WARNING,
    "Keys of deepspeed_config become attributes of the launcher's arguments; what no code reads is lost without a word, "
    "so that a misspelt stage trains at stage 2.",
    f"{HEAD}deepspeed_config:\n  zero_stag: 3\n",
)
_row(
    "ZT732",
    "accelerate-two-sources",
    ERROR,
    "With deepspeed_config_file, the values of the JSON file count, and accelerate refuses those keys of its own file "
    "that would fight them, even without a value.",
    f"{HEAD}deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 3\n",
    f"{HEAD}mixed_precision: bf16\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
    source="accelerate 1.15 utils/dataclasses.py:1507",
)
_row(
    "ZT733",
    "accelerate-value",
    ERROR,
    "Values travel as texts through the environment; what can't be read back there stops the launch.",
    f"{HEAD}deepspeed_config:\n  zero_stage: three\n",
    f"{HEAD}mixed_precision: no\ndeepspeed_config: {{}}\n",
    f"{HEAD}deepspeed_config:\n  zero3_init_flag: maybe\n",
    "num_processes: 2\ndeepspeed_config: {}\n",
)
_row(
    "ZT734",
    "accelerate-nvme-path",
    WARNING,
    "accelerate launch sets no environment variable for the NVMe paths of its file, so the plugin takes its default, the "
    'text "none", as the folder: swap files land below the working directory.',
    f"{HEAD}deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /nvme\n",
    source="accelerate 1.15 utils/launch.py:565-590 (no NVME_PATH), utils/dataclasses.py:1246",
)
_row(
    "ZT735",
    "accelerate-clipping-zero",
    WARNING,
    "The plugin leaves a clipping of 0 out of the dict, and DeepSpeed clips at 1.0 when the key is missing.",
    f"{HEAD}deepspeed_config:\n  gradient_clipping: 0\n",
    source=f"{BUILDS} (:1321); deepspeed 0.19.8 runtime/constants.py (GRADIENT_CLIPPING_DEFAULT)",
)
_row(
    "ZT736",
    "accelerate-not-deepspeed",
    WARNING,
    "deepspeed_config counts only when distributed_type is DEEPSPEED.",
    "distributed_type: MULTI_GPU\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n",
    source="accelerate 1.15 commands/launch.py:1228",
)
_row(
    "ZT737",
    "accelerate-steps-auto",
    WARNING,
    "Accelerator() reads the variable with int() and stops at auto; scripts with the Trainer, which passes its own "
    "number, run.",
    f"{HEAD}deepspeed_config:\n  gradient_accumulation_steps: auto\n",
    source="accelerate 1.15 accelerator.py:546",
)
