"""Scores and greedy texts of tiny readers in "exact", however they are asked for, against transformers alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fuzzing import LONG, fuzz
from hypothesis import given, target
from hypothesis import strategies as st
from numbers_cases import TESTED, TOLERANCE, Request, Subject, requests, subject

from fastreader.models.passes.packed_keys import PackedKeys
from fastreader.ops.tree_attention import AttentionPlan

WAYS = ("permuted", "alone", "small passes", "session", "texts")
BUDGET = st.none() | st.integers(1, 200)


class Check:
    """Requests to one reader with their true values, which every way of asking must give."""

    def __init__(self, subject: Subject, asked: list[Request], data: st.DataObject) -> None:
        self.subject, self.asked, self.data = subject, asked, data
        self.wanted = [subject.scored(request) for request in asked]
        self.worst = 0.0  # nats a token

    def compare(self, reader, order: list[int], **options) -> None:
        """Score the requests in some order, and compare each token."""
        got = reader.loglikelihood([self.asked[i] for i in order], token_logprobs=True, **options)
        assert len(got) == len(order)
        for i, result in zip(order, got, strict=True):
            wanted = self.wanted[i]
            assert result.num_tokens == len(self.asked[i][1])
            if wanted is not None:
                difference = np.abs(np.asarray(result.token_logprobs) - wanted)
                self.worst = max(self.worst, float(difference.max()))
                assert difference.max() <= TOLERANCE, f"request {i}: off by {difference.max():.3g} nats"
                assert result.logprob == pytest.approx(wanted.sum(), abs=TOLERANCE * len(wanted))

    def budget(self) -> int | None:
        return self.data.draw(BUDGET, label="tokens in a pass")

    def permuted(self) -> None:
        order = self.data.draw(st.permutations(range(len(self.asked))), label="order")
        self.compare(self.subject.reader, [*order, order[0]])

    def alone(self) -> None:
        self.compare(self.subject.reader, [self.data.draw(st.integers(0, len(self.asked) - 1), label="request")])

    def small_passes(self) -> None:
        budget = self.data.draw(st.integers(1, 200), label="tokens in a pass")
        self.compare(self.subject.reader, list(range(len(self.asked))), max_batch_tokens=budget)

    def session(self) -> None:
        """Keep prefixes and perhaps what is scored. Ask twice, and for texts in between."""
        order, prefixes = list(range(len(self.asked))), []
        for context, _ in self.data.draw(st.lists(st.sampled_from(self.asked), min_size=1, max_size=3), label="kept"):
            prefixes.append(context[: self.data.draw(st.integers(1, len(context)), label="tokens kept")])
        scored_too = self.data.draw(st.booleans(), label="scored texts are kept")
        with self.subject.reader.session(*prefixes, cache_scored=scored_too, max_batch_tokens=self.budget()) as kept:
            self.compare(kept, order, max_batch_tokens=self.budget())
            self.texts(kept)
            self.compare(kept, order[::-1])

    def texts(self, reader=None) -> None:
        """Generate greedily after the contexts. Temperature 0 is the default and may be given."""
        reader = self.subject.reader if reader is None else reader
        room = self.data.draw(st.integers(1, 5), label="new tokens")
        options = self.data.draw(st.sampled_from([{}, {"temperature": 0.0}, {"temperature": 0}]), label="options")
        prompts = [context for context, _ in self.asked][:3]
        got = reader.generate(prompts, max_new_tokens=room, max_batch_tokens=self.budget(), **options)
        for prompt, (text,) in zip(prompts, got, strict=True):
            self.subject.check_text(prompt, text.token_ids, sorted(reader.end_tokens), room)


@fuzz(120, 10_000)
@given(st.sampled_from(TESTED), requests(), st.data())
@pytest.mark.long
def test_every_way_to_ask(family, asked, data):
    check = Check(subject(family), asked, data)
    check.compare(check.subject.reader, list(range(len(asked))))
    getattr(check, data.draw(st.sampled_from(WAYS), label="way").replace(" ", "_"))()
    if LONG:
        target(check.worst, label="nats a token")  # the search goes where the difference grows


@pytest.mark.parametrize("wrong", [{"windows": 1}, {"scale": 1e-2}, {"siblings": 1}])
def test_a_wrong_pass_is_caught(wrong, monkeypatch):
    """A window off by one, a scale off by a hundredth and siblings that see each other all exceed the tolerance."""
    honest = AttentionPlan.__init__ if "siblings" in wrong else PackedKeys.attend

    def see_siblings(self, subtree_end, *others):
        honest(self, np.full_like(subtree_end, len(subtree_end)), *others)

    def attend(self, query, key, value, params, return_lse):
        window = params.window and params.window + wrong.get("windows", 0)
        params = replace(params, window=window, scale=params.scale * (1 + wrong.get("scale", 0)))
        return honest(self, query, key, value, params, return_lse)

    sound = subject("Mistral, window")
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 261, 12).tolist()
    asked = [(shared + rng.integers(0, 261, 4).tolist(), [5, 6]) for _ in range(3)]
    wanted = [sound.scored(request) for request in asked]
    if "siblings" in wrong:
        monkeypatch.setattr(AttentionPlan, "__init__", see_siblings)
    else:
        monkeypatch.setattr(PackedKeys, "attend", attend)
    got = sound.reader.loglikelihood(asked, token_logprobs=True)
    worst = max(np.abs(np.asarray(r.token_logprobs) - w).max() for r, w in zip(got, wanted, strict=True))
    assert worst > 10 * TOLERANCE
