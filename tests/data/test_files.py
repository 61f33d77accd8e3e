"""The one atomic writer, and the reader of JSON, TOML and YAML."""

from __future__ import annotations

import gzip
import os

import pytest

from fastreader.data import files
from fastreader.data.files import read_object, read_values, replacing, write_json, write_text
from fastreader.errors import InputError


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    file.chmod(0o640)
    write_text(file, "näme\n")
    assert file.read_bytes() == "näme\n".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_no_draft(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(KeyError), replacing(file) as stream:
        stream.write("half")
        raise KeyError
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"x": float("nan")})
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_old_file_is_there_until_the_block_ends(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with replacing(file) as stream:
        stream.write("new")
        stream.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new"


def test_an_error_of_the_system_names_the_file(tmp_path):
    with pytest.raises(OSError, match="absent") as raised:
        write_text(tmp_path / "absent" / "a.txt", "x")
    assert "absent" in str(raised.value.filename)


def test_gzip_by_name_is_reproducible(tmp_path):
    contents = []
    for name in ("a.txt.gz", "B.TXT.GZ"):
        write_text(tmp_path / name, "x\n")
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    assert gzip.decompress(contents[0]) == b"x\n"
    with replacing(tmp_path / "c.gz", compress=False) as stream:
        stream.write("x\n")
    assert (tmp_path / "c.gz").read_bytes() == b"x\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"k": [1]}'), ("a.toml", "k = [1]"), ("a.yaml", "k: [1]"), ("a.yml", "k:\n- 1"), ("a", '{"k": [1]}')],
)
def test_the_suffix_determines_the_format(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_values(tmp_path / name, (".json", ".toml", ".yaml", ".yml")) == {"k": [1]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", r"a\.json: not JSON"),
        ("a.toml", b"k = ", r"a\.toml: not TOML"),
        ("a.yaml", b"k: [", r"a\.yaml: not YAML"),
        ("a.json", b"\xff", r"a\.json: not JSON"),
        ("a.json", b"[" * 200_000, r"a\.json: not JSON"),
        ("a.json", b"[1]", r"a\.json: expected an object with keys and values, got \[1\]"),
        ("a.json", None, r"a\.json: cannot be read \(No such file"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_object(tmp_path / name, (".json", ".toml", ".yaml"))


def test_json_is_read_back(tmp_path):
    value = {"ä": [1, 2.5, None, True], "b": {"c": "d"}}
    write_json(tmp_path / "a.json", value)
    assert read_object(tmp_path / "a.json") == value
    assert "ä" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_file_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE", 10)
    (tmp_path / "a.json").write_text("[1, 2, 3, 4]")
    with pytest.raises(InputError, match=r"a\.json: is longer than 10 bytes"):
        read_values(tmp_path / "a.json")


def test_a_named_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"a\.json: is a named pipe"):
        read_values(tmp_path / "a.json")


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
        "a: &a [*a]",
        "2001-99-99: 1",
        "? [a, b]\n: 1",
    ],
    ids=["aliases", "itself", "no date", "list as key"],
)
def test_odd_yaml_is_an_error(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError, match=r"a\.yaml: not YAML"):
        read_values(tmp_path / "a.yaml", (".json", ".yaml"))
