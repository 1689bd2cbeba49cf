"""--training-args: flags, launch lines and scripts as people have them, files of TrainingArguments."""

from __future__ import annotations

import time

import pytest

from zerotune.commands.run_facts import run_facts
from zerotune.ds_config import Context, check
from zerotune.errors import UsageError


@pytest.mark.parametrize(
    ("line", "ranks", "nodes"),
    [
        ("--bf16", None, None),
        ("train.py --bf16", None, None),
        ("deepspeed train.py --bf16", None, 1),
        ("deepspeed --num_gpus 8 train.py --bf16", 8, 1),
        ("deepspeed --num_gpus=8 --num_nodes 2 -H hostfile train.py --bf16", 16, 2),
        ("deepspeed --hostfile h --num_gpus 8 train.py --bf16", None, None),
        ("CUDA_VISIBLE_DEVICES=0,1,2 deepspeed --master_port 29501 train.py --bf16", 3, 1),
        ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed train.py --bf16", 2, 1),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 1 train.py --bf16", 1, 1),
        ("deepspeed --include localhost:0,1 train.py --bf16", 2, 1),
        ("deepspeed --include a:0,1@b:0,1,2 train.py --bf16", 5, 2),
        ("deepspeed --include a@b train.py --bf16", None, 2),
        ("torchrun train.py --bf16", 1, 1),
        ("torchrun --nproc_per_node 8 --nnodes 2 --rdzv-endpoint=h:1 train.py --bf16", 16, 2),
        ("torchrun --nproc-per-node=gpu train.py --bf16", None, 1),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 train.py --bf16", None, None),
        ("python3.11 -m torch.distributed.run --nproc_per_node=4 -m pkg.train --bf16", 4, 1),
        ("accelerate launch --num_processes $((2 * 8)) --num_machines 2 train.py --bf16", 16, 2),
        ("uv run accelerate launch -m pkg.train --bf16", None, None),
        ("mpirun -np 4 -x PATH python train.py --bf16", 4, None),
        ("srun --nodes 2 torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 train.py --bf16", None, None),
        ("srun python train.py --bf16", None, None),
        ("python train.py --deepspeed ds.json --bf16", 1, 1),
        ("python sweep.py --bf16", None, None),
        ("N=8; deepspeed --num_gpus $N train.py --bf16 > log 2>&1 &", 8, 1),
        ("torchrun --nproc_per_node ${GPUS:-4} train.py --bf16 | tee log", 4, 1),
        ("docker run --gpus all x bash -c 'cd /w && deepspeed --num_gpus 2 train.py --bf16'", 2, 1),
        ("L='torchrun --nproc_per_node 2'; srun --jobid $ID bash -lc '$L train.py --bf16'", 2, 1),
        ('CMD=\'deepspeed --num_gpus 2 train.py --bf16\'\necho "$CMD"\neval "$CMD"', 2, 1),
        ("pip install --upgrade x && deepspeed --num_gpus 2 a.py --bf16; python merge.py --fp16", 2, 1),
    ],
)
def test_the_size_of_a_run(line, ranks, nodes):
    facts = run_facts(line)
    assert (facts.ranks, facts.nodes, facts.training_args["bf16"]) == (ranks, nodes, True)
    assert "fp16" not in facts.training_args


SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
# it's a comment
export LR=2e-5  # rate
ARGS="--bf16 true \
  --learning_rate $LR"
OPTS=(
  --max_grad_norm 0.5   # clip
  --run_name "a # b"
)
OPTS+=(--warmup_steps 10)
if [ -z "$X" ]; then echo "none"; fi
deepspeed --num_gpus 4 \
    train.py --deepspeed ds.json \
    $ARGS "${OPTS[@]}" --logging_dir 'x y' --weight_decay $WD "$@" 2>&1 | tee log.txt
