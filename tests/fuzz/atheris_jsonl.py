"""Lines of questions, documents and votes: an InputError, or a value with valid texts."""

from __future__ import annotations

import json

from atheris_runner import Target, run
from file_rows import FLASH, PASSAGES, QUESTION, RANK

MODULES = ("fastreader.data.read", "fastreader.data.rows", "fastreader.eor.types")
ROWS = (QUESTION, FLASH, RANK, *PASSAGES, [], {}, None)
EXAMPLES = tuple(json.dumps(row).encode() for row in ROWS)


def make() -> Target:
    from fastreader.data.containers import parse_json
    from fastreader.data.formats import parse_row
    from fastreader.data.rows import DocumentRow, check
    from fastreader.eor import Answers
    from fastreader.errors import InputError

    def target(data: bytes) -> None:
        try:
            row = parse_json(data)
        except InputError:
            return
        for read in (parse_row, lambda row: check(DocumentRow, row).passage(), _votes):
            try:
                found = read(row)
            except InputError:
                continue
            repr(found).encode()

    def _votes(row: object) -> object:
        return Answers.from_dict(row) if isinstance(row, dict) else None

    return target


if __name__ == "__main__":
    run(MODULES, make)
