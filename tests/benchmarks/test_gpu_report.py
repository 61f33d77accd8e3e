"""Rows of a device, made up: written one by one, read back, and made into a table and a picture."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from gpu_report import latest, picture, table
from gpu_rows import Rates, Row, Rows, read

ABOUT = {"device": "a device", "torch": "2.13"}
ROWS = [
    Row("kernels", "smollm2-135m", "W1 attention", "triton", 0.5, 0.4, 0.6, 0.25, 0.45),
    Row("kernels", "smollm2-135m", "W1 attention", "flash", 1.0, 0.9, 1.1, 0.25),
    Row("passes", "smollm2-135m", "W1, fast", "graph", 20.0, 19.0, 21.0, 10.0),
    Row("kernels", "smollm2-135m", "W1 attention", "triton", 0.4, 0.3, 0.5, 0.25, 0.35),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = Rows(tmp_path / "rows.jsonl", 60.0, ABOUT)
    for row in ROWS:
        rows.add(row)
    return tmp_path / "rows.jsonl"


def test_rows_are_on_disk_as_soon_as_they_are_added(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl", 60.0, ABOUT)
    for i, row in enumerate(ROWS, 1):
        rows.add(row)
        assert [found for _, found in read(tmp_path / "rows.jsonl")] == ROWS[:i]


def test_a_line_cut_off_and_rows_of_another_form_are_left_out(path: Path) -> None:
    old = json.dumps({"lines": [], "device": "a device"})
    text = path.read_text()
    path.write_text(old + "\n" + text[: -len(text.splitlines()[-1]) // 2])
    assert [row for _, row in read(path)] == ROWS[:-1]


def test_no_measurement_begins_after_the_end() -> None:
    assert Rows(None, 60.0, {}).left(50.0)
    assert not Rows(None, 60.0, {}).left(70.0)


def test_the_table_has_the_last_row_of_each_way(path: Path) -> None:
    lines = table(latest(path)).splitlines()
    assert len(lines) == 2 + 3
    (kernel,) = [line for line in lines if "| triton |" in line]
    assert "0.400 (0.300 .. 0.500) | 0.350 | 0.250 | 1.60 |" in kernel
    flash = next(line for line in lines if "| flash |" in line)
    assert flash.split("|")[-3:-1] == [" 4.00 ", " 1.00 "]  # it is now the first way of its case in the file


def test_the_picture_has_a_bar_for_each_way(path: Path) -> None:
    root = ET.fromstring(picture(latest(path)))
    bars = root.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 3
    widths = [float(bar.get("width", "")) for bar in bars]
    assert all(width > 0 for width in widths) and max(widths) == widths[0]


def test_the_floor_is_the_longer_of_arithmetic_and_memory() -> None:
    rates = Rates(flops=1e12, bandwidth=1e9)
    assert rates.floor(2e12, 1e9) == 2000.0
    assert rates.floor(1e9, 3e9) == 3000.0
