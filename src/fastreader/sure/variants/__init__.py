"""The paper's ablations, baselines and analyses, each a small method by name: `METHODS`."""

from __future__ import annotations

from fastreader.errors import InputError
from fastreader.sure.variants import ablations, base, per_passage, reasoning, top_passage
from fastreader.sure.variants.method import Method
from fastreader.sure.variants.top_passage import rerank_passages

__all__ = ["METHODS", "Method", "find_method", "rerank_passages"]

_PASSAGES = ("passages",)
_OVERFLOW = ("on_overflow",)
_BASE = ("shots", "on_overflow")
_PROPOSED = ("k", "candidates_prompt", *_BASE)
_SUMMARISED = (*_PROPOSED, "max_summary_tokens")
_SURE = (*_SUMMARISED, "mode")
_WEIGHED = ("shots", "weights", "encoder")
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("sure", "candidates, conditional summaries, validity and ranking", ablations.full, (), _SURE, True),
        Method("base", "the passages as they are", base.base, (), _BASE),
        Method("no_retrieval", "the question alone", base.no_retrieval, (), ("shots",), reads=False),
        Method("summaries", "base with all conditional summaries", ablations.with_summaries, (), _SUMMARISED, True),
        Method("ranking", "SuRe without validity", ablations.ranking_only, (), _SURE, True),
        Method("validity", "SuRe without ranking", ablations.validity_only, (), _SURE, True),
        Method(
            "multiple_choice",
            "base with the candidates as choices",
            ablations.multiple_choice,
            takes=(*_PROPOSED, "mode"),
        ),
        Method(
            "generic_summary",
            "a summary of no candidate, then base over it",
            ablations.summary_then_predict,
            takes=(*_BASE, "max_summary_tokens"),
        ),
        Method(
            "sure_few_shot",
            "SuRe, candidates after answered questions",
            ablations.full,
            ("shots",),
            _SURE,
            rereads=True,
        ),
        Method("base_few_shot", "base after answered questions", base.base, ("shots",), _BASE),
        Method("oracle", "the best of the candidates", ablations.oracle, ("answers",), _PROPOSED),
        Method("rerank", "an answer a passage, then a weighted vote", per_passage.rerank, _PASSAGES, _WEIGHED),
        Method("replug", "an answer a passage, then a mixture", per_passage.replug, _PASSAGES, _WEIGHED),
        Method("chain_of_thought", "reasoning before the answer", reasoning.chain_of_thought, (), _OVERFLOW),
        Method("self_verification", "sampled answers, checked backwards", reasoning.self_verification, (), _BASE),
        Method(
            "selection_inference",
            "passages one by one, as needed",
            reasoning.selection_inference,
            _PASSAGES,
            ("mode", *_OVERFLOW),
        ),
        *(
            Method(
                f"top1_{name}",
                f"base over one passage, {about}",
                top_passage.from_top_passage(order),
                _PASSAGES,
                (*_BASE, *more),
                rereads=name == "sure",
            )
            for name, about, order, more in (
                ("retriever", "the retriever's first", top_passage.by_retriever, ()),
                ("question", "nearest to the question", top_passage.by_question, ("encoder",)),
                (
                    "generic",
                    "nearest to a generic summary",
                    top_passage.by_generic_summary,
                    ("encoder", "max_summary_tokens"),
                ),
                ("sure", "nearest to SuRe's summary", top_passage.by_sure, ("encoder", *_SURE)),
                ("reader", "the reader's choice", top_passage.by_reader, ("mode",)),
            )
        ),
    )
}


def find_method(name: str) -> Method:
    """The method `name`; "name@N" is the same of the first N passages.

    Raises:
        InputError: there is none.
    """
    plain, at, count = name.partition("@")
    if plain not in METHODS or (at and not (count.isdecimal() and int(count) > 0)):
        raise InputError(f"method: expected one of {', '.join(METHODS)}, or one with @N behind it, got {name!r}")
    return METHODS[plain].limited(int(count)) if at else METHODS[plain]
