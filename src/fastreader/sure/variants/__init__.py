"""List the paper's ablations, baselines and analyses by name in `METHODS`."""

from __future__ import annotations

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.sure.program import sure
from fastreader.sure.task import Variant
from fastreader.sure.variants import ablations as ab
from fastreader.sure.variants import per_passage, reasoning
from fastreader.sure.variants.per_passage import rerank_passages

__all__ = ["METHODS", "Variant", "find_method", "rerank_passages"]

_BASE = ("shots", "on_overflow")
_PROPOSED = ("k", "candidates_prompt", *_BASE)
_SUMMARISED = (*_PROPOSED, "max_summary_tokens")
_SURE = (*_SUMMARISED, "mode")
_GENERIC = (*_BASE, "max_summary_tokens")
_WEIGHED = ("shots", "weights", "encoder")
_ALL = (
    Variant("sure", "candidates, conditional summaries, validity and ranking", sure, (), _SURE, True),
    Variant("base", "the passages as they are", ab.base, (), _BASE),
    Variant("no_retrieval", "the question only", ab.no_retrieval, (), ("shots",), reads=False),
    Variant("summaries", "base with all conditional summaries", ab.with_summaries, (), _SUMMARISED, True),
    Variant("ranking", "SuRe without validity", ab.ranking_only, (), _SURE, True),
    Variant("validity", "SuRe without ranking", ab.validity_only, (), _SURE, True),
    Variant("multiple_choice", "base with the candidates as choices", ab.multiple_choice, (), (*_PROPOSED, "mode")),
    Variant("generic_summary", "a summary of no candidate, then base over it", ab.summary_then_predict, (), _GENERIC),
    Variant("sure_few_shot", "SuRe, candidates after answered questions", sure, ("shots",), _SURE, True),
    Variant("base_few_shot", "base after answered questions", ab.base, ("shots",), _BASE),
    Variant("oracle", "the best of the candidates", ab.oracle, ("answers",), _PROPOSED),
    Variant("rerank", "an answer per passage, then a weighted vote", per_passage.rerank, ("passages",), _WEIGHED),
    Variant("replug", "an answer per passage, then a mixture", per_passage.replug, ("passages",), _WEIGHED),
    Variant("chain_of_thought", "reasoning before the answer", reasoning.chain_of_thought, (), ("on_overflow",)),
    Variant("self_verification", "sampled answers, checked backwards", reasoning.self_verification, (), _BASE),
    Variant(
        "selection_inference",
        "passages one by one, as needed",
        reasoning.selection_inference,
        ("passages",),
        ("mode", "on_overflow"),
    ),
    per_passage.top_passage("retriever", "the retriever's first", per_passage.by_retriever, _BASE),
    per_passage.top_passage("question", "nearest to the question", per_passage.by_question, (*_BASE, "encoder")),
    per_passage.top_passage(
        "generic", "nearest to a generic summary", per_passage.by_generic_summary, (*_GENERIC, "encoder")
    ),
    per_passage.top_passage(
        "sure", "nearest to SuRe's summary", per_passage.by_sure, (*_SURE, "encoder"), rereads=True
    ),
    per_passage.top_passage("reader", "the reader's choice", reasoning.ranked_passages, (*_BASE, "mode")),
)
METHODS: dict[str, Variant] = {method.name: method for method in _ALL}


@checked
def find_method(name: str) -> Variant:
    """Return the method `name`, or for "name@N" the method over the first N passages.

    Raises:
        InputError: if there is no such method.
    """
    plain, at, count = name.partition("@")
    known = plain in METHODS and (not at or (count.isdecimal() and int(count) > 0))
    expect(known, "method", f"one of {', '.join(METHODS)}, or one of them followed by @N", name)
    return METHODS[plain].limited(int(count)) if at else METHODS[plain]
