"""The command line in a forked process, which need not import torch again and can be killed."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tqdm.std import TqdmDefaultWriteLock

# tqdm's lock is shared by forks: killed with it, one would leave all others waiting. Imported before tqdm makes it.
TqdmDefaultWriteLock.mp_lock = None


@dataclass
class Forked:
    """A process that runs the command line. Its output goes to files, so that it never waits for a reader."""

    arguments: tuple
    within: Callable[[], object] | None = None  # called in the process, before the command
    out: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    err: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    pid: int = 0

    def __post_init__(self):
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._child()

    def _child(self):
        code = 70
        try:
            import torch

            from fastreader import cli

            torch.set_num_threads(1)  # a pool of threads does not survive a fork
            os.dup2(self.out.fileno(), 1)
            os.dup2(self.err.fileno(), 2)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
            sys.argv = ["fastreader", *map(str, self.arguments)]
            if self.within is not None:
                self.within()
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self) -> bool:
        """Whether the process has ended. Leaves its exit code to `wait`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> int:
        """The exit code. The negative number of the signal that killed the process."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def stdout(self) -> str:
        return self._read(self.out)

    @property
    def stderr(self) -> str:
        return self._read(self.err)

    def _read(self, file: IO[bytes]) -> str:
        file.seek(0)
        return file.read().decode()


def after(count: int, action: Callable[[Path], object]) -> Callable[[], None]:
    """Return what makes a process call `action` with the file, once it has written `count` results to it."""

    def install() -> None:
        from fastreader.data.result_log import ResultLog

        append = ResultLog.append

        def appending(log, *args, **kwargs):
            append(log, *args, **kwargs)
            if len(log) == count:
                action(log.path)

        ResultLog.append = appending

    return install
