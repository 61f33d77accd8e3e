"""Which wrong passes the check at load accepts, over families, sizes of weights and precisions.

Every row of the report is one mutant of one reader: how far it moves results (nats) and whether the check refuses it.
A run that is stopped continues with the rows that are missing. The exit status is 1 if a mutant that moves a result by
1e-3 nats is accepted, or a right model refused.

    PYTHONPATH=tests python benchmarks/check_mutants.py --report mutants.jsonl [--limit 900] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import product
from pathlib import Path

import torch
from helpers.families import FAMILIES, deep, tiny
from helpers.mutants import LATE, MUTANTS, apart, longer, shown
from helpers.support import byte_tokenizer

from fastreader import Reader
from fastreader.errors import UnsupportedModelError
from fastreader.models.check import check

MOVED = 1e-3
FACTORS, PRECISIONS = (1, 4, 16), ("exact", "fast", "high")


def load(
    family: str, factor: int, precision: str, products: str = "auto", seed: int = 0, quick: bool = False
) -> Reader:
    model = deep(family, seed) if quick else tiny(family, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return Reader.load(
        (model.bfloat16(), byte_tokenizer()), device="cpu", precision=precision, products=products, check="off"
    )


def rows(family: str, factor: int, precision: str, known: set[str], mutants: dict, seed: int, quick: bool):
    """Yield the rows of one reader that are not known yet."""
    reader = load(family, factor, precision, seed=seed, quick=quick)
    model = reader.local_model.model
    about = {"family": family, "factor": factor, "precision": precision}
    sequences, prompts = longer(261, 300, seed)
    right = shown(reader, sequences, prompts)
    try:
        check(model, quick)
    except UnsupportedModelError as error:
        yield {**about, "mutant": "", "moved": 0.0, "refused": str(error)}
    for name, mutant in mutants.items():
        if name in known:
            continue
        with mutant(model):
            try:
                moved = apart(right, shown(reader, sequences, prompts))
            except (ValueError, IndexError, RuntimeError) as error:
                moved = repr(error)[:80]
            try:
                check(model, quick)
                refused = ""
            except UnsupportedModelError as error:
                refused = str(error)
        yield {**about, "mutant": name, "moved": moved, "refused": refused}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=10**9, help="rows of this run, at most")
    parser.add_argument("--all", action="store_true", help="also the mutants that short texts show")
    parser.add_argument("--quick", action="store_true", help="of models of seven layers, what a quick check accepts")
    parser.add_argument("--seed", type=int, default=0, help="of weights, texts and, unless 0, the order of the readers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = [json.loads(line) for line in options.report.open()] if options.report.exists() else []
    mutants, left = {**LATE, **(MUTANTS if options.all else {})}, options.limit
    readers = list(product(FACTORS, FAMILIES, PRECISIONS))
    if options.seed:
        random.Random(options.seed).shuffle(readers)
    with options.report.open("a") as report:
        for factor, family, precision in readers:
            known = {
                row["mutant"] for row in done if (row["family"], row["factor"]) == (family, factor)
                and row["precision"] == precision
            }  # fmt: skip
            if known >= set(mutants) or left <= 0:
                continue
            for row in rows(family, factor, precision, known, mutants, options.seed, options.quick):
                done.append(row)
                left -= 1
                report.write(json.dumps(row) + "\n")
                report.flush()
    wrong = [row for row in done if row["mutant"]]
    accepted = [
        row for row in wrong if not row["refused"] and not (isinstance(row["moved"], float) and row["moved"] < MOVED)
    ]
    refused = [row for row in done if not row["mutant"]]
    print(f"{len(wrong)} mutants: {sum(bool(row['refused']) for row in wrong)} refused, {len(accepted)} accepted that")
    print(f"move a result by {MOVED} nats; {len(refused)} right models refused")
    for row in accepted + refused:
        print(row)
    return bool(accepted or refused)


if __name__ == "__main__":
    raise SystemExit(main())
