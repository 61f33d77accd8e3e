"""Hybrid readers: scores, texts and sessions against transformers, one text at a time, and wrong passes."""

import copy

import numpy as np
import pytest
import torch
from helpers.mutants import MUTANTS
from helpers.registry import PATTERNS, VOCABULARY, patterns, tiny_model
from helpers.support import LONG_FORMS, byte_tokenizer, in_float64, one_by_one, random_sequences

from fastreader import Reader
from fastreader.core.tree import PrefixTree
from fastreader.errors import OutOfBudgetError, UnsupportedModelError
from fastreader.models.check import check
from fastreader.models.rewriting.fused import FusedEnd, FusedLayer, MixedLayer
from fastreader.ops import extension, triton_support

# One family of each kind: gated delta rule by head and by channel, Mamba-2 alone and with attention, Mamba, lightning
# attention, RG-LRU, short convolution.
KINDS = ["qwen3_next", "kimi_linear", "mamba2", "jamba", "recurrent_gemma", "lfm2", "falcon_h1", "minimax"]
ROUNDED = KINDS[:-1]  # minimax raises in bfloat16
pytestmark = pytest.mark.filterwarnings("ignore")


def loaded(model, **options):
    return Reader.load((model, byte_tokenizer()), device="cpu", **{"precision": "exact", **options})


def random_tree(rng, longest=60):
    """(context, continuation) pairs of one random tree, with branches everywhere and texts longer than a chunk."""
    sequences = random_sequences(rng, VOCABULARY, int(rng.integers(2, 8)), longest)
    return sequences + random_sequences(rng, VOCABULARY, 2, int(rng.integers(4, 200)))


