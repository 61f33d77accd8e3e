import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import InputError, OutputChangedError


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_is_self_contained(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path, settings={"model": "m", "seed": 0}, fsync=True) as log:
        log.append("a", {"logprobs": [[-1.5, -2.25]], "name": "naïve"})
        log.append("b", {})
        assert rows(path)[0] == {
            "id": "a",
            "logprobs": [[-1.5, -2.25]],
            "name": "naïve",
            "settings": {"model": "m", "seed": 0},
        }
        assert (log.done, len(log), "a" in log, "c" in log) == ({"a", "b"}, 2, True, False)
    log.close()
    assert list(iter_results(path)) == rows(path)


def test_resume(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path, resume=True, settings={"layout": (1, 2)}) as log:
        log.append("a", {"x": 1})
    with ResultLog(path, resume=True, settings={"layout": [1, 2]}) as log:
        assert log.done == {"a"}
        log.append("b", {"x": 2})
    assert [row["id"] for row in rows(path)] == ["a", "b"]


def test_dropped_results_can_be_computed_again(tmp_path):
    path = tmp_path / "a.jsonl"
    with ResultLog(path, settings={"seed": 0}) as log:
        for key in "abc":
            log.append(key, {"value": key})
        log.drop(["b", "absent"])
        assert list(log.done) == ["a", "c"]
        with pytest.raises(InputError, match="another process is writing it"):
            ResultLog(path, resume=True)
        log.append("b", {"value": "B"})
    assert [(r["id"], r["value"]) for r in iter_results(path)] == [("a", "a"), ("c", "c"), ("b", "B")]
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    with ResultLog(path, settings={"seed": 0}, resume=True) as log:
        assert len(log) == 3
    with pytest.raises(InputError, match="key: expected text, got 5"), ResultLog(tmp_path / "b.jsonl") as log:
        log.append(5, {})


def test_results_are_not_overwritten_by_accident(tmp_path):
    path = tmp_path / "log.jsonl"
    path.touch()
    with ResultLog(path) as log:
        log.append("a", {})
    before = path.read_bytes()
    with pytest.raises(InputError, match="holds results already; continue it with resume"):
        ResultLog(path)
    assert path.read_bytes() == before


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path), pytest.raises(InputError, match="another process is writing it"):
        ResultLog(path, resume=True)
    ResultLog(path, resume=True).close()


def test_reading_only_changes_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path, settings={"m": 1}) as log:
        log.append("a", {})
        with path.open("ab") as other:
            other.write(b'{"id": "torn')
        before = path.read_bytes()
        with ResultLog(path, settings={"m": 1}, resume=True, read_only=True) as seen:
            assert list(seen.done) == ["a"]
        assert path.read_bytes() == before
        os.truncate(path, before.index(b"\n") + 1)  # the other's torn line, which would be an error when closing
    with pytest.raises(FileNotFoundError):
        ResultLog(tmp_path / "none.jsonl", resume=True, read_only=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.integers(0, 400))
def test_cut_anywhere_then_resumed(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    path.unlink(missing_ok=True)
    with ResultLog(path) as log:
        for key in "abcdé":
            log.append(key, {"text": "é\u2028" * 8})
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    assert len(list(iter_results(path))) == complete
    with ResultLog(path, resume=True) as log:
        assert log.done == set("abcdé"[:complete])
        for key in "abcdé":
            if key not in log:
                log.append(key, {"text": "é\u2028" * 8})
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"id": "b", "settings"', "line 2: broken JSON"),
        ("[1]", r"line 2: expected a JSON object, got \[1\]"),
        ('{"id": 3, "settings": {}}', "line 2: expected a result with its id and settings, got the keys id, settings"),
        ('{"x": 3}', "line 2: expected a result with its id and settings, got the keys x"),
        ('{"id": "a", "settings": {"m": 1}}', "line 2: 'a' has a result on an earlier line already"),
        ('{"id": "b", "settings": {"m": 2}}', r"line 2: made with other settings: m \(2 there, 1 now\)"),
        ('{"id": "b", "settings": {"m": 1, "n": 0}}', r"other settings: n \(0 there, absent now\)"),
        ('{"id": "b", "settings": {"m": 1.0, "n": null}}', r"other settings: n \(null there, absent now\)"),
    ],
)
def test_files_that_cannot_be_continued_stay_as_they_are(tmp_path, line, expected):
    path = tmp_path / "log.jsonl"
    before = '{"id": "a", "settings": {"m": 1}}\n' + line + '\n{"torn'
    path.write_text(before)
    with pytest.raises(InputError, match=expected):
        ResultLog(path, resume=True, settings={"m": 1})
    assert path.read_text() == before


