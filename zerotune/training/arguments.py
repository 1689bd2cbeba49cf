"""The flags of train.py: three dataclasses beside transformers' TrainingArguments.

`None` means "chosen for this machine or this model"; `zerotune/training/defaults.py` fills it in and says so.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields

from transformers import HfArgumentParser, TrainingArguments

from zerotune.errors import UsageError, nearest


def _flag(default, text: str):
    return field(default=default, metadata={"help": text})


@dataclass
class RunArguments:
    """Which ZeRO configuration, and what happens at the end."""

    _argument_group_name = "run"

    ds: str = _flag("stage2", "ZeRO configuration: a template's name (zerotune-config list) or a JSON file.")
    plan: str = _flag(
        "on", "Before the model is built: on refuses a run that cannot fit in memory, warn only says so, off is silent."
    )
    overwrite_output_dir: bool = _flag(False, "Delete what a finished run left in --output_dir and start again.")
    save_keep_every: int | None = _flag(
        None, "Beyond --save_total_limit, keep every checkpoint whose step is a multiple of N."
    )
    save_in_background: bool = _flag(
        True, "Write checkpoints while training goes on, from copies in host memory. False: training waits."
    )
    export: bool = _flag(True, "At the end, write the model as safetensors into OUTPUT_DIR/model.")
    export_dtype: str = _flag("bf16", "Dtype of the exported model: bf16, fp16 or fp32.")
    export_max_shard_size: str = _flag("5GB", "Largest safetensors file of the export.")


@dataclass
class ModelArguments:
    """Which model: pretrained, or built from a config with random weights."""

    _argument_group_name = "model"

    model_name_or_path: str | None = _flag(
        None, "Pretrained model: a local folder or a hub name. Default: from scratch."
    )
    config_name: str | None = _flag(None, "From scratch with this config.json (file, folder or hub name).")
    config_overrides: str | None = _flag(
        None, "From scratch: config values to change, e.g. 'hidden_size=512,num_hidden_layers=8'."
    )
    tokenizer_name: str | None = _flag(None, "Tokenizer, if it is not the model's own: a local folder or a hub name.")
    model_revision: str = _flag("main", "Branch, tag or commit of the hub model.")
    trust_remote_code: bool = _flag(False, "Run model code that comes with the hub model.")
    allow_keys: str | None = _flag(
        None, "Regular expression: pretrained weights that may be absent (they are initialised) or too many."
    )
    allow_pickle: bool = _flag(False, "Take pytorch_model*.bin where there is no safetensors; its pickle is never run.")
    attn: str = _flag(
        "auto", "Attention: auto, flash_attention_4, flash_attention_3, flash_attention_2, sdpa or eager."
    )


@dataclass
class DataArguments:
    """Which examples, and how they become sequences."""

    _argument_group_name = "data"

    dataset_name: str | None = _flag(
        None,
        "Training data: a json, jsonl, csv, parquet or txt file, a folder of them, a saved `datasets` folder or a hub "
        "name, with column `text`, columns `prompt` and `completion`, or chat `messages`. "
        "Default: the Python standard library's source files.",
    )
    dataset_config_name: str | None = _flag(None, "Configuration of the hub dataset.")
    validation_name: str | None = _flag(None, "Validation data, like --dataset_name. Default: its validation split.")
    validation_percent: float = _flag(5.0, "Share of the training data held out when there is no validation split.")
    max_seq_length: int | None = _flag(
        None, "Tokens per sequence. Default: at most 2048; without a GPU 512, or 256 from scratch."
    )
    packing: bool = _flag(True, "Fill every sequence with several examples; they never attend to each other.")
    max_train_samples: int | None = _flag(None, "Train on at most N sequences, spread evenly over the data.")
    max_eval_samples: int | None = _flag(None, "Evaluate on at most N sequences, spread evenly over the data.")
    preprocessing_num_workers: int | None = _flag(
        None, "Processes that tokenise. Default: the machine's cores, at most 16."
    )
    vocab_size: int = _flag(4096, "Size of the byte-level BPE vocabulary trained when no tokenizer is given.")


@dataclass
class Arguments:
    """All flags of one job, and the names of those that the user typed."""

    run: RunArguments
    model: ModelArguments
    data: DataArguments
    training: dict
    explicit: set[str]


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """One spelling per flag, and its default where it says something."""

    def _format_action_invocation(self, action):
        if not action.option_strings:
            return super()._format_action_invocation(action)
        name = action.option_strings[0]
        return name if action.nargs in ("?", 0) else f"{name} {action.dest.rsplit('_', 1)[-1].upper()}"

    def _get_help_string(self, action):
        untold = (
            action.default is None or action.default is argparse.SUPPRESS or "default" in (action.help or "").lower()
        )
        return action.help if untold else f"{action.help} (default: %(default)s)"


class _Parser(HfArgumentParser):
    """argparse that raises UsageError with the nearest flag instead of printing 200 lines of usage."""

    def error(self, message: str):
        unknown = message.removeprefix("unrecognized arguments: ").split() if "unrecognized" in message else []
        hints = []
        known = [option for action in self._actions for option in action.option_strings]
        for word in unknown:
            flag = word.split("=")[0]
            if flag.startswith("--") and (close := nearest(flag, known)):
                hints.append(f"did you mean {close[0]}?")
        raise UsageError(f"{message}. {' '.join(hints)}".strip() + "\nAll flags: python zerotune/train.py --help")


USAGE = "deepspeed [--num_gpus N] zerotune/train.py --ds TEMPLATE [flags]"
EPILOG = """\
Every flag of transformers' TrainingArguments works too (--help_all lists them), among them:
  --output_dir  --num_train_epochs  --max_steps  --per_device_train_batch_size  --gradient_accumulation_steps
  --learning_rate  --lr_scheduler_type  --warmup_steps  --weight_decay  --max_grad_norm  --bf16  --fp16
  --activation_checkpointing  --eval_strategy  --eval_steps  --save_steps  --save_total_limit
  --resume_from_checkpoint last  --logging_steps  --report_to none  --seed

