"""Pools of a study's random passages that are longer than the sample that is held in memory."""

import json

import fastreader as fr
from fastreader.study import provider as providers


def test_of_a_long_file_a_sample_is_held(tmp_path, monkeypatch):
    pool = tmp_path / "pool.jsonl"
    rows = [{"id": f"p{i}", "title": f"T{i % 5}", "text": f"passage {i}"} for i in range(60)]
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    gold = fr.Passage("Ada wrote it.", "T3", "g", is_gold=True)
    example = fr.Example("Who?", [gold, fr.Passage("Bea.", "T1", "b")], ["Ada"], id="q")
    whole = providers.PassageProvider([example], str(pool), 0, 2)
    monkeypatch.setattr(providers, "_POOL", 20)
    providers._sample.cache_clear()
    small = providers.PassageProvider([example], str(pool), 0, 2)
    assert len(small._passages) == 20 and set(small._titles) == {"T3"}
    assert {p.id for p in small._titles["T3"]} == {f"p{i}" for i in range(3, 60, 5)}  # of the file, not of the sample
    drawn = small._materials(example, 8).random
    assert len(drawn) == 8 and {p.id for p in drawn} <= {p.id for p in small._passages}
    providers._sample.cache_clear()
    assert small._materials(example, 8).hard == whole._materials(example, 0).hard
