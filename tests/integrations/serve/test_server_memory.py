"""The memory that one request may take from a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import LONG_FORMS

pytest.importorskip("fastapi", reason="needs the extra serve")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak of memory is reset through /proc")
@pytest.mark.long
def test_no_request_takes_much_memory():
    """In a separate process, since other tests leave memory that a body would use again."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    found = subprocess.run(
        [sys.executable, "-m", "helpers.server_memory"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(rows) == (33 if LONG_FORMS else 9)
    for row in rows:
        assert row["status"] in (200, 413, 422, 504) and row["megabytes"] < 50, row
