"""What else a reader could say about whether passages hold an answer: a label, and its own answer."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from fastreader import Example
from fastreader.passages.conflicts.claims import STOP
from fastreader.passages.conflicts.forms import FormText, content_words
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template
from fastreader.scoring.reading import read
from fastreader.statistics.measures.answers import contained

ASKED = Template(question=" {question}\nCan this question be answered from the passages above? Answer Yes or No.")
LABELS = ("Yes", "No")
EVIDENCE = {
    "label": lambda row: row["label"],
    "label, less without passages": lambda row: row["label"] - row["closed_book_label"],
    "own answer, gain by all passages": lambda row: row["answer_logprob"] - row["closed_book_answer_logprob"],
    "own answer, largest gain by one": lambda row: max(row["answer_logprobs"]) - row["closed_book_answer_logprob"],
    "own answer, log-probability": lambda row: row["answer_logprob"],
    "own answer's words in a passage": lambda row: max(row["grounded"]),
}  # by name, from a version's row


def answer_evidence(session: Any, example: Example) -> dict[str, Any]:
    """Return the log-odds of Yes and No, and what the reader's answer gains, each after all passages and after none."""
    text = read(session, example, candidates=[], max_new_tokens=16).text
    passages, count = example.passages, len(example.passages)
    pieces = encode(session.encoder, Template(), example.question, passages, [text] if text else [])
    labels = encode(session.encoder, ASKED, example.question, passages, LABELS)
    subsets = [[], list(range(count)), *([i] for i in range(count))]
    pairs = [
        (own.head + own.body(subset) + own.tail(), tokens)
        for own, kept in ((labels, subsets[:2]), (pieces, subsets))
        for subset in kept
        for tokens in own.candidates
    ]
    values = session.score(pairs).logprob
    odds, answered = values[:4].reshape(2, 2), values[4:] if text else np.zeros(len(subsets))
    asked, own_words = (content_words(FormText(part).words, STOP) for part in (example.question, text))
    texts = [content_words(FormText(f"{p.title}\n\n{p.text}").words, STOP) for p in passages]
    return {
        "label": float(odds[1, 0] - odds[1, 1]),
        "closed_book_label": float(odds[0, 0] - odds[0, 1]),
        "answer_logprob": float(answered[1]),
        "answer_logprobs": answered[2:].tolist(),
        "closed_book_answer_logprob": float(answered[0]),
        "grounded": [_share(own_words - asked, words) for words in texts],
        "right": contained(text, example.answers) if text else 0.0,
    }


def _share(words: Set[str], text: Set[str]) -> float:
    return len(words & text) / len(words) if words else 0.0
