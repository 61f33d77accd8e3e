"""The share of SuRe's prompt tokens that the packaged reader computes, counted with its tokenizer and plans."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from helpers.scripted import ScriptedReader
from helpers.support import QUESTIONS
from sure_readers import predicted, script, stage_of

from fastreader import Example, Passage, load_examples, sure
from fastreader.core.protocol import Generation, Loglikelihood, Results
from fastreader.core.tree import TreeStats

SUMMARY = (
    "The passages say that {} is the answer to the question, for it is named there more than once, together with the "
    "place that was asked for. It is described at some length, first by where it begins, then by the towns it passes, "
    "and in the end by where it reaches the sea. Other names occur too, but none of them lies in that place, "
    "and one lies elsewhere. So the prediction is supported by the information in the passages above. "
)


class Counting(ScriptedReader):
    """The packaged reader's prompts and plans, with replies by rules."""

    def __init__(self, reader, **rules):
        super().__init__(**rules)
        self.reader = reader
        self.texts: dict[tuple[int, ...], str] = {}
        self.computed: dict[str, int] = {}
        self.given: dict[str, int] = {}

    def prompt(self, pieces, **options):
        tokens = self.reader.prompt(pieces, **options)
        self.texts[tuple(tokens)] = "".join(pieces)
        return tokens

    def continuation(self, text, **options):
        tokens = self.reader.continuation(text, **options)
        self.texts[tuple(tokens)] = text
        return tokens

    def text(self, tokens):
        return self.texts[tuple(tokens)]

    def count(self, sequences):
        stats = TreeStats(0, 0, 0, 0)
        for tree in self.reader.plan(sequences, 10**9):
            stats += tree.stats
        stage = stage_of(self.text(sequences[0][0]))
        self.given[stage] = self.given.get(stage, 0) + stats.total_tokens
        self.computed[stage] = self.computed.get(stage, 0) + stats.computed_tokens
        return stats

    def loglikelihood(self, requests, **options):
        pairs = list(requests)
        return Results(
            [Loglikelihood(self.rate(self.text(c), self.text(t)), len(t), False) for c, t in pairs], self.count(pairs)
        )

    def generate(self, prompts, **options):
        texts = list(prompts)
        out = [[Generation(self.write(self.text(p), 0), [], "eos", len(p))] for p in texts]
        return Results(out, self.count([(p, ()) for p in texts]))


def counting(reader, k):
    letters = "abcd"[:k]
    rules = script(", ".join(f"({c}) answer {c}" for c in letters))
    write = rules["write"]

    def writes(prompt, i):
        if "propose" in prompt:
            return ", ".join(f"({c}) answer {c}" for c in letters)
        return SUMMARY.format(predicted(prompt)) if stage_of(prompt) == "summaries" else write(prompt, i)

    return Counting(reader, write=writes, score=lambda c, t: -1.0)


@pytest.fixture(scope="module")
def ten_passages():
    examples = load_examples(QUESTIONS)
    pool = [p for e in examples for p in e.passages]
    assert len(pool) >= 10
    return examples[0].question, pool[:10]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_stage_two_computes_one_in_k(packaged_reader, ten_passages, k):
    result = sure.answer(counting(packaged_reader, k), *ten_passages, k=k)
    cost = result.costs["summaries"]
    assert cost.calls == k
    assert cost.total_tokens > k * 900
    assert cost.computed_tokens <= (1 / k + 0.05) * cost.total_tokens


def test_stages_two_to_four_compute_at_most_55_percent(packaged_reader, ten_passages):
    reader = counting(packaged_reader, 2)
    result = sure.answer(reader, *ten_passages)
    stages = ("summaries", "validity", "ranking")
    given = sum(result.costs[s].total_tokens for s in stages)
    computed = sum(result.costs[s].computed_tokens for s in stages)
    assert [result.costs[s].calls for s in stages] == [2, 4, 4]
    assert given == sum(reader.given[s] for s in stages)
    # The same, counted by hand: each label is a separate call with the whole prompt before it.
    assert computed <= 0.55 * given
    for stage in ("validity", "ranking"):
        assert result.costs[stage].computed_tokens <= 0.55 * result.costs[stage].total_tokens


