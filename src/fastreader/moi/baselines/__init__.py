"""The orders that MoI has to beat, each a small function of one signature, and `METHODS`, all of them by name.

``function(reader, question, passages, *, ...) -> Ordering`` takes any reader, or None if the order needs none, the
question's text, and passages in the retriever's order. `max_batch_tokens` limits the tokens of one pass. Importing this
package loads no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import require
from fastreader.data.types import Passage
from fastreader.moi.baselines.alone import bayes_saliency, cross_encoder, long_llm_lingua, qg, retriever_scores
from fastreader.moi.baselines.consistency import ConsistencyVote, permutation_self_consistency, self_consistency
from fastreader.moi.baselines.first_token import FirstTokenPrompt, first_token
from fastreader.moi.baselines.fixed import backwards, best_at_the_ends, long_context_reorder, oracle, random, retriever
from fastreader.moi.baselines.listwise import ListwisePrompt, listwise
from fastreader.moi.baselines.ordering import Ordering
from fastreader.moi.baselines.pairwise import PairwisePrompt, pairwise
from fastreader.moi.baselines.paper import moi_paper
from fastreader.moi.baselines.placed import placed, score_matched
from fastreader.moi.baselines.saliency_plus import bayes_saliency_plus
from fastreader.moi.calibration.probe import gold_of

__all__ = [
    "METHODS",
    "ConsistencyVote",
    "FirstTokenPrompt",
    "ListwisePrompt",
    "Method",
    "Ordering",
    "PairwisePrompt",
    "backwards",
    "bayes_saliency",
    "bayes_saliency_plus",
    "best_at_the_ends",
    "cross_encoder",
    "first_token",
    "gold_of",
    "listwise",
    "long_context_reorder",
    "long_llm_lingua",
    "moi_paper",
    "oracle",
    "pairwise",
    "permutation_self_consistency",
    "qg",
    "random",
    "retriever",
    "score_matched",
    "self_consistency",
]


@checked
@dataclass(frozen=True)
class Method:
    """A baseline by name.

    Attributes:
        name: its name.
        function: the function it calls.
        settings: names of the keyword arguments that it takes.
        needs: its requirements: "reader", "generate" (a reader that generates), "bias", "scores" (the retriever's),
            "gold" (annotations), "model" (a cross-encoder's name).
    """

    name: str
    function: Callable[..., Ordering]
    settings: frozenset[str]
    needs: frozenset[str]

    def __call__(self, reader: Any, question: str, passages: Sequence[Passage], **settings: Any) -> Ordering:
        """Run it with the `settings` (bias, seed, template, model, ...) that it takes, ignoring the others.

        Raises:
            InputError: if a requirement is missing.
        """
        given = {"reader": reader, **settings}
        missing = sorted(n for n in self.needs & {"reader", "bias", "model"} if given.get(n) is None)
        require(not missing, f"{self.name}: needs {', '.join(missing)}, got None")
        return self.function(reader, question, passages, **{k: v for k, v in settings.items() if k in self.settings})


def _method(name: str, function: Callable[..., Ordering], needs: str = "") -> Method:
    parameters = inspect.signature(function).parameters.values()  # of the function that `placed` wraps
    taken = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        taken |= {"template", "max_batch_tokens"}
    return Method(name, function, frozenset(taken) | ({"bias"} & {*needs.split()}), frozenset(needs.split()))


def _and_matched(name: str, function: Callable[..., Ordering], needs: str) -> tuple[Method, Method]:
    """Return the method, and the one that puts its order into the places that the reader favours."""
    return _method(name, function, needs), _method(f"{name}-matched", placed(function), f"bias {needs}")


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _method("retriever", retriever),
        _method("random", random),
        _method("reversed", backwards),
        _method("best-at-the-ends", best_at_the_ends),
        _method("long-context-reorder", long_context_reorder),
        _method("bm25-matched", placed(retriever_scores), "bias scores"),
        *_and_matched("qg", qg, "reader"),
        *_and_matched("bayes-saliency", bayes_saliency, "reader"),
        _method("bayes-saliency-plus", bayes_saliency_plus, "reader"),
        _method("longllmlingua", long_llm_lingua, "reader"),
        *_and_matched("pairwise", pairwise, "reader"),
        *_and_matched("first-token", first_token, "reader"),
        *_and_matched("rankgpt", listwise, "reader generate"),
        _method("permutation-self-consistency", permutation_self_consistency, "reader generate"),
        *_and_matched("cross-encoder", cross_encoder, "model"),
        _method("moi-paper", moi_paper, "reader"),
        _method("oracle", oracle, "bias gold"),
    )
}
