"""Run SuRe as a program of one question: candidates, summaries, validity, ranking, vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, score, write
from fastreader.sure.replies import DONE, CandidateReply, parse_candidates, parse_label, without_done
from fastreader.sure.task import Task
from fastreader.sure.templates import PLACEHOLDERS, lettered, number_word
from fastreader.sure.types import SureResult
from fastreader.sure.vote import Choice, choice_of, comparisons, ranking_scores, validity_value, vote, winner


@dataclass(frozen=True)
class Summaries:
    """K texts, and what ended each: "eos", "stop" or "length"."""

    texts: list[str]
    finishes: list[str]


def sure(task: Task) -> Program[SureResult]:
    """Answer by Algorithm 1 of the paper, without costs and readers, which `run_group` adds."""
    found = yield from propose(task)
    summaries = yield from summarise(task, found.candidates)
    result = yield from judge(task, found, summaries)
    return result


def propose(task: Task) -> Program[CandidateReply]:
    """Ask for `k` candidates (Eq. 2, stage 1), parse the reply and add its notes to the task."""
    settings = task.settings
    limit = settings.max_candidate_tokens
    prompts = task.fitting("candidates", partial(_candidates_prompts, task), limit)
    # No DONE as a stop string: some replies begin with it.
    [[reply]] = yield from write("candidates", prompts, max_new_tokens=limit)
    read = partial(parse_candidates, k=settings.k, longest=settings.longest_candidate)
    task.note_cut("candidates", [reply], lambda text: read(text).candidates)
    found = read(reply.text)
    task.notes.extend(map("candidates: {}".format, found.notes))
    return found


def _candidates_prompts(task: Task, passages: list[Passage]) -> list[TextOrTokens]:
    """Return the paper's Listing 1, or with the instruction after the passages, or with shots (Listing 8)."""
    settings, t = task.settings, task.settings.template
    passages_first = settings.candidates_prompt == "passages_first"
    fields = {
        "passages": number_word(len(passages)),
        "number": number_word(settings.k),
        "form": ", ".join(lettered(PLACEHOLDERS[: settings.k])),
        "words": number_word(settings.words),
    }
    read = t.passages(passages)
    if settings.shots:
        head = t.candidates_shots.format(**fields)
        shots = [t.shot.format(question=q, answer=a) for q, a in settings.shots]
        last = t.candidates_shots_question.format(question=task.question, number=fields["number"], form=fields["form"])
        pieces = [*read, "\n" + head, *shots, last] if passages_first else [head, *read, *shots, last]
    else:
        last = t.candidates_question.format(question=task.question)
        after = [*read, t.candidates_after.format(**fields), last]
        pieces = after if passages_first else [t.candidates.format(**fields), *read, last]
    return [task.prompt("candidates", pieces)]


def summarise(task: Task, candidates: Sequence[str]) -> Program[Summaries]:
    """Generate a summary of the passages for each candidate (Eq. 3, stage 2).

    A summary that is cut leaves a note. All prompts share everything but the last piece.
    """
    t, limit = task.settings.template, task.settings.max_summary_tokens
    choices = lettered(candidates)
    shared = t.summary.format(question=task.question, choices=" ".join(choices))
    tails = [[shared, t.summary_prediction.format(prediction=choice)] for choice in choices]  # Listing 2
    prompts = task.fitting("summaries", partial(task.after_passages, "summaries", tails), limit)
    replies = yield from write("summaries", prompts, max_new_tokens=limit, stop=(DONE,))
    summaries = Summaries([], [])
    for candidate, (reply,) in zip(candidates, replies, strict=True):
        summaries.texts.append(without_done(reply.text))
        summaries.finishes.append(reply.finish_reason)
        task.note_cut("summaries", [reply], what=f"the summary of {candidate!r}")
        if not summaries.texts[-1]:
            task.notes.append(f"summaries: the summary of {candidate!r} is empty")
    return summaries


def choose(task: Task, stage: str, prompts: Sequence[Sequence[str]], labels: tuple[str, str]) -> Program[list[Choice]]:
    """Choose one of two labels after each prompt, given as its pieces.

    mode="loglikelihood" scores both labels after all prompts in one call, in which the labels share each prompt;
    mode="generate" generates after each prompt and looks for the label that comes first, as the paper does.
    """
    asked = [task.prompt(stage, pieces) for pieces in prompts]
    if task.settings.mode == "generate":
        replies = yield from write(stage, asked, max_new_tokens=task.settings.max_label_tokens)
        task.note_cut(stage, [reply for reply, *_ in replies], partial(parse_label, labels=labels))
        chosen = [Choice(parse_label(reply.text, labels), None) for reply, *_ in replies]
        if unclear := sum(choice.label is None for choice in chosen):
            task.notes.append(f"{stage}: {unclear} of {len(chosen)} replies name neither {labels[0]} nor {labels[1]}")
        return chosen
    continuations = [task.label(stage, label) for label in labels]
    scored = yield from score(stage, list(product(asked, continuations)))
    return [choice_of(first.logprob, second.logprob) for first, second in zip(scored[::2], scored[1::2], strict=True)]


def judge(task: Task, found: CandidateReply, summaries: Summaries) -> Program[SureResult]:
    """Judge validity, rank, and vote over the summaries (stages 3 to 5)."""
    t, use, candidates, texts = task.settings.template, task.settings.use, found.candidates, summaries.texts
    count = len(candidates)
    supported: list[Choice] = []
    if "validity" in use:  # Listing 3: question, candidate and summary only, which helps (App. A.8)
        head = t.validity_question.format(question=task.question)
        pairs = zip(candidates, texts, strict=True)
        prompts = [[head, t.validity.format(prediction=candidate, summary=text)] for candidate, text in pairs]
        supported = yield from choose(task, "validity", prompts, (t.true, t.false))
    ordered: dict[tuple[int, int], Choice] = {}
    if "ranking" in use:  # Listing 4: every pair in both orders, two summaries and the question only
        last = t.ranking_question.format(question=task.question)
        prompts = [
            [t.ranking, t.ranking_first.format(summary=one), t.ranking_second.format(summary=other), last]
            for one, other in permutations(texts, 2)
        ]
        preferred = yield from choose(task, "ranking", prompts, (t.first, t.second))
        ordered = dict(zip(permutations(range(count), 2), preferred, strict=True))
    pairwise, preference, replied = comparisons(ordered, count)
    validity = list(map(validity_value, supported)) if "validity" in use else None
    ranking = ranking_scores(pairwise) if "ranking" in use else None
    scores = vote(validity, ranking, count)
    best = winner(scores) if scores else None
    if best is None:
        task.notes.append("there is no candidate, so there is no answer")
    elif count == 1:
        task.notes.append("there is only one candidate; it wins without a vote")
    elif scores.count(scores[best]) > 1:
        task.notes.append(f"{scores.count(scores[best])} candidates score {scores[best]:g}; the earliest wins")
    return SureResult(
        question=task.question,
        answer="" if best is None else candidates[best],
        rationale="" if best is None else texts[best],
        candidates=candidates,
        found=found,
        summaries=texts,
        finishes=summaries.finishes,
        validity=validity,
        validity_probability=[choice.probability for choice in supported] or [None] * count,
        preference=preference,
        replied=replied,
        pairwise=pairwise,
        ranking=ranking,
        scores=scores,
        mode=task.settings.mode,
        candidates_prompt=task.settings.candidates_prompt,
        use=list(use),
        num_passages=len(task.passages),
        notes=task.notes,
    )
