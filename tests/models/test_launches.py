"""What a pass launches and copies on a GPU, followed on a pretended one (benchmarks/gpu/pretended.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.support import tiny_llama

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from host_time import on_meta
from pretended import META, Launches, launching, pretended

from fastreader.core.options import StepOptions
from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.prefix_cache import PrefixCache
from fastreader.models.passes.row_keys import RowKeys
from fastreader.models.tree_model import TreeModel
from fastreader.ops.tree_attention.triton_config import default_config
from fastreader.reader.generation.gpu_decoding import DeviceTexts
from fastreader.reader.generation.text_so_far import DecodedText

TREE = PrefixTree.build([(list(range(40)), [7, 9, i]) for i in range(5)] + [([1, 2, 3], [5, 200])])
LAYERS = 3
LAYER = [
    *("rms_norm_kernel", "product", "rotary_kernel", "tree_attention_kernel", "product"),
    *("rms_norm_kernel", "mm", "gate_kernel", "product"),  # mm rounds its result, as PyTorch's own product does
]


@pytest.fixture(autouse=True)
def unpoisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.empty` launch nothing, also in a session where the tests of the ops fill what it returns."""
    monkeypatch.setattr(torch, "empty", torch._C._VariableFunctions.empty)


@pytest.fixture
def model() -> Iterator[TreeModel]:
    own = tiny_llama(num_hidden_layers=LAYERS).bfloat16()
    with pretended():
        yield on_meta(TreeModel(own, "tiny", "fast", "bf16", own=True))


def followed(model: TreeModel, tree: PrefixTree = TREE) -> Launches:
    launches = Launches()
    with launching(launches):
        model.score(tree)
    return launches


def test_nine_launches_a_layer_and_one_copy_a_pass(model: TreeModel) -> None:
    followed(model)  # the shapes of attention are known from here on
    launches = followed(model)
    names = [name for name, _ in launches.calls]
    first = names.index("rms_norm_kernel")
    # The last layer takes the rows of the tokens whose states are needed, from the stream and from the queries.
    last = [*LAYER[:3], "index", "index", *LAYER[3:]]
    assert names[first : first + 9 * LAYERS + 2] == [*(LAYER * (LAYERS - 1)), *last]
    (copied,) = launches.uploads
    assert copied < first
    assert names[-2:] == ["linear_logprob_kernel", "join_kernel"]


def test_a_first_pass_copies_its_schedules_when_they_are_needed(model: TreeModel) -> None:
    assert len(followed(model).uploads) == 3  # the tables, the schedule of all tokens and that of the last layer's


def test_known_keys_and_new_ones_to_keep_are_copied_with_the_tables(model: TreeModel) -> None:
    """None of them in a layer: some known tokens follow each other in memory, others do not."""
    known = [torch.zeros(20, 2, 16, device=META, dtype=torch.bfloat16) for _ in range(LAYERS)]
    cache = PrefixCache(model.regimes)
    cache.insert(model.regimes.of(len(TREE)), -1, list(range(20)), KeyValues(known, known))
    together = cache.lookup(TREE)
    assert together is not None and together.num_cached == 20
    apart = replace(together, cached=[replace(part, rows=part.rows[::-1].copy()) for part in together.cached])
    for reuse in (together, apart):
        for _ in range(2):  # the shapes of attention are known from the second pass on
            launches = Launches()
            with launching(launches):
                cached = [replace(part) for part in reuse.cached]
                model.score(TREE, reuse=replace(reuse, cached=cached), key_values=KeyValues(rows=np.arange(5, 40)))
        (copied,) = launches.uploads
        assert copied < [name for name, _ in launches.calls].index("rms_norm_kernel")


def test_copies_and_waits_would_be_seen() -> None:
    launches = Launches()
    with launches:
        torch.arange(3).to(META)
        torch.empty(3, device=META).copy_(torch.zeros(3))
        torch.arange(3, device=META)
    assert len(launches.uploads) == 2
    assert [name for name, _ in launches.calls][-1] == "arange"
    with pytest.raises(RuntimeError, match="item"):
        int(torch.empty(3, device=META).min())


