"""Compare the tokens that a dry run predicts with those that a run then computes, for every method of a study.

A method's error is how far the computed tokens are outside its range, as a share of them: the range goes from empty
replies to the longest ones, and is one number for methods whose prompts hold no reply. The bar is 3 %. Methods run one
after another into a folder, and a script that is stopped continues there.

    python benchmarks/dry_run.py DATA --folder build/dry_run                every method, 50 questions
    python benchmarks/dry_run.py DATA --folder build/dry_run --questions 4 --methods eor moi
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from fastreader.study import RunFolder, Study, dry_run, run_study
from fastreader.study.registry import names

BAR = 0.03
CORPUS = 200  # passages that a further source of eor searches
KINDS = ("noise:distracting:2:mid", "noise:random:2:near", "noise:retrieved:2", "noise:retrieved:2+random:1")
VARIED: list[Any] = [
    {"method": "moi", "name": "moi cyclic", "permutations": "cyclic", "prune": 2},
    {"method": "eor", "name": "eor rerank", "retrievers": ["R@1", "R@RR@2", "R@RR@3"]},
    {"method": "eor", "name": "eor write", "retrievers": ["R@1", "PK", "R@2&PK"]},
    {"method": "eor", "name": "eor summarise", "retrievers": ["R@1", "R@2@CP", "R@RR@3@CP"]},
    {"method": "eor", "name": "eor search", "retrievers": ["W@1", "W@3", "R&W@2", "W@RR@2"]},
    {"method": "sure", "name": "sure generate", "mode": "generate"},
    {"method": "sure", "name": "sure passages first", "candidates_prompt": "passages_first"},
]
SHOTS = [["which river flows through cairo", "the Nile"], ["who wrote hamlet", "William Shakespeare"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages and their gold passages")
    parser.add_argument("--folder", type=Path, required=True, help="of the runs, one a method")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--methods", nargs="+", help="only these, by the names that are printed")
    arguments = parser.parse_args()
    logging.getLogger("fastreader").setLevel(logging.ERROR)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(arguments.data, arguments.folder / "corpus.jsonl")
    over, row = [], "{:<36} {:>12} {:>12} {:>12} {:>9}"
    print(row.format("method", "at least", "at most", "computed", "error"))
    for method in methods(arguments.model):
        label = method if isinstance(method, str) else method.get("name", method["method"])
        if arguments.methods and label not in arguments.methods:
            continue
        study = Study.of({
            "data": str(arguments.data.resolve()),
            "methods": [method],
            "readers": [arguments.model],
            "limit": arguments.questions,
            "passages": arguments.passages,
            "eor": {"sources": {"W": str(corpus.resolve())}},
        })  # fmt: skip
        (low, high), computed = compare(study, arguments.folder / label.replace(":", "_").replace(" ", "_"))
        error = max(low - computed, computed - high, 0) / computed
        over += [label] if error > BAR else []
        print(row.format(label, f"{low:,}", f"{high:,}", f"{computed:,}", f"{error:.2%}"), flush=True)
    print(f"over {BAR:.0%}: {', '.join(over) or 'none'}")
    sys.exit(bool(over))


def methods(model: str) -> list[Any]:
    """All methods of the registry that need no model which is not packaged, and some with other options."""
    plain = [name for name in names() if "K" not in name.partition(":")[2] and "N" not in name]
    few_shot = [{"method": name, "shots": SHOTS} for name in plain if "few_shot" in name]
    asked = [{"method": "rerank", "name": "rerank by a reader", "model": model}]
    left_out = {"rerank:relevance", "order:cross-encoder", "order:cross-encoder-matched"}
    known = [name for name in plain if name not in left_out and "few_shot" not in name]
    return [*known, *KINDS, *few_shot, *asked, *VARIED]


def compare(study: Study, folder: Path) -> tuple[tuple[int, int], int]:
    """Return the predicted range and the number of tokens that went through the model to read prompts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which methods answer no question shows in their figures
        (cost,) = dry_run(study)
        run_study(study, folder, resume=folder.exists(), progress=False)
    rows = RunFolder(folder).rows()
    if failed := [row["error"] for row in rows if row["error"]]:
        raise SystemExit(f"{cost.method}: {failed[0]}")
    spent = [row["tokens"] for row in rows]
    return cost.computed_tokens, sum(each["computed_tokens"] - each["new_tokens"] for each in spent)


def _corpus(data: Path, file: Path) -> Path:
    """Write passages of the questions into a file that a source of eor searches."""
    from fastreader import load_examples

    found = {p.text: p.title for example in load_examples(data, limit=CORPUS // 20) for p in example.passages}
    lines = [json.dumps({"title": title, "text": text}) + "\n" for text, title in found.items()]
    if not file.exists():
        file.write_text("".join(lines[:CORPUS]), encoding="utf-8")
    return file


if __name__ == "__main__":
    main()
