"""Reason before answering: chain of thought, self-verification, selection-inference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, score, write, write_one
from fastreader.statistics.measures.answers import normalise
from fastreader.sure.program import choose
from fastreader.sure.replies import short_answer
from fastreader.sure.task import Task, finished
from fastreader.sure.templates import number_word
from fastreader.sure.types import Result
from fastreader.sure.variants.ablations import STAGE, base_pieces, write_answers
from fastreader.sure.variants.per_passage import weighted_votes


def chain_of_thought(task: Task) -> Program[Result]:
    """Answer after reasoning without examples (Kojima et al. 2022)."""
    settings, t = task.settings, task.settings.variant_template
    limit = settings.max_reasoning_tokens
    think = t.think.format(question=task.question)
    kept: list[Passage] = []

    def build(passages: list[Passage]) -> list[TextOrTokens]:
        kept[:] = passages
        return [task.prompt("reasoning", [*settings.template.passages(passages), think])]

    prompts = task.fitting("reasoning", build, limit + settings.max_answer_tokens)
    thought = yield from write_one("reasoning", prompts[0], max_new_tokens=limit)
    task.note_cut("reasoning", [thought])
    reasoning = thought.text.strip()
    pieces = [*settings.template.passages(kept), think, f" {reasoning}"]
    last = task.prompt(STAGE, [*pieces, t.therefore.format(words=number_word(settings.words))])
    [reply] = yield from write_answers(task, [last])
    return finished(task, short_answer(reply), reasoning=reasoning, reply=reply)


def self_verification(task: Task) -> Program[Result]:
    """Sample answers, and take the one after which the question is likeliest (after Weng et al. 2022).

    The paper masks a condition of the question and tests whether the answer restores it. The log-likelihood of the
    whole question after passages and answer does this for each word, in one packed pass.
    """
    settings, t = task.settings, task.settings.variant_template
    limit = settings.max_answer_tokens
    prompts = task.fitting(STAGE, partial(task.after_passages, STAGE, [base_pieces(task)]), limit)
    replies = yield from write(
        STAGE, prompts, max_new_tokens=limit, n=settings.samples, temperature=settings.temperature, seed=settings.seed
    )
    task.note_cut(STAGE, replies[0], short_answer)
    answers = [short_answer(reply.text) for reply in replies[0]]
    kinds, votes = weighted_votes(answers, np.ones(len(answers)))
    if not kinds:
        task.notes.append("no sample has an answer")
        return finished(task, "", answers=answers, kinds=[], votes=[], question_logprobs=[])
    stage = "verification"
    question = task.label(stage, task.question)
    tails = [[t.verify.format(answer=kind)] for kind in kinds]
    contexts = task.fitting(stage, partial(task.after_passages, stage, tails), len(question))
    scored = yield from score(stage, [(context, question) for context in contexts])
    logprobs = [s.logprob for s in scored]
    best = kinds[logprobs.index(max(logprobs))]
    return finished(task, best, answers=answers, kinds=kinds, votes=votes.tolist(), question_logprobs=logprobs)


def selection_inference(task: Task) -> Program[Result]:
    """Rank the passages by the reader, and read one more at a time until there is an answer (Creswell et al. 2023).

    The prompts of 1, 2, ..., N passages share their beginnings, so all are decoded in one call.
    """
    settings, t = task.settings, task.settings.variant_template
    order = yield from ranked_passages(task)
    ranked = [task.passages[i] for i in order]
    infer = t.infer.format(words=number_word(settings.words), unknown=t.unknown)
    ask = [infer, t.question.format(question=task.question)]

    def build(passages: list[Passage]) -> list[TextOrTokens]:
        return [task.after_passages(STAGE, [ask], passages[: n + 1])[0] for n in range(len(passages))]

    prompts = replace(task, passages=ranked).fitting(STAGE, build, settings.max_answer_tokens)
    replies = yield from write_answers(task, prompts)
    answers = list(map(short_answer, replies))
    known = [i for i, answer in enumerate(answers) if answer and normalise(answer) != normalise(t.unknown)]
    if not known:
        task.notes.append("no number of passages gave an answer")
    used = known[0] + 1 if known else len(order)
    return finished(task, answers[known[0]] if known else "", order=order, answers=answers, passages_used=used)


def ranked_passages(task: Task) -> Program[list[int]]:
    """Return the indices of the passages, most helpful by the reader's label first, equals in their order."""
    t = task.settings.variant_template
    pieces = task.settings.template.passages(task.passages)
    prompts = [[t.select.format(question=task.question, passage=piece)] for piece in pieces]
    choices = yield from choose(task, "selection", prompts, (t.yes, t.no))
    helpful = []
    for choice in choices:
        share = 0.5 if choice.label is None else 1.0 - choice.label
        helpful.append(share if choice.probability is None else choice.probability)
    return sorted(range(len(helpful)), key=lambda i: -helpful[i])
