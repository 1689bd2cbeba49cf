"""The HF Trainer with three of its public methods extended: exact evaluation loss, sharded saves, more in the logs."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from zerotune.checkpointing.background import BackgroundSaver
from zerotune.training import packed_apart
from zerotune.training.resuming_trainer import ResumingTrainer

CHUNK = 1024  # positions whose logits are upcast to fp32 at a time


class ZeroTrainer(ResumingTrainer):
    """Trainer for causal language models on batches of `training.data.collate`.

    Args:
        meter: told on every rank of each micro batch trained on (`count_batch(real tokens, all tokens)`) and of time
            that is not training (`exclude(seconds)`); `measure(logs)` returns what to add to a log record.
        saver: writes the checkpoints.
    """

    def __init__(self, *args, meter, saver: BackgroundSaver, **kwargs):
        super().__init__(*args, compute_metrics=evaluation_metrics, **kwargs)
        self.meter = meter
        self.saver = saver
        self.proven_apart = False
        # The model takes num_items_in_batch through its loss function's keyword arguments.
        self.model_accepts_loss_kwargs = True

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.meter.count_batch(inputs.pop("real_tokens"), inputs["input_ids"].numel())
        if self.data_collator.packing and not self.proven_apart:
            config = self.model.config
            packed_apart.prove(
                model, self.data_collator, config.model_type, config.get_text_config().vocab_size, self.args.device
            )
            self.proven_apart = True
        return super().training_step(model, inputs, num_items_in_batch)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Return (None, sums, sums) with sums [rows, 2]: summed loss and number of predicted tokens of each row.

        Means of batch means, as the Trainer takes them, would weigh short rows more than long ones.
        """
        rows = len(inputs.pop("real_tokens"))
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        sums = row_loss_sums(logits, labels, rows)
        return None, sums, sums

    def save_model(self, output_dir=None, _internal_call=False):
        """Write config, generation config and tokenizer. The weights are in the ZeRO shards beside them.

        The Trainer would gather the whole model on rank 0 here, at every checkpoint.
        """
        if not self.args.should_save:
            return
        output_dir = output_dir or self.args.output_dir
        config = copy.deepcopy(self.model.config)
        config.use_cache = True  # off while training; whoever generates with the export wants it on
        config.save_pretrained(output_dir)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(output_dir)
        self.processing_class.save_pretrained(output_dir)

    def log(self, logs, start_time=None):
        logs.update(self.meter.measure(logs))
        super().log(logs, start_time)

    def evaluate(self, *args, **kwargs):
        with self._not_training():
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        """Save as the Trainer does, through DeepSpeed; the large files are written while training goes on."""
        with self._not_training():
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            if not self.saver.open(folder, self.state.global_step):
                return
            super()._save_checkpoint(*args, **kwargs)
            best = self.state.best_model_checkpoint
            self.saver.start(Path(best) if best else None)

    def _load_best_model(self):
        self.saver.wait()
        if Path(self.state.best_model_checkpoint) not in self.saver.failed:
            super()._load_best_model()

    @contextlib.contextmanager
    def _not_training(self):
        started = time.perf_counter()
        yield
        self.meter.exclude(time.perf_counter() - started)


def row_loss_sums(logits: torch.Tensor, labels: torch.Tensor, rows: int) -> torch.Tensor:
    """Summed next-token loss of every row.

    Args:
        logits: [batch, width, vocab], or [1, rows * width, vocab] when the rows were flattened.
        labels: [batch, width] or [1, rows * width]; -100 is ignored.
        rows: number of rows.

    Returns:
        float64 [rows, 2]: sum of the losses in nats, number of labels.
    """
    logits = logits.reshape(rows, -1, logits.shape[-1])
    labels = labels.reshape(rows, -1)
    sums = torch.zeros(rows, 2, dtype=torch.float64 if logits.device.type != "mps" else torch.float32)
    sums = sums.to(logits.device)
    for row in range(rows):
        for start in range(0, logits.shape[1] - 1, CHUNK):
            stop = min(start + CHUNK, logits.shape[1] - 1)
            wanted = labels[row, start + 1 : stop + 1]
            loss = F.cross_entropy(logits[row, start:stop].float(), wanted, reduction="sum", ignore_index=-100)
            sums[row, 0] += loss
            sums[row, 1] += (wanted != -100).sum()
    return sums


def evaluation_metrics(prediction) -> dict[str, float]:
    """Loss per predicted token (nats) and perplexity over all rows of the validation set."""
    total, count = prediction.predictions.sum(axis=0)
    loss = float(total / max(1.0, count))
    return {"eval_loss": loss, "eval_perplexity": math.exp(min(loss, 700.0)), "eval_tokens": int(count)}
