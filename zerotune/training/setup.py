"""From the command line to TrainingArguments: everything that can be refused before anything is built."""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

from zerotune.errors import UsageError
from zerotune.training import ranks


def refuse_errors(resolved, context, show_warnings: bool = True) -> None:
    """Run the validator on a ResolvedConfig: errors are raised together, warnings printed on rank 0.

    Raises:
        UsageError: at least one finding of severity error; the warnings are in the message too, the notes are not.
    """
    from zerotune.ds_config import check, render

    findings = check(resolved, context)
    if not findings:
        return
    refused = any(one.severity == "error" for one in findings)
    told = [one for one in findings if one.severity != "info"] if refused else findings
    text = render.text(told, resolved.path, resolved.text)
    if refused:
        raise UsageError(f"DeepSpeed cannot train with this config and these flags.\n{text}")
    if show_warnings:
        ranks.say(f"about the DeepSpeed config:\n{text}")


def parse(argv: list[str], resolved):
    """Parse the flags, fill in what was left open, hold flags against config and devices, start the ranks."""
    from zerotune.ds_config import Context
    from zerotune.preflight import devices
    from zerotune.training import arguments, defaults, flag_checks

    if text := arguments.help_asked(argv):
        if ranks.rank() == 0:
            print(text)
        raise SystemExit(0)
    args = arguments.parse(argv)
    flag_checks.refuse_values(args)
    flag_checks.refuse_export_of_slices(args, resolved.config)
    quiet_libraries()
    chosen = defaults.fill(args, resolved.config)
    values, explicit = args.training, frozenset(args.explicit)
    refuse_errors(resolved, Context("trainer", world_size=ranks.world_size(), training_args=values, explicit=explicit))
    devices.check(ranks.local_world_size(), bool(values["bf16"]), bool(values["fp16"]))
    ranks.start(values["ddp_timeout"])
    for line in defaults.in_words(chosen):
        ranks.say(line)
    return args


def quiet_libraries() -> None:
    """One voice: bars on rank 0's terminal only, and none of the libraries' advice meant for their own scripts."""
    import datasets
    import transformers

    # torch 2.13 deprecates the collectives that DeepSpeed 0.19.8 calls: nothing that a user can act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    transformers.utils.logging.set_verbosity_error()
    if ranks.rank() != 0 or not sys.stderr.isatty():  # a bar would fill a log file
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()


def training_arguments(args, resolved, folder: Path):
    """TrainingArguments with the config inside: from here on transformers knows about ZeRO-3.

    Raises:
        UsageError: flags that transformers refuses.
    """
    import torch
    from transformers import TrainingArguments

    from zerotune.training import flag_checks

    values = {**args.training, "deepspeed": copy.deepcopy(resolved.config), "output_dir": str(folder)}
    # Ours deletes an old checkpoint only after the new one is complete; ours shows one bar.
    values.update(save_total_limit=None, disable_tqdm=True, resume_from_checkpoint=None)
    if not torch.cuda.is_available():
        # Without use_cpu accelerate sees no backend on CPU and believes in one rank (accelerate 1.15, state.py).
        values.update(use_cpu=True, dataloader_pin_memory=False)
    try:
        made = TrainingArguments(**values)
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(f"these flags cannot work together: {error}") from error
    if made.save_only_model:
        raise UsageError(
            "--save_only_model: a run without ZeRO shards can neither be resumed nor exported. Leave it out."
        )
    flag_checks.refuse_reporters(made.report_to)
    return made
