"""What one packed pass gains: the usual ways give the same numbers, and the comparison reports what each took."""

import json
import sys
from pathlib import Path

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader.errors import InputError

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import packing_gain
import peers
from groups import Group, cyclic_groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(where)
    byte_tokenizer().save_pretrained(where)
    return where


def test_groups_have_the_shape_asked_for():
    groups = cyclic_groups(50, passages=3, passage_tokens=7, candidates=2, candidate_tokens=4)
    assert [len(g.context) for g in groups] == [12 + 21 + 16] * 3
    assert {tuple(map(tuple, g.continuations)) for g in groups} == {tuple(map(tuple, groups[0].continuations))}
    bodies = [g.context[12:33] for g in groups]
    assert bodies[1] == bodies[0][7:] + bodies[0][:7]
    assert max(t for g in groups for t in g.context) < 50


def test_the_usual_ways_agree_with_one_sequence_at_a_time():
    model = tiny_llama()
    groups = cyclic_groups(200, 3, 8, 40, 5)[:2]
    groups.append(Group(groups[0].context, [[5], [9]], scored_from=12))
    want = torch.tensor(peers.one_at_a_time(model, groups))
    torch.testing.assert_close(torch.tensor(peers.padded(model, groups)), want, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(peers.prefix_cached(model, groups)), want, atol=1e-4, rtol=0)


def test_compare_on_a_model_of_the_users(folder):
    result = packing_gain.compare(folder, precision="exact", passages=3, passage_tokens=8, rounds=2)
    assert [way.name for way in result.ways] == [
        "fastreader, exact",
        "transformers, prefix cache",
        "transformers, padded by 8",
    ]
    assert result.sequences == 6
    assert result.ways[0].computed < result.ways[1].computed < result.ways[2].computed == result.given
    assert all(way.error < 1e-3 for way in result.ways)
    assert result.gains["transformers, padded by 8"] == result.ways[2].seconds / result.ways[0].seconds


def test_the_script(folder, monkeypatch, capsys):
    arguments = [
        "packing_gain.py",
        "--model",
        str(folder),
        "--num-passages",
        "2",
        "--passage-tokens",
        "5",
        "--rounds",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    packing_gain.main()
    told = json.loads(capsys.readouterr().out)
    assert len(told["ways"]) == 3 and set(told["gains"]) == {way["name"] for way in told["ways"][1:]}
    monkeypatch.setattr(sys, "argv", arguments)
    packing_gain.main()
    assert "times as fast as transformers, prefix cache" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["passages", "passage_tokens", "candidates", "rounds"])
def test_sizes_below_one(size):
    with pytest.raises(InputError, match=size):
        packing_gain.compare("unused", **{size: 0})
