"""The Trainer goes on where it was, on other numbers of ranks: no sample twice, none left out, the schedule too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import forked_ranks
from tests.engine.reshard_run import KINDS

pytestmark = pytest.mark.slow

GLOBAL_BATCH, ROWS, WIDTH, STEPS = 8, 50, 12, 12  # 7 steps an epoch: the run ends within the second


def run_trainer(kind: str, folder: str, steps: int, resume: str | None):
    """Train to `steps`. Returns ([(step, sample)], {step: (loss, learning rate)}, what was said)."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, TrainingArguments, set_seed

    from tests.engine.tiny_models import VARIANTS
    from zerotune.checkpointing import completion
    from zerotune.training import global_batch, ranks
    from zerotune.training.resuming_trainer import ResumingTrainer

    deepspeed.init_distributed(verbose=False)
    world, seen, said = ranks.world_size(), [], []
    ranks.say = said.append

    class Logged(ResumingTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.extend((self.state.global_step + 1, int(row)) for row in inputs.pop("sample"))
            return super().training_step(model, inputs, num_items_in_batch)

    sizes = {global_batch.MICRO: 2, global_batch.ACCUMULATION: 1}
    global_batch.keep(global_batch.Batch(1, 2, GLOBAL_BATCH // 2), world, sizes, set())
    config = {"zero_optimization": KINDS[kind], "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    config["gradient_accumulation_steps"] = "auto"
    args = TrainingArguments(
        **{"output_dir": folder, "max_steps": STEPS, "learning_rate": 3e-3, "deepspeed": config, "use_cpu": True},
        **{"logging_steps": 1, "save_steps": steps, "report_to": "none", "disable_tqdm": True, **sizes},
        **{"remove_unused_columns": False, "dataloader_pin_memory": False, "warmup_steps": 2},
    )
    set_seed(0)
    rows = [{"sample": row, "input_ids": [row % 101, *range(row % 7, row % 7 + WIDTH - 1)]} for row in range(ROWS)]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **VARIANTS["llama"]), dtype=torch.float32)

    def collate(batch):
        ids = torch.tensor([row["input_ids"] for row in batch])
        return {"sample": torch.tensor([row["sample"] for row in batch]), "input_ids": ids, "labels": ids}

    trainer = Logged(model=model, args=args, train_dataset=rows, data_collator=collate)
    trainer.add_callback(stop_after(steps))
    trainer.train(resume_from_checkpoint=resume)
    if ranks.rank() == 0:
        completion.write_marker(Path(folder) / f"checkpoint-{steps}", world, steps)
    logs = {row["step"]: (row["loss"], row["learning_rate"]) for row in trainer.state.log_history if "loss" in row}
    return seen, logs, said


def stop_after(steps: int):
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step >= steps

    return Stop()


def samples(pieces) -> dict[int, list[int]]:
    """Step -> its samples, over all ranks and pieces."""
    found: dict[int, list[int]] = {}
    for piece in pieces:
        for seen, _, _ in piece:
            for step, row in seen:
                found.setdefault(step, []).append(row)
    return {step: sorted(rows) for step, rows in sorted(found.items())}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(the uninterrupted run, the same in three pieces on 1, 2 and 4 ranks)"""
    folder = tmp_path_factory.mktemp("data")
    whole = [forked_ranks.run(run_trainer, 1, "stage2", str(folder / "whole"), STEPS, None)]
    pieces, resume = [], None
    kinds = (("stage2", 1, 3), ("stage3_offload", 2, 6), ("stage1", 4, STEPS))
    for kind, world, steps in kinds:
        out = folder / f"{world}-{steps}"
        pieces.append(forked_ranks.run(run_trainer, world, kind, str(out), steps, resume))
        resume = str(out / f"checkpoint-{steps}")
    return whole, pieces


def test_every_step_takes_the_samples_of_the_uninterrupted_run(runs):
    whole, pieces = map(samples, runs)
    last_of_epoch = -(-ROWS // GLOBAL_BATCH)  # filled up with rows of its start, more of them on more ranks
    assert {step: rows for step, rows in pieces.items() if step != last_of_epoch} == {
        step: rows for step, rows in whole.items() if step != last_of_epoch
    }
    assert set(pieces[last_of_epoch]) >= set(whole[last_of_epoch])
    assert {row for step in range(1, last_of_epoch + 1) for row in pieces[step]} == set(range(ROWS))


def test_losses_and_learning_rates_go_on(runs):
    whole, pieces = runs
    logs = {step: row for piece in pieces for step, row in piece[0][1].items()}
    uninterrupted = whole[0][0][1]
    steps = range(1, -(-ROWS // GLOBAL_BATCH))  # until an epoch ends
    assert sorted(logs) == sorted(uninterrupted)
    for step in steps:
        assert logs[step][0] == pytest.approx(uninterrupted[step][0], rel=2e-4)  # logged with 4 digits
    assert [logs[step][1] for step in logs] == pytest.approx([uninterrupted[step][1] for step in logs])
    assert uninterrupted[STEPS][0] < 0.9 * uninterrupted[1][0]


def test_random_states_are_told(runs):
    _, pieces = runs
    told = [[line for line in piece[0][2] if "random states" in line] for piece in pieces]
    assert [len(lines) for lines in told] == [0, 1, 1]
    assert told[2][0].endswith("2 of 4 rank(s) go on with the random states of their rank, the other 2 are seeded anew")
