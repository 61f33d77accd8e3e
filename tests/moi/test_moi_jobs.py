"""studies/lib/moi_jobs.py: every result arrives, errors come last, and no process outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lib.moi_jobs import Jobs

STUDIES = Path(__file__).parents[2] / "studies"


class Squares:
    """Something to do. 3 cannot be done, and 5 ends its process."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def square(self, key: int, factor: int) -> int:
        if key == 3:
            raise ValueError("no three")
        if key == 5:
            os._exit(1)
        return factor * key * key + self.offset

    def slowly(self, key: int) -> int:
        if key == 3:
            raise ValueError("no three")
        time.sleep(0.2)
        return key

    def process(self, key: int) -> int:
        time.sleep(0.2)
        return os.getpid()


@pytest.fixture(scope="module")
def jobs():
    with Jobs(2, Squares(7), Squares, 7) as jobs:
        list(jobs.run("process", dict.fromkeys(range(4), ())))  # both processes are up
        yield jobs


@pytest.mark.parametrize("count", [1, 2])
def test_all_results_arrive(count, jobs):
    running = jobs if count == 2 else Jobs(1, Squares(7), Squares, 7)
    tasks = dict.fromkeys((0, 1, 2, 4, 6, 8, 9), (10,))
    assert dict(running.run("square", tasks)) == {key: 10 * key * key + 7 for key in tasks}
    assert dict(running.run("square", {})) == {}


def test_several_processes_work(jobs):
    pids = {pid for _, pid in jobs.run("process", dict.fromkeys(range(6), ()))}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_an_error_comes_after_the_results_under_way(jobs):
    """The others take seconds in all, so that one process cannot do them before the other has failed."""
    keys, seen = (3, 1, *range(10, 40)), []
    with pytest.raises(ValueError, match="no three"):
        for key, _ in jobs.run("slowly", dict.fromkeys(keys, ())):
            seen.append(key)
    assert 1 in seen  # begun together with 3
    assert len(seen) < len(keys) - 1  # and not everything after it


def test_a_process_that_dies_is_an_error():
    with Jobs(2, Squares(7), Squares, 7) as own, pytest.raises(Exception, match="terminated abruptly"):
        dict(own.run("square", {5: (1,)}))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_no_process_outlives_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        f"""
import sys, time
sys.path[:0] = [{str(STUDIES)!r}, {str(Path(__file__).parent)!r}]
from lib.moi_jobs import Jobs
from test_moi_jobs import Squares
if __name__ == "__main__":
    jobs = Jobs(2, Squares(0), Squares, 0)
    print(*{{pid for _, pid in jobs.run("process", {{k: () for k in range(4)}})}}, flush=True)
    time.sleep(100)
"""
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert workers
    for _ in range(300):
        if not any(map(runs, workers)):
            break
        time.sleep(0.1)
    assert not any(map(runs, workers))


def runs(pid: int) -> bool:
    """Whether the process is there, and more than an entry nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
