"""Compare `fr.rerank` by a relevance model with sentence-transformers' CrossEncoder, in one run.

100 documents of 100 words with an instruction and a query of 60 words together, a LogitScore with a chat template on
the weights of a model, by name or folder. CrossEncoder reads batches sorted by length, in float32 and in bfloat16.
Rounds alternate, and medians and ratios are printed. Bars: at most 0.35 of CrossEncoder's time in float32 and 0.6 of
its in bfloat16, with weights of the size of 1B too, where float32 is left out; and tokens computed at most 1.02 of the
documents, one instruction and one query. The template's own end, which follows each document, is counted apart.

    python benchmarks/relevance_speed.py questions.jsonl.gz --rounds 3 --output benchmarks/results/relevance_speed.jsonl
    python benchmarks/relevance_speed.py questions.jsonl.gz --model 1B_FOLDER --documents 30 --dtypes bfloat16
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import peers
import torch

import fastreader as fr

TEMPLATE = (
    "{% set instruction = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | "
    "default('Judge the document.') %}{{ '<|im_start|>user\n<Instruct>: ' ~ instruction ~ '\n<Query>: ' ~ (messages | "
    "selectattr('role', 'eq', 'query') | map(attribute='content') | first) ~ '\n<Document>: ' ~ (messages | "
    "selectattr('role', 'eq', 'document') | map(attribute='content') | first) ~ '<|im_end|>\n' ~ "
    "'<|im_start|>assistant\n' }}"
)
TEMPLATE_END = "<|im_end|>\n<|im_start|>assistant\n"
DOCUMENTS, WORDS, ASKED = 100, 100, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages")
    parser.add_argument("--model", default="smollm2-135m", help="a packaged name or a folder; random weights will do")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    texts = [p.text for example in fr.load_examples(arguments.data)[:40] for p in example.passages]
    words = " ".join(texts).split()
    documents = [" ".join(words[WORDS * i : WORDS * (i + 1)]) for i in range(arguments.documents)]
    asked = words[-ASKED:]
    instruction, query = " ".join(asked[: ASKED // 2]), " ".join(asked[ASKED // 2 :])
    pairs = [(query, document) for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        save(arguments.model, Path(folder))
        reader = fr.Reader.load(f"{folder}/saved", device="cpu")
        ways: dict[str, Callable[[], Any]] = {
            "fastreader": lambda: reader.relevance_scores(pairs, instruction=instruction)
        }
        for dtype in arguments.dtypes:
            theirs = encoder(folder, getattr(torch, dtype))
            ways[dtype] = functools.partial(theirs.predict, pairs, prompt=instruction)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        busy: dict[str, list[float]] = {name: [] for name in ways}
        found: dict[str, Any] = {}
        for number in range(arguments.rounds + 1):
            for name, run in ways.items():
                started, before = time.perf_counter(), time.process_time()
                found[name] = run()
                if number:  # the first is to warm up
                    seconds[name].append(time.perf_counter() - started)
                    busy[name].append(time.process_time() - before)
    ours = found["fastreader"]
    median = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    own, asked_for = (sum(map(len, reader.encoder.pieces(given))) for given in (documents, [instruction, query]))
    end = len(reader.tokenizer(TEMPLATE_END, add_special_tokens=False)["input_ids"])
    row = {
        "what": f"{len(documents)} documents of {WORDS} words, instruction and query of {ASKED} words",
        "model": Path(arguments.model).name,
        "seconds": median,
        "processor_seconds": {name: round(statistics.median(values), 3) for name, values in busy.items()},
        **{f"of_{dtype}": round(median["fastreader"] / median[dtype], 3) for dtype in arguments.dtypes},
        "computed_tokens": ours.stats.computed_tokens,
        "document_tokens": own,
        "asked_tokens": asked_for,
        "template_end_tokens": end * len(documents),
        "of_texts": round((ours.stats.computed_tokens - end * len(documents)) / (own + asked_for), 4),
        "total_tokens": ours.stats.total_tokens,
        "apart": {dtype: float(np.abs(ours.scores - found[dtype]).max()) for dtype in arguments.dtypes},
        "products": reader.describe()["products"],
        **machine.describe(),
    }
    print(json.dumps(row))
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def save(model: str, folder: Path) -> None:
    """Save a model's weights as a reranker by the labels "yes" and "no"."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    peers.plain_model(model, torch.bfloat16).save_pretrained(folder / "base")
    tokenizer = fr.Reader.load(model, check="off").tokenizer
    tokenizer.chat_template = TEMPLATE
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.save_pretrained(folder / "base")
    labels = [tokenizer(label, add_special_tokens=False)["input_ids"][0] for label in ("yes", "no")]
    text = Transformer(str(folder / "base"), transformer_task="text-generation")
    CrossEncoder(modules=[text, LogitScore(*labels)]).save_pretrained(str(folder / "saved"))


def encoder(folder: str, dtype: torch.dtype) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(f"{folder}/saved", device="cpu", model_kwargs={"dtype": dtype})


if __name__ == "__main__":
    main()
