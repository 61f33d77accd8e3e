"""MoI scores a group of questions in one call, with the same scores as for single questions."""

import pytest

from fastreader.moi.reorder.rerank import rerank
from fastreader.study.cells import questions_of
from studies import rows_of, run, study_of


@pytest.mark.parametrize("options", [{}, {"stopping": {"most": 6}}])
def test_moi_scores_a_group_in_one_call(tmp_path, tiny_reader, monkeypatch, options):
    calls = []
    original = type(tiny_reader).loglikelihood

    def counting(self, requests, **options):
        pairs = list(requests)
        calls.append(len(pairs))
        return original(self, pairs, **options)

    monkeypatch.setattr(type(tiny_reader), "loglikelihood", counting)
    monkeypatch.setattr(type(tiny_reader), "score", lambda *_, **__: pytest.fail("a call of its own"))
    study = study_of(tmp_path, [{"method": "moi", **options}], 3, max_new_tokens=2)
    done = run(study, tmp_path / "run", tiny_reader)
    assert done.failed == 0 and calls[0] % 3 == 0 and calls[0] > 3
    assert len(calls) == 1 or options
    monkeypatch.undo()
    rows = {row["question_id"]: row for row in rows_of(tmp_path / "run").values()}
    from fastreader.moi.reorder.planning import Stopping

    stopping = Stopping(**options["stopping"]) if options else None
    for example in questions_of(study):
        wanted = rerank(tiny_reader, example, seed=0, stopping=stopping)
        row = rows[example.id]
        assert row["trace"]["order"] == wanted.indices
        assert row["trace"]["utilities"]["utility"] == pytest.approx(wanted.utilities.utility.tolist(), abs=1e-4)
        assert row["tokens"]["total_tokens"] > wanted.cost.total_tokens
