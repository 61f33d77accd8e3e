"""Put the measured table of a run into a page of the documentation.

    python studies/fill_docs.py runs/noise docs/noise.md
    python studies/fill_docs.py runs/methods docs/which-method.md

The page has a line ``<!-- measured -->`` and a line ``<!-- /measured -->``; a table of the run replaces the lines
between them: methods with their interval, paired difference from the baseline, corrected p value and tokens.
"""

from __future__ import annotations

import re
from pathlib import Path

from lib.shared import make_parser

from fastreader.data.files import write_text
from fastreader.report.study_data import StudyRun
from fastreader.report.tables import summary_rows

PLACE = re.compile(r"(<!-- measured -->\n).*?(<!-- /measured -->)", re.DOTALL)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path, help="folder of a study's run")
    parser.add_argument("page", type=Path, help="page with the two lines")
    arguments = parser.parse_args()
    page = arguments.page.read_text(encoding="utf-8")
    if not PLACE.search(page):
        raise SystemExit(f"{arguments.page}: has no <!-- measured --> lines")
    filled = table(StudyRun(arguments.run))
    write_text(arguments.page, PLACE.sub(lambda found: f"{found[1]}{filled}\n{found[2]}", page))


def table(run: StudyRun) -> str:
    """Return a sentence and a table about the run."""
    study = run.study
    head = (
        f"{', '.join(study.readers)} over {len(run.questions)} questions, {run.gold_passages} distinct gold passages; "
        f"{run.metric_name}, against {study.reference}"
        + (f"; the contrast stated beforehand is {study.primary}." if study.primary else ".")
    )
    lines = ["| method | n | mean | difference | p, Holm | tokens computed |", "|-|-|-|-|-|-|"]
    for row in summary_rows(run):
        mean = f"{row[study.metric]:.3f}{_range(row, study.metric)}" if row[study.metric] is not None else ""
        difference = f"{row['difference']:+.3f}{_range(row, 'difference')}" if row["difference"] is not None else ""
        p = f"{row['p_holm']:.2g}" if row["p_holm"] is not None else ""
        tokens = f"{row['computed_tokens']:,.0f}" if row["computed_tokens"] is not None else ""
        lines.append(f"| `{row['method']}` | {row['answered']} | {mean} | {difference} | {p} | {tokens} |")
    return f"{head}\n\n" + "\n".join(lines)


def _range(row: dict[str, float], name: str) -> str:
    return f" [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


if __name__ == "__main__":
    main()
