"""Every way to name data, on real files; and the corpus that every machine has."""

from __future__ import annotations

import json

import datasets
import pytest

from zerotune.errors import UsageError
from zerotune.training.arguments import DataArguments
from zerotune.training.data import corpus, sources

ROWS = [{"text": f"line {number}"} for number in range(40)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")


def load(name, **more):
    return sources.load(DataArguments(dataset_name=str(name), **more), seed=1)


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "parquet", "txt"])
def test_a_local_file_gives_its_rows_with_some_held_out(ending, tmp_path):
    path, data = tmp_path / f"rows.{ending}", datasets.Dataset.from_list(ROWS)
    writers = {
        "json": lambda: path.write_text(json.dumps(ROWS)),
        "jsonl": lambda: data.to_json(path),
        "csv": lambda: data.to_csv(path, index=False),
        "parquet": lambda: data.to_parquet(path),
        "txt": lambda: path.write_text("\n\n".join(row["text"] for row in ROWS)),
    }
    writers[ending]()
    train, validation = load(path, validation_percent=10)
    assert sorted([*train["text"], *validation["text"]]) == sorted(row["text"] for row in ROWS)
    assert len(validation) == 4


def test_saved_datasets_keep_their_splits(tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=data, validation=data.select(range(3))).save_to_disk(tmp_path / "saved")
    train, validation = load(tmp_path / "saved")
    assert (len(train), len(validation)) == (40, 3)
    data.save_to_disk(tmp_path / "one")
    train, validation = load(tmp_path / "one", validation_percent=0)
    assert (len(train), validation) == (40, None)


def test_files_of_a_folder_are_splits_by_name(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, count in (("train-1", 5), ("train-2", 6), ("validation", 2)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:count]))
    train, validation = load(folder)
    assert (len(train), len(validation)) == (11, 2)


@pytest.mark.parametrize(
    ("name", "validates"),
    [("dev", True), ("dev-00000-of-00001", True), ("Test_1", True), ("developers", False), ("evaluations", False)],
)
def test_only_a_whole_word_makes_a_file_validation_data(name, validates, tmp_path):
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "support.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    train, validation = load(tmp_path, validation_percent=0)
    assert (len(train), validation is not None) == ((3, True) if validates else (4, False))


def test_validation_data_of_its_own(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    train, validation = load(tmp_path / "a.jsonl", validation_name=str(tmp_path / "b.jsonl"))
    assert (len(train), len(validation)) == (40, 1)


def test_an_unknown_ending_lists_the_known(tmp_path):
    (tmp_path / "rows.docx").write_text("x")
    with pytest.raises(UsageError, match=r"rows\.docx.*\.jsonl"):
        load(tmp_path / "rows.docx")


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_broken_line_is_counted_as_an_editor_counts(ending, tmp_path):
    path = tmp_path / f"rows.{ending}"
    lines = [json.dumps(row) for row in ROWS]
    lines[7] = '{"text": "no end'
    path.write_text("\n".join(lines) if ending == "jsonl" else "[" + ",\n".join(lines) + "]")
    with pytest.raises(UsageError, match=rf"rows\.{ending}, line 8, column \d+: cannot be read as json"):
        load(path)


def test_one_paragraph_is_said_to_be_one_example_without_validation(tmp_path, capsys):
    (tmp_path / "book.txt").write_text("one\ntwo\n")
    train, validation = load(tmp_path / "book.txt")
    assert (train["text"][:], validation) == (["one\ntwo\n"], None)
    said = capsys.readouterr().out
    assert "every paragraph" in said
    assert "no validation set (1 example)" in said


def test_missing_validation_data_names_its_own_flag(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(UsageError, match=r"--validation_name .*b\.jsonl: no such file"):
        load(tmp_path / "a.jsonl", validation_name=str(tmp_path / "b.jsonl"))


def test_a_folder_without_data(tmp_path):
    with pytest.raises(UsageError, match="no data files"):
        load(tmp_path)


def test_the_corpus_is_split_by_file_without_overlap():
    train, validation = ({row["text"] for row in corpus.texts(split)} for split in ("train", "validation"))
    assert len(train) > 200
    assert len(validation) > 5
    assert not train & validation


def test_the_split_of_a_file_depends_on_its_name_alone(tmp_path):
    for root in (tmp_path / "a", tmp_path / "b"):
        root.mkdir()
        for number in range(60):
            (root / f"module_{number}.py").write_text(f"x = {number}\n")
    held_out = [
        [path.name for path in sorted(root.iterdir()) if corpus.is_validation(path, root)]
        for root in (tmp_path / "a", tmp_path / "b")
    ]
    assert held_out[0] == held_out[1] != []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.jsonl", "\n\n\n"),
        ("header.csv", "prompt,completion\n"),
        ("list.json", "[]"),
        ("rows.json", "[{}]"),
        ("rows.jsonl", "{}\n{}\n"),
    ],
)
def test_a_file_without_examples_says_so(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=rf"{name} holds no examples"):
        load(tmp_path / name)


def test_a_link_to_nothing_in_a_data_folder(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UsageError, match=r"b\.jsonl is a link to .*gone\.jsonl, which does not exist"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("splits", "rows"),
    [({"train": 9, "test": 2}, 2), ({"train": 9, "test": 2, "dev": 3, "validation": 4}, 4), ({"train": 5}, 5)],
)
def test_the_validation_split_of_the_validation_data(splits, rows, tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "data")
    made = {name: data.select(range(count)) for name, count in splits.items()}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "more")
    _, validation = load(tmp_path / "data", validation_name=str(tmp_path / "more"))
    assert len(validation) == rows


def test_validation_data_without_a_validation_split_names_its_splits(tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "data")
    datasets.DatasetDict(train=data, unlabelled=data).save_to_disk(tmp_path / "more")
    with pytest.raises(UsageError, match=r"--validation_name .*more: .*Splits there: train, unlabelled"):
        load(tmp_path / "data", validation_name=str(tmp_path / "more"))


def test_saved_datasets_that_are_empty_or_broken(tmp_path):
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=data.select([])).save_to_disk(tmp_path / "none")
    with pytest.raises(UsageError, match=r"none holds no examples"):
        load(tmp_path / "none")
    data.save_to_disk(tmp_path / "cut")
    next((tmp_path / "cut").glob("*.arrow")).unlink()
    with pytest.raises(UsageError, match=r"cut: cannot be read as a saved dataset: FileNotFoundError"):
        load(tmp_path / "cut")


def test_one_example_is_always_left_to_train_on(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]))
    train, validation = load(tmp_path / "rows.jsonl", validation_percent=99.9)
    assert (len(train), len(validation)) == (1, 2)
