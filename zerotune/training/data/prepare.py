"""From flags to the two datasets that the Trainer reads."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import datasets
import numpy as np
from torch.utils.data import Dataset

from zerotune.errors import UsageError
from zerotune.training.arguments import DataArguments
from zerotune.training.data import encode, forms, packing


@dataclass
class Counts:
    """What became of the examples of one split."""

    examples: int
    empty: int
    too_long: int  # left out; plain text is cut instead
    cut: int
    sequences: int
    tokens: int
    fill: float  # share of the sequences' positions that hold real tokens, 0 to 1


class Sequences(Dataset):
    """Blocks of `block` tokens, built when asked for from encoded examples on disk.

    Item: input_ids [block], labels [block], position_ids [block], real_tokens (int).
    """

    def __init__(self, encoded: datasets.Dataset, plan: list[list[packing.Segment]], block: int, pad_id: int):
        self.encoded = encoded.with_format("numpy")
        self.plan, self.block, self.pad_id = plan, block, pad_id
        self.has_labels = "labels" in encoded.column_names

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return packing.fill_block([self._arrays(one) for one in self.plan[index]], self.block, self.pad_id)

    def _arrays(self, segment: packing.Segment) -> tuple[np.ndarray, np.ndarray]:
        row = self.encoded[segment.example]
        part = slice(segment.start, segment.start + segment.length)
        ids = row["input_ids"][part]
        return ids, (row["labels"][part] if self.has_labels else ids)


def make(
    raw: datasets.Dataset, args: DataArguments, tokenizer, block: int, name: str, workers: int, most: int | None
) -> tuple[Sequences, Counts]:
    """Tokenise (cached on disk by the `datasets` library) and lay out one split.

    Args:
        raw: examples as the user has them.
        block: tokens per sequence.
        name: the split's name in messages and on the progress bar.
        workers: processes that tokenise.
        most: sequences kept, spread evenly over the data; None for all.

    Raises:
        UsageError: no usable column; every example empty or too long.
    """
    kind = forms.kind_of(raw.column_names, args.dataset_name or name)
    encoded = _tokenise(raw, kind, tokenizer, name, workers)
    lengths = encoded["length"][:]
    splittable = kind == "text" and args.packing
    segments = packing.cut(lengths, block, splittable)
    if kind == "text" and not args.packing:
        segments = [packing.Segment(at, 0, min(size, block)) for at, size in enumerate(lengths) if size > 1]
    empty = sum(size < 2 for size in lengths)
    longer = sum(size > block for size in lengths)
    too_long = 0 if kind == "text" else longer
    cut = longer if kind == "text" and not args.packing else 0  # packing loses nothing: it cuts into whole blocks
    if not segments:
        if forms.is_chat(kind) and not too_long:
            raise UsageError(_no_answers(args.dataset_name or name, kind, raw))
        raise UsageError(
            _nothing_left(args.dataset_name or name, len(lengths), empty, too_long, block, max(lengths, default=0))
        )
    plan = packing.best_fit(segments, block) if args.packing else [[one] for one in segments]
    plan = _spread(plan, most)
    tokens = sum(one.length for row in plan for one in row)
    counts = Counts(len(lengths), empty, too_long, cut, len(plan), tokens, tokens / (len(plan) * block))
    return Sequences(encoded, plan, block, tokenizer.pad_token_id), counts


def _spread(plan: list, most: int | None) -> list:
    if most is None or most >= len(plan):
        return plan
    return [plan[index] for index in np.linspace(0, len(plan) - 1, most).round().astype(int)]


def _nothing_left(name: str, examples: int, empty: int, too_long: int, block: int, longest: int) -> str:
    if too_long:
        return (
            f"{name}: none of {examples} examples can be used: {too_long} are longer than --max_seq_length {block} "
            f"(the longest has {longest} tokens) and {empty} are empty. Raise --max_seq_length."
        )
    return f"{name}: all {examples} examples are empty. Nothing is left to train on."


def _no_answers(name: str, kind: str, raw: datasets.Dataset) -> str:
    found = forms.roles(kind, raw.select(range(min(len(raw), 1000))))
    return (
        f"{name}: no message has the role assistant, so there is nothing to learn from. "
        f"Roles found: {', '.join(found) or 'none'}. Name the answers' role assistant."
    )


def _tokenise(raw: datasets.Dataset, kind: str, tokenizer, name: str, workers: int) -> datasets.Dataset:
    columns = forms.columns_of(kind, raw.column_names)
    raw = raw.select_columns(columns)
    # Small sets are done before a second process has started; tokenizers use threads of their own in one process.
    workers = max(1, min(workers, len(raw) // 2000))
    if workers > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return raw.map(
        encode.encoder(kind, tokenizer),
        batched=True,
        num_proc=workers if workers > 1 else None,
        remove_columns=columns,
        desc=f"tokenise {name}",
        new_fingerprint=_fingerprint(raw, kind, tokenizer),
    )


def _fingerprint(raw: datasets.Dataset, kind: str, tokenizer) -> str:
    """Key of the cached tokens. Our own, because a tokenizer's pickle changes when it is used."""
    backend = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else str(sorted(tokenizer.get_vocab().items()))
    parts = [raw._fingerprint, kind, backend, str(tokenizer.chat_template), str(tokenizer.eos_token_id), "layout 2"]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def target_counts(data: Sequences, vocab_size: int) -> np.ndarray:
    """How often each token is to be predicted in `data`: int64 [vocab_size]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for index in range(len(data)):
        labels = data[index]["labels"]
        counts += np.bincount(labels[labels >= 0], minlength=vocab_size)
    return counts


def unigram_loss(train: np.ndarray, validation: np.ndarray) -> float:
    """Cross-entropy (nats per token) of a unigram model counted on `train` (add-one smoothed) on `validation`."""
    log_probability = np.log((train + 1) / (train.sum() + len(train)))
    return float(-(validation * log_probability).sum() / max(1, validation.sum()))