def test_total_tokens_are_those_of_separate_calls(packaged_reader, ten_passages):
    lengths = []

    class Separate(Counting):
        def count(self, sequences):
            lengths.append(sum(len(c) + len(t) for c, t in sequences))
            return super().count(sequences)

    base = counting(packaged_reader, 2)
    reader = Separate(packaged_reader, write=base.write, score=base.rate)
    result = sure.answer(reader, *ten_passages)
    assert [cost.total_tokens for cost in result.costs.values()] == lengths


def test_passages_first_candidates_share_the_passages_with_the_summaries(packaged_reader, ten_passages):
    prompts = {}
    for order in ("instruction_first", "passages_first"):
        reader = counting(packaged_reader, 2)
        sure.answer(reader, *ten_passages, candidates_prompt=order)
        prompts[order] = [
            next(list(t) for t, text in reader.texts.items() if mark in text) for mark in ("propose", "Prediction: (a)")
        ]
    shared = {order: common_prefix(*pair) / len(pair[1]) for order, pair in prompts.items()}
    assert shared["passages_first"] > 0.85
    assert shared["instruction_first"] < 0.1


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_results_with_counts_are_json(packaged_reader, ten_passages):
    json.dumps(sure.answer(counting(packaged_reader, 2), *ten_passages).to_dict())


def test_a_packed_question_costs_what_it_costs_alone(tiny_reader):
    """The count from tokens in a batch equals the reader's own count of a single question."""
    examples = [
        Example("Who was last?", ["Ada was last."]),
        Example("Who was first?", ["Bo was first.", "Cy was not."]),
    ]
    examples = [replace(e, passages=[Passage(p) for p in e.passages]) for e in examples]
    options = {"max_candidate_tokens": 20, "max_summary_tokens": 8}
    together = list(sure.answer_many(tiny_reader, examples, **options))
    for example, result in zip(examples, together, strict=True):
        assert list(result.costs)[:3] == ["candidates", "summaries", "validity"]
        alone = sure.answer(tiny_reader, example.question, example.passages, **options)
        assert (alone.candidates, alone.summaries) == (result.candidates, result.summaries)
        for stage, cost in alone.costs.items():
            assert (cost.total_tokens, cost.computed_tokens, cost.new_tokens) == (
                result.costs[stage].total_tokens,
                result.costs[stage].computed_tokens,
                result.costs[stage].new_tokens,
            )


FIRST = {"max_candidate_tokens": 20, "max_summary_tokens": 8, "candidates_prompt": "passages_first"}
LONG = "Ada was the last of them all, and nobody came after her. " * 4


def two_questions():
    return [
        Example("Who was last?", [Passage(LONG), Passage("Bo was not.")]),
        Example("Who was first?", [Passage("Bo was first. " * 9), Passage("Cy was not.")]),
    ]


class WithoutSessions:
    """The same reader without sessions."""

    def __init__(self, reader):
        self.name, self.describe, self.max_length = reader.name, reader.describe, reader.max_length
        self.prompt, self.continuation = reader.prompt, reader.continuation
        self.loglikelihood, self.generate = reader.loglikelihood, reader.generate


