"""The corpus that every machine has: the Python standard library's own source files, and a tokenizer made from it."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Third-party packages, generated tables and the interpreter's own test data are not the standard library's prose.
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
VALIDATION_SHARE = 20  # one file in 20
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def cache_dir() -> Path:
    """Where zerotune keeps what it makes once: $ZEROTUNE_CACHE, else zerotune/ in the user's cache folder."""
    if chosen := os.environ.get("ZEROTUNE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zerotune"


def source_files(root: Path | None = None) -> list[Path]:
    """All readable .py files of the standard library, sorted by path."""
    root = root or Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if not SKIPPED_FOLDERS & set(path.relative_to(root).parts))


def is_validation(path: Path, root: Path) -> bool:
    """One file in VALIDATION_SHARE, by a hash of its relative path: the same on every machine and version."""
    digest = hashlib.sha256(path.relative_to(root).as_posix().encode()).digest()
    return int.from_bytes(digest[:4]) % VALIDATION_SHARE == 0


def texts(split: str, root: Path | None = None) -> Iterator[dict[str, str]]:
    """Yield {"text": whole file} of one split, `train` or `validation`; the split is by file."""
    root = root or Path(sysconfig.get_path("stdlib"))
    for path in source_files(root):
        if is_validation(path, root) == (split == "validation"):
            text = path.read_text(encoding="utf-8", errors="ignore")
            if text.strip():
                yield {"text": text}


def train_tokenizer(lines: Iterator[str], vocab_size: int):
    """Train a byte-level BPE tokenizer with ChatML's special tokens and template.

    Args:
        lines: the training texts.
        vocab_size: number of tokens in all, special ones included.

    Returns:
        A transformers PreTrainedTokenizerFast; <|endoftext|> begins nothing, ends every text and pads.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    bare.train_from_iterator(lines, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    made.chat_template = CHATML
    return made
