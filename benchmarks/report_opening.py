"""How long a report takes to open in a browser, from the request to its list of questions, filled.

    fastreader report RUN -o report.html
    python benchmarks/report_opening.py report.html

Each opening is a separate browser process, so that nothing is cached but the file. Fails where the median is over
--allowed seconds, where the browser logged anything, or where the page asked for another file. Needs a Chromium and
`pip install 'fastreader[browser]'`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--allowed", type=float, default=2.0, help="seconds")
    arguments = parser.parse_args()
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        sys.exit(f"needs a browser: none of {', '.join(BROWSERS)} is on the path")
    seconds, unwanted = [], []
    for _ in range(arguments.rounds):
        took, said = opened(program, arguments.report.resolve())
        seconds.append(took)
        unwanted += said
    median = statistics.median(seconds)
    print(
        f"{arguments.report.stat().st_size / 1e6:.1f} MB; seconds to open: median {median:.2f}, "
        f"{min(seconds):.2f} to {max(seconds):.2f} over {arguments.rounds}"
    )
    if unwanted:
        sys.exit("\n".join(["the browser logged or asked for:", *sorted(set(unwanted))]))
    if median > arguments.allowed:
        sys.exit(f"over the {arguments.allowed:g} s that are allowed")


def opened(program: str, report: Path) -> tuple[float, list[str]]:
    """Seconds until the list of questions is there and painted, and what the browser logged or asked for besides."""
    from playwright.sync_api import sync_playwright

    unwanted: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: unwanted.append(message.text))
        page.on("pageerror", lambda error: unwanted.append(str(error)))
        page.on("request", lambda asked: asked.url != report.as_uri() and unwanted.append(asked.url))
        started = time.perf_counter()
        page.goto(report.as_uri())
        page.locator("#list details.question").first.wait_for()
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        took = time.perf_counter() - started
        browser.close()
    return took, unwanted


if __name__ == "__main__":
    main()
