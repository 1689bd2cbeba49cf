"""Where examples come from: the built-in corpus, local files, a saved `datasets` folder or a hub name."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import datasets

from zerotune.errors import UsageError
from zerotune.preflight import named_files
from zerotune.training import ranks
from zerotune.training.arguments import DataArguments
from zerotune.training.data import corpus, json_faults

# File ending -> builder of the `datasets` library and its options.
BUILDERS = {
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".csv": ("csv", {}),
    ".parquet": ("parquet", {}),
    ".txt": ("text", {"sample_by": "paragraph"}),
}
SHOULD_HOLD = "It should hold examples with `text`, `prompt`+`completion` or `messages`."
VALIDATION_NAMES = ("validation", "valid", "val", "dev", "test", "eval")


def load(args: DataArguments, seed: int) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """Return raw (train, validation) examples; validation is None when there are too few to hold some out.

    Raises:
        UsageError: nothing at that name, an empty or broken file, no training examples.
    """
    if args.dataset_name is None:
        train, validation = (_standard_library(split) for split in ("train", "validation"))
    else:
        splits = _open("--dataset_name", args.dataset_name, args.dataset_config_name)
        train, validation = _train_split(splits, args.dataset_name), _validation_split(splits)
        if args.validation_name:
            splits = _open("--validation_name", args.validation_name, None)
            validation = _only_validation(splits, args.validation_name)
        elif validation is None:
            train, validation = _hold_out(train, args.validation_percent, seed)
    if validation is None:
        why = f"{len(train)} example" if len(train) < 2 else f"--validation_percent {args.validation_percent:g}"
        ranks.say(f"no validation set ({why}): the run is not evaluated")
    return train, validation


def _standard_library(split: str) -> datasets.Dataset:
    root = Path(sysconfig.get_path("stdlib"))
    made = datasets.Dataset.from_generator(corpus.texts, gen_kwargs={"split": split, "root": root}, split=split)
    if not len(made):
        raise UsageError(f"{root} holds no Python source files to train on. Give --dataset_name.")
    return made


def _open(flag: str, name: str, config_name: str | None) -> dict[str, datasets.Dataset]:
    path = Path(name).expanduser()
    if path.is_file():
        return _files([path])
    if path.is_dir():
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return _saved(path)
        named = sorted(file for file in path.iterdir() if file.suffix.lower() in BUILDERS)
        if gone := next((file for file in named if not file.exists()), None):
            raise UsageError(f"{gone} is a link to {gone.readlink()}, which does not exist. Mend or delete it.")
        found = [file for file in named if file.stat().st_size]
        if not found:
            raise UsageError(f"{path}: no data files in this folder. Looked for {', '.join(BUILDERS)}.")
        return _files(found)
    named_files.require_data(flag, name)
    return _hub(flag, name, config_name)


def _saved(path: Path) -> dict[str, datasets.Dataset]:
    try:
        saved = datasets.load_from_disk(str(path))
    except IndexError as error:  # datasets 5.2 writes an empty table in no part and then wants the first
        raise UsageError(f"{path} holds no examples. {SHOULD_HOLD}") from error
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path}: cannot be read as a saved dataset: {type(error).__name__}: {error}") from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}


def _files(paths: list[Path]) -> dict[str, datasets.Dataset]:
    for path in paths:
        if path.suffix.lower() not in BUILDERS:
            raise UsageError(f"{path}: cannot tell the format of this file. Endings known: {', '.join(BUILDERS)}.")
        if path.stat().st_size == 0:
            raise UsageError(f"{path} is empty. {SHOULD_HOLD}")
    endings = {path.suffix.lower() for path in paths}
    if len({BUILDERS[ending][0] for ending in endings}) > 1:
        raise UsageError(
            f"{paths[0].parent}: files of several formats ({', '.join(sorted(endings))}). Keep one of them."
        )
    builder, options = BUILDERS[paths[0].suffix.lower()]
    if builder == "text":
        ranks.say(f"{_names(paths)}: every paragraph (lines up to an empty one) is one example")
    by_split: dict[str, list[str]] = {}
    for path in paths:
        by_split.setdefault(_split_of(path) if len(paths) > 1 else "train", []).append(str(path))
    try:
        return dict(datasets.load_dataset(builder, data_files=by_split, **options))
    except (datasets.exceptions.DatasetGenerationError, ValueError, UnicodeDecodeError) as error:
        cause = error.__cause__ or error
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        if "corresponds to no data" in reason:
            raise UsageError(f"{_names(paths)} holds no examples. {SHOULD_HOLD}") from error
        where = (
            builder == "json" and json_faults.first_of(paths)
        ) or f"{_names(paths)}: cannot be read as {builder}: {reason}"
        raise UsageError(where) from error


def _split_of(path: Path) -> str:
    """The split that a file's name stands for: `dev.jsonl` and `dev-1.jsonl` validate, `developers.jsonl` trains."""
    first_word = re.split(r"[-_. ]", path.stem.lower(), maxsplit=1)[0]
    return first_word if first_word in VALIDATION_NAMES else "train"


def _names(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"


def _hub(flag: str, name: str, config_name: str | None) -> dict[str, datasets.Dataset]:
    try:
        loaded = datasets.load_dataset(name, config_name)
    except Exception as error:  # the hub client raises many types; each says why in its first line
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"{flag} {name}: no such file or folder here, and as a hub dataset: {first_line}") from error
    return dict(loaded)


def _train_split(splits: dict[str, datasets.Dataset], name: str) -> datasets.Dataset:
    if "train" in splits:
        train = splits["train"]
    elif len(splits) == 1:
        train = _only(splits)
    else:
        raise UsageError(f"{name}: no split named train. Splits there: {', '.join(splits)}.")
    if not len(train):
        raise UsageError(f"{name}: the training split holds no examples.")
    return train


def _validation_split(splits: dict[str, datasets.Dataset]) -> datasets.Dataset | None:
    return next((splits[name] for name in VALIDATION_NAMES if name in splits and len(splits[name])), None)


def _only_validation(splits: dict[str, datasets.Dataset], name: str) -> datasets.Dataset:
    """What to evaluate on of data that the user named for it: its validation split, or the only one."""
    found = _validation_split(splits)
    if found is None and len(splits) > 1:
        raise UsageError(
            f"--validation_name {name}: no split with examples is named {', '.join(VALIDATION_NAMES[:-1])} or "
            f"{VALIDATION_NAMES[-1]}. Splits there: {', '.join(splits)}."
        )
    return _only(splits) if found is None else found


def _only(splits: dict[str, datasets.Dataset]) -> datasets.Dataset:
    return next(iter(splits.values()))


def _hold_out(train: datasets.Dataset, percent: float, seed: int):
    count = round(len(train) * percent / 100)
    if percent <= 0 or len(train) < 2:
        return train, None
    parts = train.train_test_split(test_size=min(max(1, count), len(train) - 1), seed=seed, shuffle=True)
    return parts["train"], parts["test"]
