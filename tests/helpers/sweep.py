"""Verdicts on every causal LM that transformers registers, and the page that lists them.

`PYTHONPATH=tests python -m helpers.sweep` writes docs/readers.md and the sentence about families in README.md.
"""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fastreader import Reader
from fastreader.errors import UnsupportedModelError
from helpers.registry import ASIDE, RECURRENT, VOCABULARY, families, patterns, tiny_model
from helpers.support import byte_tokenizer, in_float64, one_by_one, random_sequences

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "readers.md", ROOT / "README.md"
TOLERANCE = 1e-5  # nats a token, in float32
_NEW_TOKENS = 6
_BLOCK = re.compile(r"(<!-- families -->\n).*?(\n<!-- /families -->)", re.DOTALL)


class Verdict(NamedTuple):
    """What the sweep found for one layer pattern of a family.

    Attributes:
        refused: the message, without the model's name; None if the reader runs it.
        score, text: the largest difference of a token's log-probability from transformers one sequence at a time, in
            nats: of given texts, in a call and in a session, and of texts that the reader wrote.
        regret: by how much a written token falls short of the most likely one, in nats.
        matters: how much the order of a context's tokens changes the score of a continuation, in nats.
    """

    refused: str | None = None
    score: float = 0.0
    text: float = 0.0
    regret: float = 0.0
    matters: float = 1.0

    @property
    def right(self) -> bool:
        """Whether the reader agrees with transformers."""
        return self.refused is None and max(self.score, self.text) <= TOLERANCE and self.regret <= 2 * TOLERANCE


def verdict(family: str, changes: dict[str, Any]) -> Verdict:
    """Return how a tiny reader of a family compares with transformers. Errors that are not ours are raised."""
    model = tiny_model(family, changes)
    sequences = random_sequences(np.random.default_rng(1), VOCABULARY, 6)
    longest = max(range(len(sequences)), key=lambda i: len(sequences[i][0]))
    context, continuation = sequences[longest]
    with _truth(family, model) as true_model:
        *own, turned = one_by_one(true_model, [*sequences, (context[::-1], continuation)])
    matters = float(np.abs(own[longest] - turned).max())
    try:
        reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
        scores = [reader.score(sequences), _in_session(reader, sequences)]
        prompts = [context for context, _ in sequences[:3]]
        texts = reader.generate(prompts, max_new_tokens=_NEW_TOKENS, token_logprobs=True)
        with _truth(family, model) as true_model:
            text, regret = _written(prompts, texts, true_model, reader.local_model.model.regimes.fixed)
    except UnsupportedModelError as error:
        return Verdict(refused=str(error).removeprefix(f"{type(model).__name__}: "), matters=matters)
    apart = [np.abs(got - want).max() for s in scores for got, want in zip(s.token_logprobs, own, strict=True)]
    return Verdict(None, float(max(apart)), text, regret, matters)


def _in_session(reader: Reader, sequences: list[tuple[list[int], list[int]]]) -> Any:
    """Return scores that reuse the keys and values of a part of each context."""
    with reader.session(*(context[: len(context) // 2 + 1] for context, _ in sequences[:3])) as session:
        scores = session.score(sequences)
        assert scores.stats.cached_tokens > 0
        return scores


def _truth(family: str, model: Any) -> AbstractContextManager[Any]:
    """Return the model to compare with, in float64 if it has recurrences."""
    return in_float64(model) if family in RECURRENT else nullcontext(model)


def _written(prompts: list[list[int]], texts: Any, model: Any, at_once: bool) -> tuple[float, float]:
    """Return how far log-probabilities of written tokens are off, and how far tokens are from the most likely ones."""
    off = regret = 0.0
    for prompt, (text,) in zip(prompts, texts, strict=True):
        if not text.token_ids:  # the end of the text comes first
            continue
        logprobs = _next_logprobs(model, prompt, list(text.token_ids), at_once)
        for row, token, found in zip(logprobs, text.token_ids, text.token_logprobs, strict=True):
            off = max(off, abs(float(row[token]) - found))
            regret = max(regret, float(row.max() - row[token]))
    return off, regret


@torch.inference_mode()
def _next_logprobs(model: Any, prompt: list[int], text: list[int], at_once: bool) -> torch.Tensor:
    """Return transformers' log-probabilities of each next token, [len(text), vocabulary].

    Args:
        at_once: in one forward; otherwise, if frequencies depend on the length, in a forward for each token.
    """

    def logits(tokens: list[int]) -> torch.Tensor:
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double().log_softmax(-1)

    if at_once:
        return logits([*prompt, *text])[len(prompt) - 1 : -1]
    return torch.stack([logits([*prompt, *text[:i]])[-1] for i in range(len(text))])


def line(family: str, verdicts: list[Verdict]) -> str:
    """Return the page's row of a family."""
    refused = list(dict.fromkeys(v.refused.replace("|", "/") for v in verdicts if v.refused is not None))
    ran = sum(v.right for v in verdicts)
    found = "right" if ran == len(verdicts) else f"right in {ran} of {len(verdicts)} patterns" if ran else "rejected"
    return f"| `{family}` | {len(verdicts)} | {found} | {'; '.join(refused)} |"


def page(rows: dict[str, str]) -> str:
    """Return the list of families, from their rows."""
    ran = [row for row in rows.values() if "| right" in row]
    out = [
        f"{len(ran)} of {len(rows)} families of transformers {metadata.version('transformers')} run. "
        "The others raise an error with the reason given here.",
        "",
        "| family | patterns | verdict | reason |",
        "|-|-|-|-|",
        *rows.values(),
        "",
        "Not counted:",
        "",
        "| reason | families |",
        "|-|-|",
    ]
    for reason in dict.fromkeys(ASIDE.values()):
        members = ", ".join(f"`{family}`" for family in ASIDE if ASIDE[family] == reason and family in families())
        out.append(f"| {reason} | {members} |")
    return "\n".join(out)


def sentence(rows: dict[str, str]) -> str:
    """Return the README's sentence about families."""
    ran = sum("| right" in row for row in rows.values())
    return (
        f"{ran} of {len(rows)} families of causal decoders in transformers "
        f"{metadata.version('transformers')} ([list](docs/readers.md))."
    )


def main() -> None:
    """Run the sweep and write the page and the README's sentence."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = {}
    for family in families():
        if family not in ASIDE:
            verdicts = [verdict(family, changes) for changes in patterns(family)]
            rows[family] = line(family, verdicts)
            print(rows[family], flush=True)
            if wrong := [v for v in verdicts if v.refused is None and not v.right]:
                sys.exit(f"{family} is wrong, and nothing was written: {wrong}")
    for path, text in ((PAGE, page(rows)), (README, sentence(rows))):
        old = path.read_text(encoding="utf-8")
        new, count = _BLOCK.subn(lambda match, text=text: f"{match[1]}{text}{match[2]}", old)
        assert count == 1, path
        path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
