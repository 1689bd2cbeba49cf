"""One progress bar on rank 0, in place of the Trainer's bar and its printed dictionaries."""

from __future__ import annotations

import sys

from tqdm.auto import tqdm
from transformers import TrainerCallback


class ProgressBar(TrainerCallback):
    """The bar shows loss, gradient norm, learning rate and speed; evaluations are lines above it.

    Where the output is no terminal, every log record is a line instead: a bar would fill the file.
    """

    def __init__(self):
        self.bar = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.logging_steps > state.max_steps:  # a run this short would end without having shown its loss
            state.logging_steps = state.max_steps
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="train",
                unit="step",
                dynamic_ncols=True,
                disable=not sys.stderr.isatty(),
            )

    def on_step_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n if not self.bar.disable else 0)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.bar is None or not logs:
            return
        if "eval_loss" in logs:
            text = f"validation loss {logs['eval_loss']:.4f}, perplexity {logs['eval_perplexity']:.1f}"
            self._line(f"step {state.global_step}/{state.max_steps}  {text}")
        elif "loss" in logs:
            shown = _shown(logs)
            if self.bar.disable:
                self._line(
                    f"step {state.global_step}/{state.max_steps}  " + "  ".join(f"{k} {v}" for k, v in shown.items())
                )
            else:
                self.bar.set_postfix(shown, refresh=True)

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _line(self, text: str) -> None:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()


def _shown(logs: dict) -> dict[str, str]:
    shown = {"loss": f"{float(logs['loss']):.4f}", "lr": f"{logs.get('learning_rate', 0):.2e}"}
    if "grad_norm" in logs:
        shown["grad_norm"] = f"{float(logs['grad_norm']):.2f}"
    if "tokens_per_s" in logs:
        shown["tok/s"] = f"{logs['tokens_per_s']:,.0f}"
    if "mfu" in logs:
        shown["MFU"] = f"{logs['mfu']:.1%}"
    if "device_peak_gib" in logs:
        shown["GiB"] = f"{logs['device_peak_gib']:.1f}"
    return shown