@pytest.mark.parametrize(
    "tail",
    [
        "notes",
        '{"question": "Which?"}',
        '{"id": 3, "x"',
        '{"id": "q", "question": "Which?"}',
        '{"id": "q", "settings": {"m": 2}}',
        "\0\0\0",
    ],
)
@pytest.mark.parametrize("before", ["", '{"id": "a", "settings": {"m": 1}}\n'])
def test_only_a_torn_result_is_cut_off(tmp_path, before, tail):
    path = tmp_path / "log.jsonl"
    path.write_text(before + tail)
    with pytest.raises(InputError, match=r"log\.jsonl, line [12]"):
        ResultLog(path, resume=True, settings={"m": 1})
    assert path.read_text() == before + tail
    for ours in ("{", '{"id', '{"id": "b', '{"id": "b", "settings": {"m"', '{"id": "b", "settings": {"m": 1}}'):
        path.write_text(before + ours)
        ResultLog(path, resume=True, settings={"m": 1}).close()
        assert path.read_text() == before


def test_the_digest_of_the_example_is_compared(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path) as log:
        log.append("a", {}, example="1234")
        log.append("b", {})
    assert [row.get("example") for row in rows(path)] == ["1234", None]
    with ResultLog(path, resume=True) as log:
        assert log.holds("a", "1234") and not log.holds("c", "1234")
        for key, example in (("a", "4321"), ("b", "1234")):
            with pytest.raises(InputError, match=f"'{key}' has a result already, made from another question"):
                log.holds(key, example)


def test_invalid_results_are_rejected(tmp_path):
    path = tmp_path / "log.jsonl"
    with ResultLog(path) as log:
        log.append("a", {})
        with pytest.raises(InputError, match="'a' has a result already"):
            log.append("a", {})
        with pytest.raises(InputError, match=r"result 'b': expected none of the log's own keys .* got \['settings'\]"):
            log.append("b", {"settings": 1})
        with pytest.raises(InputError, match="result 'b' cannot be written as JSON"):
            log.append("b", {"x": float("nan")})
        log.append("b", {})
    assert len(rows(path)) == 2
    with pytest.raises(InputError, match="settings cannot be written as JSON"):
        ResultLog(tmp_path / "other.jsonl", settings={"x": object()})
    assert not (tmp_path / "other.jsonl").exists()
    with pytest.raises(InputError, match="expected a regular file, got"):
        ResultLog(tmp_path)


def run(code, *args, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], stdout=subprocess.PIPE, text=True, **kwargs
    )


def test_full_disk(tmp_path):
    # A file size limit makes the kernel write a part of the line and then refuse, as a full disk does.
    path = tmp_path / "log.jsonl"
    code = """
        import resource, sys
        from fastreader.data.result_log import ResultLog
        with ResultLog(sys.argv[1]) as log:
            try:
                for i in range(100):
                    log.append(str(i), {"text": "x" * 1000})
            except OSError as error:
                print(error.errno, len(log), error)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for i in range(i, 100):
                log.append(str(i), {"text": "x" * 1000})
    """

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_500, resource.RLIM_INFINITY))

    process = run(code, path, preexec_fn=limit)
    said = process.communicate()[0]
    assert said.startswith(f"{errno.EFBIG} 19 ")
    assert "result '19' could not be written" in said
    assert "the 19 earlier results are intact" in said
    assert [row["id"] for row in rows(path)] == [str(i) for i in range(100)]


