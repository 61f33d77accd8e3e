"""Outputs that are deleted, cut, moved or replaced. Full disks, second writers, other owners, little memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_runs import NAMES, start
from helpers.commands import COMMAND
from helpers.forks import after

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
QUICK = ("score",)  # by each run of the tests; the others by `make faults`
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.faults) for name in NAMES]


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


def replaced_by_a_file(path):
    path.unlink()
    path.write_text('{"id": "other"}\n')


HELD = []  # in a forked process: memory that its run cannot have

DAMAGES = {
    "deleted": Path.unlink,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "moved": lambda path: path.rename(path.with_name("moved.jsonl")),
    "replaced by a folder": replaced_by_a_folder,
    "replaced by a file": replaced_by_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", EACH)
@pytest.mark.long(keep=1)
def test_an_output_that_something_else_changes(every, name, damage, tmp_path):
    run, wanted = every[name]
    output = tmp_path / "out"
    process = start(run, output, within=after(3, DAMAGES[damage]))
    assert process.wait() == 2
    file = run.file(output)
    assert f"{file}: was " in process.stderr and process.stderr.count("\n") == 1, process.stderr
    if damage in ("deleted", "replaced by a folder", "replaced by a file"):
        (rescued,) = file.parent.glob("*.rescued-*")
        assert str(rescued) in process.stderr
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        rescued.rename(file)
    elif damage == "moved":
        moved = file.with_name("moved.jsonl")
        assert str(moved) in process.stderr
        moved.rename(file)
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(kept) == {"cut": 1, "emptied": 0}.get(damage, 4), kept
    assert start(run, output, "--resume").wait() == 0
    assert run.results(output) == wanted


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_two_writers(every, tmp_path):
    run, wanted = every["score"]
    output = tmp_path / "out"
    first = start(run, output, within=after(2, lambda path: wait_for(path.with_name("second has ended"))))
    while not (output.exists() and output.stat().st_size):
        time.sleep(0.01)
    second = start(run, output, "--resume")
    assert second.wait() == 2 and f"{output}: another process is writing it" in second.stderr
    output.with_name("second has ended").touch()
    assert first.wait() == 0, first.stderr
    assert run.results(output) == wanted


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of `size`. Skips where mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs is not permitted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs of Linux")
@pytest.mark.parametrize("name", EACH)
def test_a_full_disk(every, name, tmp_path):
    run, wanted = every[name]
    with small_disk(tmp_path / "disk", "1m") as disk:
        output = disk / "out"
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        room = {"sure": 60_000, "study": 72_000}.get(name, 8_192)  # with a cache next to the results
        (disk / "filler").write_bytes(b"x" * (free - room))
        process = start(run, output)
        assert process.wait() in (1, 2), process.stderr
        assert str(output) in process.stderr and process.stderr.count("\n") == 1, process.stderr
        (disk / "filler").unlink()
        begun = run.file(output).exists() or output.is_dir()
        again = start(run, output, *(("--resume",) if begun else ()))
        assert again.wait() == 0, again.stderr
        assert run.results(output) == wanted


def without_privileges():
    """From here on the permissions of files bind this process, even as root."""
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can make files of another owner (Linux)"
)
@pytest.mark.long
def test_files_of_another_owner(every, tmp_path):
    run, wanted = every["sure"]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    process = start(run, theirs / "out", within=without_privileges)
    assert process.wait() == 2 and str(theirs) in process.stderr
    output = tmp_path / "out"
    assert start(run, output, within=after(3, lambda _: os.kill(os.getpid(), 9))).wait() == -9
    cache = Path(f"{output}.cache")
    os.chown(cache, 65534, 65534)
    cache.chmod(0o444)
    process = start(run, output, "--resume", within=without_privileges)
    assert process.wait() in (1, 2), process.stderr
    assert str(cache) in process.stderr and process.stderr.count("\n") == 1
    os.chown(cache, 0, 0)
    cache.chmod(0o644)
    assert start(run, output, "--resume").wait() == 0
    assert run.results(output) == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
@pytest.mark.parametrize("name", ["moi", *(pytest.param(n, marks=pytest.mark.faults) for n in ("sure", "study"))])
def test_a_limit_on_memory(every, name, tmp_path):
    run, wanted = every[name]
    output = tmp_path / "out"

    def limit(_):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
        with contextlib.suppress(MemoryError):
            for size in (1_000_000, 100_000):  # what is kept free would otherwise suffice for a tiny model
                while True:
                    HELD.append(bytearray(size))

    process = start(run, output, within=after(3, limit))
    # Memory ends in a pass, or the plan before it finds that nothing fits.
    words = {1: r"error: not enough memory", 2: r"error: .+\.jsonl, line \d+: .*memory allows about"}[process.wait()]
    assert re.match(words, process.stderr) and process.stderr.count("\n") == 1, process.stderr
    assert start(run, output, "--resume").wait() == 0
    assert run.results(output) == wanted


@pytest.mark.faults
@pytest.mark.skipif(not FAKETIME.exists(), reason=f"needs libfaketime ({FAKETIME}, Debian's faketime)")
@pytest.mark.parametrize("name", NAMES)
def test_a_clock_that_is_set_back(every, name, tmp_path):
    """Two days back after the first results, and ten years back when the run resumes."""
    run, wanted = every[name]
    output, clock = tmp_path / "out", tmp_path / "clock"
    clock.write_text("+0")
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    code = (
        "import sys; from pathlib import Path; from forks import after\n"
        f"after(2, lambda _: Path({str(clock)!r}).write_text('-2d'))()\n"
        f"after(4, lambda _: sys.exit(9))()\n"
        "from fastreader import cli; cli.main()"
    )
    here = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, **fake, "PYTHONPATH": here}
    arguments = [*map(str, run.arguments(output))]
    first = subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True)
    assert first.returncode == 9, first.stderr
    assert len(run.results(output)) == 4
    clock.write_text("-10y")
    second = subprocess.run([*COMMAND, *arguments, "--resume"], env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert run.results(output) == wanted