def apart(got, want):
    return max(float(np.abs(g - w).max()) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.long(keep=3)
def test_random_trees_equal_one_text_at_a_time(family):
    """A draw of `test_many_random_trees_equal_one_text_at_a_time`."""
    compare_random_trees(family, 2)


@pytest.mark.fuzz
@pytest.mark.parametrize("family", KINDS)
def test_many_random_trees_equal_one_text_at_a_time(family):
    compare_random_trees(family, 500)


def compare_random_trees(family, count):
    """In float64, but for the softmax of transformers' attention, so that rounding hides nothing.

    That of float32 reaches 3e-5 nats in such models, in transformers' own modules too.
    """
    rng = np.random.default_rng(0)
    with in_float64(tiny_model(family, patterns(family)[0])) as model:
        reader = loaded(model)
        for _ in range(count):
            sequences = random_tree(rng)
            got = reader.score(sequences, max_batch_tokens=int(rng.integers(250, 2000)))
            assert apart(got.token_logprobs, one_by_one(model, sequences)) < 1e-6


@pytest.mark.parametrize(
    ("family", "factor"),
    [  # alternating factors; `make fuzz` runs both
        pytest.param(family, factor, marks=[pytest.mark.fuzz] * ((row + column) % 2))
        for row, family in enumerate(KINDS)
        for column, factor in enumerate((1, 4))
    ],
)
@pytest.mark.long(keep=2)
def test_no_wrong_pass_is_accepted(family, factor):
    model = tiny_model(family, patterns(family)[0])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "A_log" not in name:
                parameter.mul_(factor)
    reader = loaded(model)
    sequences = random_sequences(np.random.default_rng(1), VOCABULARY)
    right = np.concatenate(reader.score(sequences).token_logprobs)
    moved = {}
    for name in ("no_parent_state", "state_of_another_branch", *CONVOLUTIONS):
        with MUTANTS[name](reader.local_model.model):
            moved[name] = np.abs(np.concatenate(reader.score(sequences).token_logprobs) - right).max()
            if moved[name] > 1e-4:
                with pytest.raises(UnsupportedModelError, match="differ"):
                    check(reader.local_model.model)
    if family != "lfm2":
        assert moved["no_parent_state"] > 1e-3
    if family != "minimax":
        assert min(moved[name] for name in CONVOLUTIONS) > 1e-3


CONVOLUTIONS = ("convolution_of_packed_neighbours", "convolution_without_its_past")


@pytest.mark.parametrize(
    ("family", "precision", "bar"),
    [*((kind, "exact", 1e-4) for kind in KINDS), ("qwen3_next", "fast", 0.02), ("qwen3_5_text", "fast", 0.02)],
)
@pytest.mark.long(keep=4)
def test_neighbours_order_and_budget_change_nothing(family, precision, bar):
    reader = loaded(tiny_model(family, patterns(family)[0]), precision=precision)
    sequences = random_tree(np.random.default_rng(2))
    together = reader.score(sequences)
    alone = [reader.score([sequence]).token_logprobs[0] for sequence in sequences]
    assert apart(together.token_logprobs, alone) < bar
    order = np.random.default_rng(0).permutation(len(sequences))
    shuffled = reader.score([sequences[i] for i in order])
    assert apart(shuffled.token_logprobs, [together.token_logprobs[i] for i in order]) < bar
    split = reader.score(sequences, max_batch_tokens=max(len(c) + len(k) for c, k in sequences))
    assert split.passes > 1
    assert apart(split.token_logprobs, together.token_logprobs) < bar


@pytest.mark.parametrize("family", [*KINDS, "qwen3_5_text"])
@pytest.mark.long(keep=3)
def test_texts_are_those_of_greedy_decoding(family):
    """transformers writes one text at a time, from its own cache."""
    model = tiny_model(family, patterns(family)[0])
    prompts = [context for context, _ in random_sequences(np.random.default_rng(3), VOCABULARY, 4)]
    texts = loaded(model).generate(prompts, max_new_tokens=8)
    for prompt, (text,) in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        written = own[0, len(prompt) :].tolist()
        assert list(text.token_ids) == [token for token in written if token != model.config.eos_token_id]


@pytest.mark.parametrize("family", [*KINDS, "qwen3_5_text"])
@pytest.mark.long(keep=4)
def test_sessions_continue_from_states(family):
    model = tiny_model(family, patterns(family)[0])
    reader = loaded(model)
    rng = np.random.default_rng(4)
    header = rng.integers(0, VOCABULARY, 70).tolist()
    prefixes = [header + rng.integers(0, VOCABULARY, n).tolist() for n in (5, 9)]
    sequences = [(p + rng.integers(0, VOCABULARY, n).tolist(), [5, 6, 7]) for p in prefixes for n in (0, 1, 8)]
    sequences += [
        ([*header, 3, 4, 5], [6]),
        ([*header[:40], 1, 2], [3]),
        (rng.integers(0, VOCABULARY, 9).tolist(), [1]),
    ]
    want = reader.score(sequences)
    with reader.session(*prefixes) as session:
        assert apart(session.score(sequences).token_logprobs, want.token_logprobs) < 1e-4
        # all but the last token of each prefix, whose state predicts the first scored one
        assert session.score(sequences[:7]).stats.cached_tokens == len(header) + 5 + 9 - 2
        # without a state in the middle of the header, it is read again
        assert session.score(sequences[7:8]).stats.computed_tokens == 42
        texts = session.generate([s[0] for s in sequences], max_new_tokens=5)
    again = reader.generate([s[0] for s in sequences], max_new_tokens=5)
    assert [t[0].token_ids for t in texts] == [t[0].token_ids for t in again]
    with reader.session(cache_scored=True) as session:
        for _ in range(2):  # the second time most tokens are cached
            assert apart(session.score(sequences).token_logprobs, want.token_logprobs) < 1e-4
        assert session.score(sequences).stats.computed_tokens < 0.5 * want.stats.computed_tokens


def test_states_count_as_memory_of_a_session():
    reader = loaded(tiny_model("mamba2", patterns("mamba2")[0]))
    model = reader.local_model.model
    # a state of 8 heads, 16 by 16, and three inputs of 128 + 2 * 2 * 16 channels, in each of 3 layers, float32
    assert model.state_bytes == 3 * 4 * (8 * 16 * 16 + 3 * 192)
    prefix = list(range(1, 40))
    with reader.session(prefix) as session:
        assert session.nbytes == 2 * model.state_bytes  # at its end and before it
    with pytest.raises(OutOfBudgetError, match="bytes"):
        reader.session(prefix, max_bytes=model.state_bytes)


@pytest.mark.parametrize(("family", "heads"), [("mamba2", 8), ("qwen3_next", 4), ("jamba", 0), ("lfm2", 0)])
def test_pairs_of_tokens_count_as_memory_of_a_pass(family, heads, monkeypatch):
    """Where the Triton kernels of matrix states run: P and M, float32 of 16 tokens each, for a token and head."""
    model = loaded(tiny_model(family, patterns(family)[0])).local_model.model
    elsewhere = model.__dict__.pop("bytes_per_token", None) or model.bytes_per_token
    model.__dict__.pop("bytes_per_token", None)
    monkeypatch.setattr(triton_support, "on_gpu", lambda device: True)
    assert model.bytes_per_token - elsewhere == 128 * heads


@pytest.mark.parametrize("pattern", range(len(PATTERNS["qwen3_5_text"])))
def test_layers_run_fused_around_their_mixers(pattern):
    """With the same scores, also of the last layer's selected rows."""
    model = tiny_model("qwen3_5_text", PATTERNS["qwen3_5_text"][pattern])
    reader = loaded(model)
    base = reader.local_model.model.model.base_model
    kinds = [type(layer) for layer in base.layers]
    mixed = ["linear_attn" in dict(layer.named_children()) for layer in base.layers]
    fused = FusedLayer if extension.why_missing() is None else MixedLayer
    assert kinds == [MixedLayer if each else fused for each in mixed]
    sequences = random_tree(np.random.default_rng(6))
    assert apart(reader.score(sequences).token_logprobs, one_by_one(model, sequences)) < 1e-4
    seen = []
    base.layers[-1].register_forward_hook(lambda _module, given, out: seen.append((given[0].shape[1], out.shape[1])))
    stats = reader.score(sequences).stats
    assert all(narrow < wide for wide, narrow in seen) and sum(wide for wide, _ in seen) == stats.computed_tokens


@pytest.mark.parametrize(("family", "gated_first"), [("qwen3_5_text", False), ("bamba", True)])
def test_gated_norms_run_fused_in_their_order(family, gated_first):
    reader = loaded(tiny_model(family, patterns(family)[0]))
    norms = [m for m in reader.local_model.model.model.modules() if type(m).__name__.endswith("GatedNorm")]
    assert norms and {norm.gated_first for norm in norms} == {gated_first}


def test_a_layer_around_a_mixer_that_does_more_stays_as_it_was(monkeypatch):
    from transformers.models.qwen3_5 import modeling_qwen3_5

    forward = modeling_qwen3_5.Qwen3_5DecoderLayer.forward
    monkeypatch.setattr(
        modeling_qwen3_5.Qwen3_5DecoderLayer,
        "forward",
        lambda self, *args, **named: 1.01 * forward(self, *args, **named),
    )
    model = tiny_model("qwen3_5_text", PATTERNS["qwen3_5_text"][0])
    reader = loaded(model)
    assert not any(isinstance(layer, FusedEnd) for layer in reader.local_model.model.model.base_model.layers)
    sequences = random_sequences(np.random.default_rng(1), VOCABULARY)
    assert apart(reader.score(sequences).token_logprobs, one_by_one(model, sequences)) < 1e-4


@pytest.mark.parametrize("family", [*ROUNDED, "qwen3_5_text"] if LONG_FORMS else ROUNDED[:5])
@pytest.mark.long(keep=1)
def test_precisions(family):
    """On bfloat16 weights the pass is as near float32 as the model's own modules, or nearer."""
    stored = tiny_model(family, patterns(family)[0]).bfloat16()
    wide = copy.deepcopy(stored).float()
    sequences = random_sequences(np.random.default_rng(1), VOCABULARY)
    truth = np.concatenate(one_by_one(wide, sequences))
    own = np.abs(np.concatenate(one_by_one(stored, sequences)) - truth)
    for precision in ("exact", "high", "fast"):
        reader = loaded(stored, precision=precision)
        assert reader.local_model.model.why_not_upcast is None
        error = np.abs(np.concatenate(reader.score(sequences).token_logprobs) - truth)
        if precision == "fast":
            assert error.mean() < own.mean()
        else:
            assert error.max() < (2e-4 if precision == "exact" else 1e-2)


def test_decays_that_transformers_rounds_are_refused():
    """MiniMax's tables of decays are buffers, which in bfloat16 are no powers of one decay any more."""
    with pytest.raises(UnsupportedModelError, match="the update of layer 0 differs"):
        loaded(tiny_model("minimax", patterns("minimax")[0]).bfloat16())


def test_loading_does_not_advise_other_kernels(caplog):
    loaded(tiny_model("mamba2", patterns("mamba2")[0]))
    assert "falling back" not in caplog.text


def test_the_given_model_is_left_as_it_was():
    model = tiny_model("qwen3_next", PATTERNS["qwen3_next"][0])
    sequence = ([5, 6, 7, 8, 9], [1, 2])
    before = one_by_one(model, [sequence])[0]
    readers = [loaded(model), loaded(model)]
    scores = [reader.score([sequence]).token_logprobs[0] for reader in readers]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(one_by_one(model, [sequence])[0], before)
    for module in model.modules():
        assert not any(key.startswith("fastreader") for key in module.__dict__)
        assert "forward" not in module.__dict__
    for reader in readers:  # no pass hangs on a copy afterwards
        assert not any("fastreader_pass" in module.__dict__ for module in reader.local_model.model.model.modules())


def test_code_that_is_not_transformers_own_is_refused():
    """A mixer of a folder's own code may do anything under the same names."""
    model = tiny_model("mamba2", patterns("mamba2")[0])
    kind = type(model.backbone.layers[0].mixer)
    foreign = type(kind.__name__, (kind,), {"__module__": "transformers_modules.mine"})
    for layer in model.backbone.layers:
        layer.mixer.__class__ = foreign
    with pytest.raises(UnsupportedModelError, match="takes no position_ids"):
        loaded(model)


def test_what_a_mixer_passes_beside_its_inputs_is_refused(monkeypatch):
    from transformers.models.mamba2 import modeling_mamba2

    forward = modeling_mamba2.Mamba2Block.forward

    def marked(self, hidden_states, **named):
        return forward(self, hidden_states, **named, seq_idx=torch.zeros(1, hidden_states.shape[1]))

    model = tiny_model("mamba2", patterns("mamba2")[0])
    monkeypatch.setattr(modeling_mamba2.Mamba2Block, "forward", marked)
    with pytest.raises(UnsupportedModelError, match="passes seq_idx to causal_conv1d_fn"):
        loaded(model)


def test_a_reader_of_states_promises_no_bits():
    """Where a vector of the processor ends in a tensor depends on all tokens. PyTorch's silu rounds otherwise there."""
    with pytest.raises(UnsupportedModelError, match="activations of recurrent layers are PyTorch's"):
        loaded(tiny_model("lfm2", patterns("lfm2")[0]), deterministic=True)


def test_states_are_kept_where_texts_may_continue():
    model = loaded(tiny_model("mamba2", patterns("mamba2")[0])).local_model.model
    tree = PrefixTree.build([([1, 2, 3, 4, 5], []), ([1, 2, 3, 6, 7], [])])
    assert model.new_key_values(tree).states.tokens.tolist() == [2, 3, 4, 5, 6]
    assert model.new_key_values(tree, leaves_only=True).states.tokens.tolist() == [4, 6]
