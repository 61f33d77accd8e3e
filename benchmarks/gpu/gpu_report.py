"""One table and one picture of rows that were measured on a device. Needs none.

    python benchmarks/gpu/gpu_report.py ROWS.jsonl [--picture FILE.svg]

Of several rows of one way to one result on one device the last counts. The bars show how many times the floor each way
takes: the least time by the operations and bytes of the result, at the device's own rates in the same run.
"""

from __future__ import annotations

import argparse
import html
import math
from pathlib import Path
from typing import Any

from gpu_rows import Row, read

Found = dict[tuple[str, str, str, str, str], tuple[dict[str, Any], Row]]
_BAR, _LINE, _LEFT, _WIDTH = 14, 18, 430, 900


def latest(path: Path) -> Found:
    """Return the last row of each way, by (device, suite, model, case, way), in the order of the file."""
    found: Found = {}
    for about, row in read(path):
        key = (about["device"], row.suite, row.model, row.case, row.way)
        found.pop(key, None)
        found[key] = about, row
    return dict(sorted(found.items(), key=lambda item: item[0][:4]))


def table(found: Found) -> str:
    """Return the rows as a Markdown table, ways of the same case next to its first."""
    lines = [
        "| device | model | case | way | ms (10 % .. 90 %) | warm | floor | times the floor | times the first way |",
        "|-|-|-|-|-|-|-|-|-|",
    ]
    firsts: dict[tuple[str, ...], float] = {}
    for (device, suite, model, case, way), (_, row) in found.items():
        first = firsts.setdefault((device, suite, model, case), row.milliseconds)
        warm = "" if row.warm is None else f"{row.warm:.3f}"
        over = f"{row.milliseconds / row.floor:.2f}" if row.floor else ""
        took = f"{row.milliseconds:.3f} ({row.low:.3f} .. {row.high:.3f})"
        lines.append(
            f"| {device} | {model} | {case} | {way} | {took} | {warm} | {row.floor:.3f} | {over} "
            f"| {row.milliseconds / first:.2f} |"
        )
    return "\n".join(lines)


def picture(found: Found) -> str:
    """Return an SVG of horizontal bars on a logarithmic scale: times the floor, 1 at the left edge."""
    bars = [(key, row.milliseconds / row.floor) for key, (_, row) in found.items() if row.floor]
    most = max((over for _, over in bars), default=1.0)
    decades = max(1, math.ceil(math.log10(max(most, 1.0))))
    inner = _WIDTH - _LEFT - 60
    height = _LINE * (len(bars) + 2)

    def at(over: float) -> float:
        return _LEFT + inner * min(math.log10(max(over, 1.0)) / decades, 1.0)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="11"><title>Times the floor</title>'
    ]
    for decade in range(decades + 1):
        x = at(10.0**decade)
        parts.append(f'<line x1="{x:.1f}" y1="{_LINE}" x2="{x:.1f}" y2="{height}" stroke="#bbb"/>')
        parts.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{10**decade}x</text>')
    cases = list(dict.fromkeys(key[:4] for key, _ in bars))
    for i, (key, over) in enumerate(bars):
        y = _LINE * (i + 1)
        colour = ("#3b6ea5", "#7a9e4b")[cases.index(key[:4]) % 2]
        label = html.escape(", ".join(key[2:]))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + _BAR - 3}" text-anchor="end">{label}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{at(over) - _LEFT:.1f}" height="{_BAR}" fill="{colour}"/>')
        parts.append(f'<text x="{at(over) + 4:.1f}" y="{y + _BAR - 3}">{over:.2f}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="what the benchmarks wrote")
    parser.add_argument("--picture", type=Path, help="write an SVG there")
    arguments = parser.parse_args()
    found = latest(arguments.rows)
    if not found:
        raise SystemExit(f"{arguments.rows}: expected rows of bench_ops.py or bench_pass.py, found none")
    print(table(found))
    if arguments.picture:
        arguments.picture.write_text(picture(found))


if __name__ == "__main__":
    main()
