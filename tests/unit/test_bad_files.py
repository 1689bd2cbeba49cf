"""Whatever stands where a config should: a finding or one line of usage, within a second, never a traceback."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from zerotune.cli import run

ZERO = '{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}'
FILES = {
    "empty.json": (b"", "ZT001"),
    "list.json": (b"[1, 2]", "ZT025"),
    "bom.json": (b"\xef\xbb\xbf" + ZERO.encode(), "ZT003"),
    "utf16.json": (ZERO.encode("utf-16"), "UTF-16"),
    "utf16le.json": (ZERO.encode("utf-16-le"), "binary"),
    "binary.json": (bytes(range(256)) * 20, "binary"),
    "nul.json": (b"\x00\x00", "binary"),
    "deep.json": (b"[" * 100_000, "ZT002"),
    "deep_object.json": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "ZT002"),
    "rather_deep.json": (b'{"a":' * 3_000, "ZT021"),
    "nan.json": (b'{"gradient_clipping": NaN}', "ZT007"),
    "infinity.json": (b'{"gradient_clipping": Infinity}', "ZT023"),
    "huge_number.json": (b'{"train_batch_size": 1e400, "x": 1e999999999}', "ZT"),
    "long_number.json": (b'{"train_batch_size": ' + b"9" * 200_000 + b"}", "ZT"),
    "beyond_64_bits.json": (b'{"zero_optimization": {"stage": 123456789012345678901234567890}}', "ZT"),
    "surrogate.json": (b'{"a": "\\ud800"}', "ZT"),
    "one_word.json": (b"x" * 900_000, "ZT009"),
    "comments.json": (b"/*" * 400_000, "ZT"),
    "deep.yaml": (b"a: " + b"[" * 30_000, "ZT002"),
    "cycle.yaml": (b"a: &x\n  b: *x\n", "ZT021"),
    "keys.yaml": (b"3: 4\nzero_optimization: {stage: 2}\n", "ZT022"),
    "empty.yaml": (b"", "ZT001"),
    "nan.yaml": (b"zero_optimization:\n  stage: .nan\n", "ZT007"),
    "several.yaml": (b"a: 1\n---\nb: 2\n", "ZT026"),
    "tab.yaml": (b"zero_optimization:\n\tstage: 2\n", "ZT026"),
}


@pytest.fixture
def judged(capsys):
    """arguments -> exit code and all output of `validate`, which took less than a second."""

    def call(*arguments: str) -> tuple[int, str]:
        start = time.process_time()
        code = run(["validate", *arguments])
        assert time.process_time() - start < 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and "ZT000" not in captured.out
        return code, captured.out + captured.err

    return call


@pytest.mark.parametrize("entry", ["trainer", "raw"])
@pytest.mark.parametrize("name", FILES)
def test_contents(judged, tmp_path, name, entry):
    data, expected = FILES[name]
    (tmp_path / name).write_bytes(data)
    code, output = judged(str(tmp_path / name), "--entry", entry)
    assert code in (1, 2) and expected in output
    assert code == 1 or output.count("zerotune-config:") == output.count("\n") == 1


def test_a_file_of_100_mb_is_not_read(judged, tmp_path):
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(100 << 20)
    assert judged(str(tmp_path / "big.json")) == (
        2,
        f"zerotune-config: {tmp_path / 'big.json'} is larger than 1 MiB: that is no DeepSpeed config\n",
    )


def test_what_is_no_file(judged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    names = {
        "folder": "is a folder",
        "broken": "a link to nowhere",
        "loop": "loop",
        "gone.json": "no file",
        "": "empty",
    }
    for name, expected in names.items():
        code, output = judged(name)
        assert code == 2 and expected in output, name
    assert judged("/dev/null")[0] == 1
    assert judged("/dev/zero")[0] == 2


def test_pipes(judged, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["zerotune.ds_config.resolve"], "PIPE_WAIT_MS", 100)
    os.mkfifo(tmp_path / "pipe")
    code, output = judged(str(tmp_path / "pipe"))
    assert code == 2 and "nothing has written" in output
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(ZERO,))
    writer.start()
    assert judged(str(tmp_path / "pipe"))[0] == 0
    writer.join(5)


def test_closed_standard_input(judged, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert judged("-")[0] == 2


def test_accelerates_yaml_and_the_json_that_it_names(judged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "acc.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 6\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    code, output = judged(str(path))
    assert code == 2 and "ds.json, which isn't there" in output
    (tmp_path / "conf" / "ds.json").write_text('{"zero_optimization": {"stage": 7}}')
    assert "conf/ds.json:1:33" in judged(str(path))[1], "beside the file"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": 8}')
    code, output = judged(str(path), "--effective")
    assert "ds.json:1:" in output and "conf/ds.json" not in output, "accelerate looks from the working directory"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 6\ndeepspeed_config:\n  zero_stage: 7\n")
    before = path.read_text()
    code, output = judged(str(path), "--fix")
    assert code == 1 and "acc.yaml:4:15" in output and path.read_text() == before
