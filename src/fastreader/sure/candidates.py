"""Stage 1: K short answers from the passages (Eq. 2)."""

from __future__ import annotations

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, write_one
from fastreader.sure.cuts import note_cut
from fastreader.sure.replies import CandidateReply, parse_candidates
from fastreader.sure.task import Task
from fastreader.sure.texts import answer_form, number_word

STAGE = "candidates"


def propose(task: Task) -> Program[CandidateReply]:
    """Ask for `k` candidates and read the reply; its notes become notes of the task too."""
    settings = task.settings
    prompts = task.fitting(STAGE, lambda passages: [candidates_prompt(task, passages)], settings.max_candidate_tokens)
    # Without DONE as a stop string: some replies begin with it.
    reply = yield from write_one(STAGE, prompts[0], max_new_tokens=settings.max_candidate_tokens)

    def read(text: str) -> CandidateReply:
        return parse_candidates(text, settings.k, longest=settings.longest_candidate)

    found = read(reply.text)
    note_cut(task, STAGE, [reply], lambda text: read(text).candidates)
    task.notes += [f"candidates: {note}" for note in found.notes]
    return found


def candidates_prompt(task: Task, passages: list[Passage]) -> TextOrTokens:
    """The paper's Listing 1, or with its instruction behind the passages, or with answered questions (Listing 8)."""
    settings, t = task.settings, task.settings.template
    fields = {
        "passages": number_word(len(passages)),
        "number": number_word(settings.k),
        "form": answer_form(settings.k),
        "words": number_word(settings.words),
    }
    read = t.passages(passages)
    ask = t.candidates_question.format(question=task.question)
    if settings.shots:
        head = t.candidates_shots.format(**fields)
        shots = [t.shot.format(question=q, answer=a) for q, a in settings.shots]
        last = t.candidates_shots_question.format(question=task.question, number=fields["number"], form=fields["form"])
        pieces = [*read, "\n" + head, *shots, last] if _passages_first(task) else [head, *read, *shots, last]
    elif _passages_first(task):
        pieces = [*read, t.candidates_after.format(**fields), ask]
    else:
        pieces = [t.candidates.format(**fields), *read, ask]
    return task.prompt(STAGE, pieces)


def _passages_first(task: Task) -> bool:
    return task.settings.candidates_prompt == "passages_first"