@pytest.mark.parametrize("method", ["sure", "sure@1"])
@pytest.mark.parametrize("count", [1, 2])
def test_passages_first_are_read_once(tiny_reader, count, method):
    """Runs with a session between the stages give the same texts and compute fewer tokens."""
    examples = two_questions()[:count]
    together = list(sure.answer_many(tiny_reader, examples, method=method, batch_size=2, **FIRST))
    apart = list(sure.answer_many(WithoutSessions(tiny_reader), examples, method=method, batch_size=2, **FIRST))
    for example, kept, without in zip(examples, together, apart, strict=True):
        assert next(iter(kept.costs)) == "passages"
        assert "passages" not in without.costs
        assert (kept.candidates, kept.summaries) == (without.candidates, without.summaries)
        assert kept.scores == pytest.approx(without.scores)
        assert kept.readers == without.readers
        read = kept.costs["passages"].computed_tokens
        assert read > (100 if example is examples[0] else 80)
        for stage in ("candidates", "summaries"):
            assert kept.costs[stage].total_tokens == without.costs[stage].total_tokens
            assert kept.costs[stage].computed_tokens == without.costs[stage].computed_tokens - read
        alone = sure.ask(tiny_reader, example.question, example.passages, method=method, **FIRST)
        for stage, cost in alone.costs.items():  # in a group as if alone
            other = kept.costs[stage]
            assert (cost.total_tokens, cost.computed_tokens, cost.new_tokens) == (
                other.total_tokens,
                other.computed_tokens,
                other.new_tokens,
            ), stage


def test_a_batch_reads_its_passages_in_one_session(tiny_reader, monkeypatch):
    opened = []
    session = tiny_reader.session
    monkeypatch.setattr(tiny_reader, "session", lambda *prefixes: opened.append(session(*prefixes)) or opened[-1])
    list(sure.answer_many(tiny_reader, two_questions(), **FIRST))
    assert len(opened) == 1
    assert opened[0].nbytes == 0  # let go at the end


def test_the_prefix_of_one_method_does_not_lower_the_cost_of_another(tiny_reader):
    from fastreader.reader.programs.readers import Readers
    from fastreader.sure.pipeline import SureJob, run_group

    example, readers = two_questions()[0], Readers(tiny_reader)
    first, usual = (
        sure.Settings(**{**FIRST, "candidates_prompt": order}) for order in ("passages_first", "instruction_first")
    )
    jobs = [
        SureJob(example, "sure", usual, readers),
        SureJob(example, "sure", first, readers),
        SureJob(example, "oracle", usual, readers),
    ]
    jobs[2] = replace(jobs[2], example=replace(example, answers=["Ada"]))
    for job, outcome in zip(jobs, run_group(jobs), strict=True):
        (alone,) = run_group([job])
        assert list(alone.value.costs) == list(outcome.value.costs)
        for stage, cost in alone.value.costs.items():
            other = outcome.value.costs[stage]
            assert (cost.total_tokens, cost.computed_tokens, cost.new_tokens) == (
                other.total_tokens,
                other.computed_tokens,
                other.new_tokens,
            ), stage


def test_recorded_prefixes_are_not_read_again(tiny_reader, tmp_path, monkeypatch):
    """Kill a run after the summaries: the passages are not read again, and the cost of reading them is kept."""
    output = tmp_path / "out.jsonl"
    whole = list(sure.answer_many(tiny_reader, two_questions(), **FIRST))
    with monkeypatch.context() as patch:
        patch.setattr(tiny_reader, "loglikelihood", killed)
        with pytest.raises(KeyboardInterrupt):
            list(sure.answer_many(tiny_reader, two_questions(), output=output, **FIRST))
    monkeypatch.setattr(tiny_reader, "session", killed)
    monkeypatch.setattr(tiny_reader, "generate", killed)
    resumed = list(sure.answer_many(tiny_reader, two_questions(), output=output, resume=True, **FIRST))
    for one, other in zip(whole, resumed, strict=True):
        assert one.answer == other.answer
        assert list(one.costs) == list(other.costs)
        assert [(c.total_tokens, c.computed_tokens) for c in one.costs.values()] == [
            (c.total_tokens, c.computed_tokens) for c in other.costs.values()
        ]


def killed(*arguments, **options):
    raise KeyboardInterrupt


def test_a_prefix_that_does_not_fit_is_noted(tiny_reader, monkeypatch):
    from fastreader.models.machine import memory

    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(memory, "pass_limits", lambda *arguments: (10**6, 10**6))
    options = {"max_candidate_tokens": 4, "max_summary_tokens": 4, "candidates_prompt": "passages_first"}
    result = sure.answer(tiny_reader, "Who was last?", ["Ada was."], **options)
    assert any(note.startswith("the passages were read again for each stage: session:") for note in result.notes)
