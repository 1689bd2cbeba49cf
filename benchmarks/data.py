"""Our tokenising and packing beside `map` with padding, as tutorials have it, on one corpus of short texts.

    python benchmarks/data.py /tmp/work --rounds 3

The corpus is the Python standard library's sources, cut at line ends into texts of about 300 characters; both ways use
the same tokenizer. The peer is `dataset.map(tokenise, batched=True)` with `padding="max_length"`, `truncation=True`
and `max_length=512`, one process, as it is usually written. Each way is a process of its own with an empty cache; they
take turns, the first round is not counted, and the time is from the loaded raw dataset to a dataset that can be read.
Tokens are real ones: padding does not count. "read" is reading every sequence once, as a data loader would.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "data.csv"
WAYS = ("padded map", "zerotune")
BLOCK = 512
CHARACTERS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each way")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.folder)))
        return
    write_corpus(options.folder)
    runs = {way: [] for way in WAYS}
    for turn in range(options.rounds + 1):
        for way in WAYS:
            answer = started(way, options.folder, turn)
            seconds = f"prepare {answer['prepare_s']:.2f} s, read {answer['read_s']:.2f} s"
            about = f"{answer['tokens']:,} tokens, {answer['fill']:.1%} full{'' if turn else ' (not counted)'}"
            print(f"{way:12} {seconds}, {about}", flush=True)
            if turn:
                runs[way].append(answer)
    row = summary(runs)
    print(json.dumps(row, indent=1))
    append(options.csv, row)


def write_corpus(folder: Path) -> None:
    """texts.jsonl and the tokenizer, once."""
    from transformers import PreTrainedTokenizerFast

    from zerotune.training.data import corpus

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "texts.jsonl").exists():
        return
    made: PreTrainedTokenizerFast = corpus.train_tokenizer((row["text"] for row in corpus.texts("train")), 8192)
    made.pad_token = made.pad_token or made.eos_token
    made.save_pretrained(folder / "tokenizer")
    with (folder / "texts.jsonl").open("w") as file:
        for row in corpus.texts("train"):
            for text in short_texts(row["text"]):
                print(json.dumps({"text": text}), file=file)


def short_texts(text: str) -> list[str]:
    """Whole lines, about CHARACTERS at a time."""
    made, size = [[]], 0
    for line in text.splitlines(keepends=True):
        if size > CHARACTERS:
            made.append([])
            size = 0
        made[-1].append(line)
        size += len(line)
    return ["".join(lines) for lines in made if "".join(lines).strip()]


def started(way: str, folder: Path, turn: int) -> dict:
    cache = folder / f"cache_{turn}_{WAYS.index(way)}"
    command = [sys.executable, __file__, str(folder), "--way", way]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    subprocess.run(["rm", "-rf", str(cache)], check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(way: str, folder: Path) -> dict:
    """Seconds of preparing and of reading all of it, real tokens, and the share of positions that hold one."""
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    raw = datasets.load_dataset("json", data_files=str(folder / "texts.jsonl"), split="train")
    start = time.perf_counter()
    made, tokens = {"padded map": padded, "zerotune": packed}[way](raw, tokenizer)
    prepared = time.perf_counter()
    for at in range(len(made)):
        made[at]
    end = time.perf_counter()
    tokens = tokens if tokens is not None else sum(sum(mask) for mask in made["attention_mask"])
    return {
        "prepare_s": prepared - start,
        "read_s": end - prepared,
        "tokens": int(tokens),
        "sequences": len(made),
        "fill": int(tokens) / (len(made) * BLOCK),
    }


def padded(raw, tokenizer):
    def tokenise(batch):
        return tokenizer(batch["text"], truncation=True, padding="max_length", max_length=BLOCK)

    return raw.map(tokenise, batched=True, remove_columns=["text"]), None


def packed(raw, tokenizer):
    from zerotune.training.arguments import DataArguments
    from zerotune.training.data import prepare

    workers = len(os.sched_getaffinity(0))
    sequences, counts = prepare.make(raw, DataArguments(), tokenizer, BLOCK, "train", workers, None)
    return sequences, counts.tokens


def summary(runs: dict[str, list[dict]]) -> dict:
    rate = {way: statistics.median(one["tokens"] / one["prepare_s"] for one in runs[way]) for way in WAYS}
    whole = {
        way: statistics.median(one["tokens"] / (one["prepare_s"] + one["read_s"]) for one in runs[way]) for way in WAYS
    }
    return {
        "date": datetime.date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "block": BLOCK,
        "tokens": runs["zerotune"][0]["tokens"],
        "padded_fill": round(runs["padded map"][0]["fill"], 3),
        "packed_fill": round(runs["zerotune"][0]["fill"], 4),
        "padded_tokens_per_s": round(rate["padded map"]),
        "packed_tokens_per_s": round(rate["zerotune"]),
        "ratio": round(rate["zerotune"] / rate["padded map"], 2),
        "ratio_with_reading": round(whole["zerotune"] / whole["padded map"], 2),
        "versions": " ".join(f"{name}={version(name)}" for name in ("datasets", "tokenizers", "transformers")),
    }


def append(path: Path, row: dict) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