"""


def test_a_script(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    facts = run_facts(f"@{path}")
    assert facts.training_args == {
        "deepspeed": "ds.json",
        "bf16": True,
        "learning_rate": 2e-5,
        "max_grad_norm": 0.5,
        "run_name": "a # b",
        "warmup_steps": 10,
        "logging_dir": "x y",
    }
    assert (facts.ranks, facts.unknown) == (4, {"weight_decay"})
    assert "--weight_decay is taken as unknown: nothing here sets $WD" in capsys.readouterr().err


def test_an_unknown_value_is_no_default():
    config = {"train_batch_size": "auto", "zero_optimization": {"stage": 2}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}
    config["bf16"] = {"enabled": True}
    unknown = frozenset({"learning_rate", "adam_beta2", "bf16"})
    fights = [f.pointer for f in check(config, Context(training_args={})) if f.rule == "ZT210"]
    assert len(fights) == 3
    assert not [f for f in check(config, Context(training_args={}, unknown=unknown)) if f.rule == "ZT210"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"bf16": true, "learning_rate": 1e-4, "output_dir": "x"}'),
        ("a.yaml", "bf16: true\nlearning_rate: 1e-4\noutput_dir: x\n"),
    ],
)
def test_a_file_of_arguments(tmp_path, monkeypatch, name, text):
    (tmp_path / name).write_text(text)
    expected = {"bf16": True, "learning_rate": 1e-4, "output_dir": "x"}
    assert run_facts(f"@{tmp_path / name}").training_args == expected
    monkeypatch.chdir(tmp_path)
    facts = run_facts(f"torchrun --nproc_per_node 2 train.py {name}")
    assert (facts.training_args, facts.ranks) == (expected, 2)


def test_accelerates_file_gives_the_size(tmp_path):
    (tmp_path / "acc.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 6\nnum_machines: 2\n")
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch --config_file acc.yaml train.py --bf16\n")
    assert (run_facts(f"@{script}").ranks, run_facts(f"@{script}").nodes) == (6, 2)
    script.write_text("accelerate launch --config_file acc.yaml --num_processes 4 train.py --bf16\n")
    assert run_facts(f"@{script}").ranks == 4


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", "[1]", "no names and values"),
        ("a.json", '{"a": ', ":1:"),
        ("a.yaml", "a: [1", ":1:"),
        ("a.yaml", "", ":1:1"),
        ("a.yaml", "learning_rate: fast\n", "not a number"),
        ("a.sh", "echo 'abc", "partner"),
        ("a.sh", "torchrun train.py gone.yaml", "gone.yaml"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=expected):
        run_facts(f"@{tmp_path / name}")


SLURM = r"""
#SBATCH --nodes=4
ARGS=(--learning_rate 2e-5 --bf16)
srun --jobid $SLURM_JOBID bash -c "torchrun \
  --nnodes $SLURM_NNODES --node_rank \$SLURM_PROCID --nproc_per_node 8 \
  --master_addr $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) \
  train.py --deepspeed ds.json ${ARGS[@]} --weight_decay 0.1"
"""


def test_a_launch_line_in_quotes(capsys):
    facts = run_facts(SLURM)
    assert facts.training_args == {"deepspeed": "ds.json", "learning_rate": 2e-5, "bf16": True, "weight_decay": 0.1}
    assert (facts.ranks, facts.unknown, capsys.readouterr().err) == (None, frozenset(), "")


def test_what_the_caller_adds_is_no_value():
    assert run_facts('train() { deepspeed train.py --bf16 "${@:2}"; }').training_args == {"bf16": True}


@pytest.mark.parametrize("text", ["train.sh", "hello world", "bash -c 'x'", "pip install x"])
def test_words_that_say_nothing_about_a_run(text):
    """Else all flags would be taken as their defaults, and compared."""
    with pytest.raises(UsageError, match="@FILE reads a script"):
        run_facts(text)


@pytest.mark.parametrize("path", ["@", "@no.sh", "@/", "@no.yaml"])
def test_files_that_are_not_there(path):
    with pytest.raises(UsageError):
        run_facts(path)


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxxxx\n" + "A=$A$A$A$A\n" * 30 + "x $A",
        "$(" * 30_000,
        "`" * 50_001,
        "'" * 60_001,
        "(" * 60_000,
        "${" * 30_000,
        "\\" * 60_001,
        "--a " * 16_000,
        "A=(" * 20_000,
        "a=$((" + "1+" * 30 + "1)); x $a",
        'x "' + "$((" * 20_000 + '"',
        "\ue000 --a \ue000",
        "--bf16 \x00",
        "eval " * 2_000 + "x --a",
        'X=\'eval "$X"\'; eval "$X"',
        "X='eval \"$X$X\"'; eval $X",
        "X=" + "x" * 30_000 + '\neval "$X" --b' * 2_000,
        "x" * 1_000_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_scripts_end_soon(text):
    start = time.process_time()
    try:
        run_facts(text)
    except UsageError as mistake:
        assert "--training-args" in str(mistake)
    assert time.process_time() - start < 1