def test_full_disk_leaves_only_complete_lines(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    with ResultLog(path) as log:
        log.append("a", {})
        before = path.read_bytes()

        def half(line):
            log._file.write(line[: len(line) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(log, "_write", half)
        with pytest.raises(OSError, match="No space left on device") as raised:
            log.append("b", {})
        assert raised.value.errno == errno.ENOSPC
        assert path.read_bytes() == before
        assert log.done == {"a"}


def test_killed_at_any_moment_and_resumed(tmp_path):
    path = tmp_path / "log.jsonl"
    count = 400

    def write(opened):
        with ResultLog(path, settings={"seed": 0}, resume=True) as log:
            opened.set()
            for i in range(count):
                if str(i) not in log:
                    log.append(str(i), {"value": i, "text": "x" * (i * 97 % 20000)})
                    time.sleep(0.0005)

    forks = multiprocessing.get_context("fork")
    chance = random.Random(0)
    kills = 0
    while True:
        opened = forks.Event()
        process = forks.Process(target=write, args=(opened,))
        process.start()
        assert opened.wait(60)
        time.sleep(chance.uniform(0, 0.06 + 0.01 * kills))  # longer each time, so that a busy machine ends too
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
        # A line torn in the middle of its bytes, which a kill between two writes leaves too rarely to wait for.
        if kills % 3 == 0:
            with path.open("r+b") as file:
                file.truncate(max(0, file.seek(0, 2) - chance.randrange(1, 200)))
    assert kills >= 3
    written = rows(path)
    assert [row["id"] for row in written] == [str(i) for i in range(count)]
    assert all(row["text"] == "x" * (row["value"] * 97 % 20000) for row in written)


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_deleted_file_is_noticed_and_its_results_are_rescued(tmp_path, monkeypatch, folder_too):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "runs"
    folder.mkdir()
    path = folder / "log.jsonl"
    with (
        pytest.raises(OutputChangedError, match=r"log\.jsonl: was deleted or replaced") as raised,
        ResultLog(path) as log,
    ):
        log.append("a", {"x": 1})
        path.unlink()
        if folder_too:
            folder.rmdir()
        log.append("b", {"x": 2})
    (rescued,) = (tmp_path if folder_too else folder).glob("log.jsonl.rescued-*")
    assert str(rescued) in str(raised.value)
    assert [(row["id"], row["x"]) for row in iter_results(rescued)] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("then", ["nothing", "a file", "a folder"])
def test_a_file_deleted_after_the_last_result_is_noticed_when_closing(tmp_path, then):
    path = tmp_path / "log.jsonl"
    with pytest.raises(OutputChangedError, match="deleted or replaced") as raised, ResultLog(path) as log:
        log.append("a", {})
        path.unlink()
        if then == "a file":
            path.write_text("another")
        elif then == "a folder":
            path.mkdir()
    (rescued,) = tmp_path.glob("log.jsonl.rescued-*")
    assert str(rescued) in str(raised.value) and len(rows(rescued)) == 1
    assert then != "a file" or path.read_text() == "another"


def test_a_moved_file_is_named_and_gets_the_result(tmp_path):
    path, moved = tmp_path / "log.jsonl", tmp_path / "elsewhere.jsonl"
    with (
        pytest.raises(OutputChangedError, match=r"log\.jsonl: was moved .* in .*elsewhere\.jsonl"),
        ResultLog(path) as log,
    ):
        log.append("a", {})
        path.rename(moved)
        log.append("b", {})
    assert [row["id"] for row in rows(moved)] == ["a", "b"]
    moved.rename(path)
    with ResultLog(path, resume=True) as log:
        assert log.done == {"a", "b"}


@pytest.mark.parametrize(("size", "how"), [(0, "cut"), (7, "cut"), (200, "grown")])
def test_a_file_cut_or_grown_by_something_else_is_left_alone(tmp_path, size, how):
    path = tmp_path / "log.jsonl"
    with (
        pytest.raises(OutputChangedError, match=rf"log\.jsonl: .*{how} from .*'b' was not written"),
        ResultLog(path) as log,
    ):
        log.append("a", {})
        with path.open("r+b") as other:
            other.truncate(size)
        log.append("b", {})
    assert path.stat().st_size == size


def test_a_changed_file_raises_once_and_does_not_hide_another_error(tmp_path):
    path = tmp_path / "log.jsonl"
    log = ResultLog(path)
    path.unlink()
    for key in "ab":
        with pytest.raises(OutputChangedError):
            log.append(key, {})
    log.close()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("moment", ["before the line", "within it", "after it"])
def test_an_interruption_leaves_whole_lines_and_a_note(tmp_path, monkeypatch, moment):
    path = tmp_path / "log.jsonl"
    with pytest.raises(KeyboardInterrupt) as raised, ResultLog(path) as log:
        log.append("a", {})
        whole = log._write

        def interrupted(line):
            whole({"before the line": b"", "within it": line[:9], "after it": line}[moment])
            raise KeyboardInterrupt

        monkeypatch.setattr(log, "_write", interrupted)
        log.append("b", {})
    assert [row["id"] for row in rows(path)] == ["a"]
    assert raised.value.__notes__ == [f"{path}: holds 1 results, each on a whole line; resume to add the others"]
