"""What a run may delete: its own files in a folder that shows it made them, and nothing else."""

from __future__ import annotations

import pytest

from zerotune.errors import UsageError
from zerotune.preflight import output_folder


def a_run(folder, *more: str):
    for name in ("train_results.json", "metrics.jsonl", "checkpoint-5/trainer_state.json", "model/config.json", *more):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 100)
    return folder


def test_overwriting_a_run_keeps_what_it_did_not_write(tmp_path):
    a_run(tmp_path, "notes.md", "checkpoint-notes/a.txt")
    output_folder.check(tmp_path, overwrite=True, resuming=False)
    assert output_folder.bytes_to_free(tmp_path, overwrite=True, resuming=False) == 400
    output_folder.prepare(tmp_path, overwrite=True, resuming=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-notes", "notes.md"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_that_no_run_made_is_refused(tmp_path, overwrite):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").touch()
    with pytest.raises(UsageError, match="no sign of a run"):
        output_folder.check(tmp_path, overwrite, resuming=False)
    assert (tmp_path / "model" / "net.py").exists()


def test_an_unfinished_run_is_recognised_by_its_checkpoint(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "trainer_state.json").touch()
    output_folder.check(tmp_path, overwrite=True, resuming=False)
    with pytest.raises(UsageError, match="unfinished run"):
        output_folder.check(tmp_path, overwrite=False, resuming=False)


def test_links_are_removed_and_not_followed(tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "weights").touch()
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    (folder / "model").symlink_to(target)
    output_folder.prepare(folder, overwrite=True, resuming=False)
    assert (target / "weights").exists() and not (folder / "model").is_symlink()


def test_a_name_that_is_too_long_is_one_message(tmp_path):
    with pytest.raises(UsageError, match="too long"):
        output_folder.check(tmp_path / ("x" * 300), overwrite=False, resuming=False)


def test_room_counts_what_will_be_deleted(tmp_path):
    output_folder.require_room(tmp_path / "new", 2**60, "a run", freed=2**60)
    with pytest.raises(UsageError, match="needed"):
        output_folder.require_room(tmp_path / "new", 2**60, "a run")


@pytest.mark.parametrize("limit", [0, -1, None])
def test_no_limit_counts_two_checkpoints(limit):
    assert output_folder.run_bytes(10, True, limit, export=False)[0] == 2 * 140


def test_checkpoints_that_stay_beyond_the_limit_are_counted():
    assert output_folder.kept_for_ever(100, 30, keeps_best=True) == 4
    assert output_folder.kept_for_ever(-1, 30, keeps_best=False) == 0
    assert output_folder.run_bytes(10, True, 2, export=False, beyond=3)[0] == 6 * 140
