"""Damaged files of every kind: each is read, or gives an error of ours that names the file. None hangs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import warnings
from pathlib import Path

import pytest
from file_loaders import Loader, load_folder, loaders
from file_mutations import mutated

from fastreader.errors import FastreaderError

SECONDS = 20  # for one file; most take milliseconds
CI, LONG = 300, 5000
FOLDERS_CI, FOLDERS_LONG = 36, 1200


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return loaders(tmp_path_factory.mktemp("made"))


def attempt(loader, path: Path) -> Exception | None:
    """Read a file. Return the package's own error. Any other error, and any hang, fails the test."""

    def hung(*_):
        raise TimeoutError(f"{path.name}: still reading after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, for odd numbers
            loader.read(path)
    except FastreaderError as error:
        return error
    except OSError as error:  # of the system or of a cache, which the command line shows as they are
        if error.filename is None:
            raise
        return error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None


def placed(loader, folder: Path, content: bytes) -> Path:
    folder.mkdir()
    for name, other in loader.neighbours:
        (folder / name).write_bytes(other)
    path = folder / loader.file
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def folders(model):
    """Loaders of the tiny model's folder, each with one of its files to damage."""
    files = {path.name: path.read_bytes() for path in Path(model).iterdir()}
    return {
        name: Loader(name, content, load_folder, tuple((n, c) for n, c in files.items() if n != name))
        for name, content in sorted(files.items())
    }


def search(known, folder: Path, count: int, seed: int) -> tuple[int, list[str]]:
    """Return how many files were refused, and what was wrong with the answers to the others."""
    chance = random.Random(seed)
    refused, wrong = 0, []
    for case in range(count):
        name = list(known)[case % len(known)]
        loader = known[name]
        how, content = mutated(loader.content, chance)
        path = placed(loader, folder / f"case{case}", content)
        try:
            error = attempt(loader, path)
            if error is not None:
                refused += 1
                if str(path.parent) not in str(error) and loader.file not in str(error):
                    wrong.append(f"{name} {how} (seed {seed}, case {case}): does not name the file: {error}")
        except Exception as error:
            wrong.append(f"{name} {how} (seed {seed}, case {case}): {type(error).__name__}: {str(error)[:150]}")
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
    return refused, wrong


def test_the_files_are_valid_before_they_are_damaged(known, tmp_path):
    for name, loader in known.items():
        assert attempt(loader, placed(loader, tmp_path / name, loader.content)) is None, name


def test_damaged_files(known, tmp_path):
    refused, wrong = search(known, tmp_path, CI, seed=0)
    assert not wrong, "\n".join(wrong)
    assert refused > CI / 3


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 3))
def test_many_damaged_files(known, tmp_path, seed):
    refused, wrong = search(known, tmp_path, LONG, seed)
    print(f"{LONG} files, {refused} refused")
    assert not wrong, f"{len(wrong)} of {LONG}:\n" + "\n".join(wrong)
    assert refused > LONG / 3


@pytest.mark.long
def test_damaged_model_folders(folders, tmp_path):
    """Each is loaded and scores, or gives an error that names the folder."""
    refused, wrong = search(folders, tmp_path, FOLDERS_CI, seed=0)
    assert not wrong, "\n".join(wrong)
    assert refused > FOLDERS_CI / 3


@pytest.mark.fuzz
def test_many_damaged_model_folders(folders, tmp_path):
    refused, wrong = search(folders, tmp_path, FOLDERS_LONG, seed=1)
    print(f"{FOLDERS_LONG} folders, {refused} refused")
    assert not wrong, f"{len(wrong)} of {FOLDERS_LONG}:\n" + "\n".join(wrong)
    assert refused > FOLDERS_LONG / 3


def test_what_is_no_file(known, tmp_path):
    """A folder, a named pipe, a link to nothing, and a file that nobody may read."""
    for name, loader in known.items():
        for kind in ("folder", "pipe", "link", "absent"):
            path = placed(loader, tmp_path / f"{name}-{kind}", b"")
            path.unlink()
            if kind == "folder":
                path.mkdir()
            elif kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                path.symlink_to("nothing")
            if kind in ("link", "absent") and name in ("log", "cache"):
                continue  # these create their file
            error = attempt(loader, path)
            assert error is not None and loader.file in str(error), (name, kind, error)
            with contextlib.suppress(OSError):
                path.unlink()
