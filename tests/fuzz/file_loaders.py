"""A small valid file for every loader of the package, and how it is read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from file_rows import FLASH, PASSAGES, QUESTION, RANK
from helpers.commands import made_up

from fastreader import PermutationScores, Reader, Template
from fastreader.cli.vote import _read as read_votes
from fastreader.data import load_examples, load_passages, load_questions
from fastreader.data.answer_cache import Cache
from fastreader.data.beir import load_beir, load_qrels
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.eor import Voter, load_texts
from fastreader.moi import PositionBias
from fastreader.moi.distill.lessons import read_teacher
from fastreader.study import Study

STUDY = {
    "name": "s", "data": "questions.jsonl", "methods": ["base", {"method": "moi", "name": "m"}, "sure"],
    "readers": ["r"], "seeds": [0, 1], "limit": 4, "passages": 3, "baseline": "base",
    "sure": {"k": 2}, "noise": {"random": "words"},
}  # fmt: skip
TOML = """name = "s"\ndata = "questions.jsonl"\nmethods = ["base", "moi", {method = "sure", k = 2}]\nseeds = [0]
[noise]\nrandom = "words"\n[sure]\nk = 2\n"""


@dataclass(frozen=True)
class Loader:
    """How to make a valid file and to read it.

    Attributes:
        file: its name.
        content: its bytes.
        read: reads it; an error must be the package's own and name the file.
        neighbours: further valid files, by name.
        copied: whether reading changes the file, so that every case needs its own.
    """

    file: str
    content: bytes
    read: Callable[[Path], Any]
    neighbours: tuple[tuple[str, bytes], ...] = ()


def _lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _beir(changed: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        files = {name: path.with_name(f"{name}.txt") for name in ("corpus", "queries", "run", "qrels")} | {
            changed: path
        }
        return load_beir(files["corpus"], files["queries"], files["run"], qrels=files["qrels"])

    return read


def _resume(path: Path) -> None:
    with ResultLog(path, settings={"seed": 0}, resume=True) as log:
        log.append("new", {})


def _cache(path: Path) -> None:
    with Cache(path) as cache:
        cache.get(["a", "b"])
        cache.put({"c": [1]})


def load_folder(path: Path) -> None:
    """Load the model in whose folder a file is, and score with it."""
    Reader.load(path.parent, device="cpu", precision="exact").loglikelihood([("one", " two")])


def _made(write: Callable[[Path], Any], folder: Path) -> bytes:
    path = folder / "made"
    write(path)
    content = path.read_bytes()
    path.unlink()
    return content


def _bias() -> PositionBias:
    return PositionBias(
        bias=np.array([0.5, -0.2, -0.3]), intervals=np.zeros((3, 2)), covariance=np.eye(3), sign="gold_probe",
        kind="joint", num_passages=3, reader={"name": "r"}, template="t", beta=1.0, tau=0.5, sigma=0.1, r2=0.5,
        num_questions=4, num_orderings=3, measured_on={}, per_token=False, reason="",
    )  # fmt: skip


def _cached(path: Path) -> None:
    with Cache(path) as cache:
        cache.put({"a": {"x": 1}, "b": [1, 2]})


def loaders(folder: Path) -> dict[str, Loader]:
    """Return the loaders by name. `folder` holds files while they are made."""
    scores = made_up(["one", "two"])
    beir = {
        "corpus": _lines(*({"_id": f"d{i}", "title": "T", "text": f"Text {i}"} for i in range(3))),
        "queries": _lines(*({"_id": f"q{i}", "text": f"Who {i}?"} for i in range(2))),
        "run": b"".join(b"q%d Q0 d%d %d %f tag\n" % (q, d, d + 1, 3 - d) for q in range(2) for d in range(3)),
        "qrels": b"query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t2\n",
    }
    others = tuple((f"{name}.txt", content) for name, content in beir.items())
    votes = [
        {"id": f"{i}", "question": "Who?", "predictions": {"A": "Ada", "B": None}, "answers": ["Ada"]} for i in range(3)
    ]
    log = [{"id": f"{i}", "example": "d", "x": [1.5], "settings": {"seed": 0}} for i in range(4)]
    questions = _lines(QUESTION, FLASH, RANK)
    study = (("questions.jsonl", questions),)
    results = _lines(*({**scores.to_dict(), "settings": {"template": Template().to_dict()}} for _ in range(2)))
    return {
        "examples_jsonl": Loader("a.jsonl", questions, load_examples),
        "examples_json": Loader("a.json", json.dumps([QUESTION, FLASH, RANK]).encode(), load_examples),
        "examples_data": Loader("a.json", json.dumps({"data": [QUESTION]}, indent=1).encode(), load_examples),
        "examples_gzip": Loader("a.jsonl.gz", gzip.compress(questions), load_examples),
        "questions": Loader("a.jsonl", questions.replace(b'"query": {', b'"question": "Who?", "q": {'), load_questions),
        "passages": Loader("a.jsonl", _lines(*PASSAGES), load_passages),
        **{f"beir_{name}": Loader("file.txt", content, _beir(name), others) for name, content in beir.items()},
        "qrels": Loader("a.tsv", beir["qrels"], load_qrels),
        "log": Loader("log.jsonl", _lines(*log), _resume),
        "log_rows": Loader("log.jsonl", _lines(*log), lambda path: list(iter_results(path))),
        "teacher": Loader("scores.jsonl", results, read_teacher),
        "scores": Loader("scores.json", json.dumps(scores.to_dict()).encode(), PermutationScores.load),
        "calibration": Loader("bias.json", json.dumps(_bias().to_dict()).encode(), PositionBias.load),
        "template_json": Loader("t.json", json.dumps(Template().to_dict()).encode(), Template.load),
        "template_toml": Loader("t.toml", b'header = "H"\nquestion = " {question}"\nchat = true\n', Template.load),
        "texts": Loader("t.json", json.dumps(load_texts("short").to_dict()).encode(), load_texts),
        "study_json": Loader("s.json", json.dumps(STUDY).encode(), Study.load, study),
        "study_yaml": Loader("s.yaml", json.dumps(STUDY, indent=1).encode(), Study.load, study),
        "study_toml": Loader("s.toml", TOML.encode(), Study.load, study),
        "votes": Loader("votes.jsonl", _lines(*votes), read_votes),
        "voter": Loader("voter.json", _made(Voter(["exact", "f1"]).save, folder), Voter.load),
        "cache": Loader("c.sqlite", _made(_cached, folder), _cache),
    }