def test_weights_of_a_model_that_is_not_its_own_stay_where_they_are() -> None:
    given = tiny_llama(num_hidden_layers=LAYERS).bfloat16()
    places = [weight.data_ptr() for weight in given.parameters()]
    with pretended():
        lent = TreeModel(given, "tiny", "fast", "bf16")
        assert [weight.data_ptr() for weight in given.parameters()] == places
        names = [name for name, _ in followed(on_meta(lent)).calls]
    assert names.count("product") == 7 * LAYERS


def test_owned_weights_are_views_of_joined_ones() -> None:
    given = tiny_llama(num_hidden_layers=LAYERS).bfloat16()
    kept = {name: weight.detach().clone() for name, weight in given.named_parameters()}
    with pretended():
        owner = TreeModel(given, "tiny", "fast", "bf16", own=True)
        layer = given.model.layers[0]
        shared = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        assert len({each.weight.untyped_storage().data_ptr() for each in shared}) == 1
        assert all(torch.equal(weight, kept[name]) for name, weight in given.named_parameters())
        assert "3 layer" in owner.forward_path


def test_targets_outside_the_vocabulary_are_found_by_the_host(model: TreeModel) -> None:
    with pytest.raises(InputError, match="targets"):
        followed(model, PrefixTree.build([([1, 2], [3, 261])]))


def test_high_multiplies_half_types_only() -> None:
    given = tiny_llama(num_hidden_layers=LAYERS).bfloat16()
    weights = {tuple(weight.shape) for weight in given.parameters() if weight.dim() == 2}
    with pretended():
        reader = on_meta(TreeModel(given, "tiny", "high", "bf16x3", own=True))
        calls = followed(reader).calls
    names = [name for name, _ in calls]
    assert names.count("product") == 2 * 4 * LAYERS  # of two terms of the rows with each weight as it is stored
    assert not {"mm", "addmm", "bmm", "matmul", "linear"} & set(names)
    assert not [name for name, shape in calls if shape in weights and name != "embedding"]  # no weight is converted


def written(model: TreeModel, prompts: int) -> tuple[DeviceTexts, list[Launches]]:
    """Return rows that write after equal prompts, and what each of four steps launched."""
    tree = PrefixTree.build([(list(range(40 + i // 8)), []) for i in range(prompts)])
    key_values = model.new_key_values(tree, leaves_only=True)
    options = StepOptions(max_new_tokens=9, temperature=1.0, top_p=0.9, token_logprobs=True)
    rows = [DecodedText([0], 9, np.random.default_rng(i), None, tokens=[1]) for i in range(prompts)]
    steps = []
    with launching():
        model.hidden(tree, key_values=key_values, rows=tree.leaves)
        cache = RowKeys(tree, key_values, np.sort(tree.leaves), 8)
        device_rows = DeviceTexts(model, cache, rows, options, frozenset([3]))
    for _ in range(4):
        steps.append(Launches())
        with launching(steps[-1]):
            device_rows.step()
    return device_rows, steps


STEP = [*LAYER[:3], "index_copy_", "index_copy_", "decode_attention_kernel", "to", *LAYER[4:]]


def test_a_step_copies_nothing_to_the_device_and_waits_for_nothing(model: TreeModel) -> None:
    device_rows, steps = written(model, 3)
    for launches in steps[1:]:  # the first takes random numbers along
        assert launches.uploads == []
        names = [name for name, _ in launches.calls]
        first = names.index("rms_norm_kernel")
        assert names[first : first + len(STEP) * LAYERS] == STEP * LAYERS
    device_rows.select(np.array([0, 2]), device_rows._texts[::2])
    launches = Launches()
    with launching(launches):
        device_rows.step()
    assert launches.uploads == []


def test_prompts_that_many_texts_share_are_read_by_tiles(model: TreeModel) -> None:
    _, steps = written(model, 24)
    assert [len(launches.uploads) for launches in steps[1:]] == [0] * 3
    names = [name for name, _ in steps[-1].calls]
    assert names.count("tree_attention_kernel") == names.count("merge_pair_kernel") == LAYERS


@pytest.mark.parametrize("size", [64, 128])
def test_high_splits_the_operands_of_attention(size: int) -> None:
    assert default_config(90, size, torch.float32, 4096, plain=True, split=True).split
    assert not default_config(90, size, torch.float32, 4096, plain=True).split
