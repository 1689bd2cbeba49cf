"""A whole job on 2 ranks, resumed on one rank with another template, as a user starts them."""

from __future__ import annotations

import pytest

from tests.engine.test_train_job import SMALL, losses

pytestmark = pytest.mark.slow

FLAGS = (*SMALL, "--max_seq_length", "64", "--logging_steps", "1", "--max_steps", "8", "--save_steps", "4")
FLAGS = (*FLAGS, "--eval_strategy", "no", "--export", "False", "--max_train_samples", "400")


@pytest.fixture(scope="module")
def run(jobs):
    folder = jobs.cwd / "two_ranks"
    sizes = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2")
    ended = jobs.train(
        "--ds", "stage2", *FLAGS, *sizes, "--output_dir", str(folder), launcher="deepspeed", ranks=2
    )  # fmt: skip
    assert ended.code == 0, ended.output[-4000:]
    return folder


def test_two_ranks_of_stage_2_go_on_as_one_of_stage_3_with_offload(run, jobs):
    again = jobs.cwd / "one_rank"
    ended = jobs.train(
        *("--ds", "stage3_offload", *FLAGS, "--output_dir", str(again)),
        *("--resume_from_checkpoint", str(run / "checkpoint-4")),
    )
    assert ended.code == 0, ended.output[-4000:]
    told = "resume: 2 ranks, stage 2, no offload, fp32 -> 1 rank, stage 3, optimizer on CPU, parameters on CPU, fp32"
    assert len(ended.lines(told)) == 1
    assert len(ended.lines("resume: global batch 8 = 2 rank(s) x 2 x 2 accumulated; now 8 = 1 rank(s) x 2 x 4")) == 1
    assert len(ended.lines("1 of 1 rank(s) go on with the random states of their rank")) == 1
    before, after = losses(run), losses(again)
    assert sorted(after) == [5, 6, 7, 8]
    assert after == {step: pytest.approx(before[step], rel=1e-4) for step in after}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ("flag", "--per_device_train_batch_size 3 on 1 rank(s) cannot make 8"),
        ("rank", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt is missing"),
    ],
)
def test_bad_input_ends_in_one_message_and_deletes_nothing(run, jobs, spoil, told):
    step = run / "checkpoint-8" / "global_step8"
    files = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    lost = next(step.glob("*zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    if spoil == "rank":
        told = told.replace("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", lost.name)
        lost.rename(run / "lost")
    flags = ("--per_device_train_batch_size", "3") if spoil == "flag" else ()
    longer = [*FLAGS, *flags, "--max_steps", "9", "--resume_from_checkpoint", str(run / "checkpoint-8")]
    ended = jobs.train("--ds", "stage2", *longer, "--output_dir", str(jobs.cwd / f"bad_{spoil}"))
    if spoil == "rank":
        (run / "lost").rename(lost)
    assert ended.code == 2, ended.output[-4000:]
    assert len(ended.lines("zerotune: error:")) == 1
    assert told in ended.output
    assert "Traceback" not in ended.output
    assert {path: path.stat().st_size for path in run.rglob("*") if path.is_file()} == files