example:
  deepspeed zerotune/train.py --ds stage3_offload --model_name_or_path MODEL_FOLDER --dataset_name chats.jsonl \\
    --num_train_epochs 1 --learning_rate 1e-5 --output_dir runs/chats
"""


def parser(*classes) -> HfArgumentParser:
    """The parser over the flags of the given dataclasses; by default all of them."""
    return _Parser(
        classes or (RunArguments, ModelArguments, DataArguments, TrainingArguments),
        prog="train.py",
        usage=USAGE,
        description="Fine-tune a language model with DeepSpeed ZeRO. Without flags: a small model on built-in data.",
        epilog=EPILOG,
        allow_abbrev=False,
        add_help=False,
        formatter_class=_Formatter,
    )


def help_asked(argv: list[str]) -> str | None:
    """The help text when --help (our flags) or --help_all (TrainingArguments too) stands in argv."""
    if "--help_all" in argv:
        return parser().format_help()
    if {"-h", "--help"} & set(argv):
        ours = parser(RunArguments, ModelArguments, DataArguments)
        for action in ours._actions:  # --no_export says what --export False says
            if action.option_strings and action.option_strings[0].startswith("--no_"):
                action.help = argparse.SUPPRESS
        return ours.format_help()
    return None


def parse(argv: list[str]) -> Arguments:
    """Parse flags without building TrainingArguments (that needs the DeepSpeed config and the devices).

    Raises:
        UsageError: an unknown flag, a wrong value, or `--deepspeed` beside `--ds`.
    """
    made = parser()
    namespace = made.parse_args(argv)
    explicit = _explicit(made, argv)
    if "deepspeed" in explicit and "ds" in explicit:
        raise UsageError("--ds and --deepspeed both name a ZeRO configuration. Give one of them.")

    def part(cls):
        return cls(**{one.name: getattr(namespace, one.name) for one in fields(cls) if one.init})

    training = {one.name: getattr(namespace, one.name) for one in fields(TrainingArguments) if one.init}
    return Arguments(part(RunArguments), part(ModelArguments), part(DataArguments), training, explicit)


def _explicit(made: argparse.ArgumentParser, argv: list[str]) -> set[str]:
    """Names of the flags that stand in argv (not those left at their default)."""
    destination = {option: action.dest for action in made._actions for option in action.option_strings}
    given = {word.split("=")[0] for word in argv if word.startswith("--")}
    return {destination[flag] for flag in given if flag in destination}
