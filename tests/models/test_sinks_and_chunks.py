"""Models with attention sinks or chunks, against transformers one sequence at a time. Slopes in decoding."""

import numpy as np
import pytest
import torch
import transformers
from helpers.families import COMMON
from helpers.mutants import MUTANTS
from helpers.support import byte_tokenizer, one_by_one, random_sequences

from fastreader import Reader
from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError
from fastreader.models.attention_capture import CaptureRequest, capture_attention
from fastreader.models.check import check
from fastreader.models.config.windows import Chunk, layer_windows
from fastreader.models.passes.decode_keys import DecodeKeys
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.packed_keys import AttentionParams
from fastreader.moi.distill.gradients import GradientKeys

ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
SLIDING = {"head_dim": 16, "sliding_window": 7, **ALTERNATING}
LLAMA4 = {"num_local_experts": 2, "head_dim": 16, "intermediate_size_mlp": 64}
FAMILIES = {
    "GptOss": {"num_local_experts": 4, **SLIDING},
    "GraniteSWA": {"logits_scaling": 4.0, **SLIDING},
    "GraniteMoeSWA": {"num_local_experts": 4, **SLIDING},
    "MiMoV2Flash": {
        "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, **SLIDING,
    },
    "Flint": {"moe_intermediate_size": 48, **SLIDING},
    "Llama4": {**LLAMA4, "attention_chunk_size": 7, "floor_scale": 4, "no_rope_layers": [1, 0, 1]},
    "Llama4, chunks everywhere": {**LLAMA4, "attention_chunk_size": 5, "no_rope_layers": [1, 1, 1]},
}  # fmt: skip
FACTORS = (1, 4, 16)
MOVED = 1e-4  # nats
pytestmark = pytest.mark.filterwarnings("ignore")  # GPT-OSS' scaling of positions, for so short a context


def tiny(family, factor=1, **overrides):
    """A tiny model whose attention matters. Sinks are as large as its scores."""
    name = family.partition(",")[0]
    config_class = getattr(transformers, {"Llama4": "Llama4TextConfig"}.get(name, f"{name}Config"))
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config_class(**{**COMMON, **FAMILIES[family], **overrides}))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2).mul_(factor)
            if parameter_name.endswith("sinks"):
                parameter.normal_(0, 2.0)
    return model.eval()


def load(model, precision="exact", **options):
    return Reader.load((model, byte_tokenizer()), device="cpu", precision=precision, **options)


def check_scores(got, want):
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * max(1, len(theirs)), rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=3)
def test_scores_equal_one_sequence_at_a_time(family):
    model = tiny(family)
    sequences = random_sequences(np.random.default_rng(1), 261)
    scores = load(model).score(sequences)
    assert scores.stats.computed_tokens < scores.stats.total_tokens
    check_scores(scores.token_logprobs, one_by_one(model, sequences))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_new_changes_these_texts(family):
    """The cases above test nothing if a sink, a chunk or a temperature never matters."""
    model = tiny(family)
    sequences = random_sequences(np.random.default_rng(1), 261)
    before = np.concatenate(one_by_one(model, sequences))
    changes = {"Llama4": {"attention_chunk_size": 500}, "Llama4, chunks everywhere": {"attention_chunk_size": 500}}
    other = tiny(family, **changes.get(family, {}))
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.endswith("sinks"):
                parameter.fill_(-1e4)
    assert np.abs(np.concatenate(one_by_one(other, sequences)) - before).max() > 0.01
    if family == "Llama4":
        other = tiny(family, attn_temperature_tuning=False)
        assert np.abs(np.concatenate(one_by_one(other, sequences)) - before).max() > 0.01


def greedy(model, prompts, new_tokens):
    """Return transformers' greedy texts, without the end of text. Prompts of one length are a batch."""
    batches = [prompts] if len({len(prompt) for prompt in prompts}) == 1 else [[prompt] for prompt in prompts]
    out = []
    for batch in batches:
        ids = torch.tensor(batch)
        texts = model.generate(ids, max_new_tokens=new_tokens, do_sample=False, pad_token_id=1)[:, ids.shape[1] :]
        out += [[t for t in text if t != 1] for text in texts.tolist()]
    return out


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=2)
def test_greedy_texts_equal_transformers(family):
    """Prompts read row by row, and one of 14 rows, which is read in tiles."""
    model = tiny(family)
    reader = load(model)
    rng = np.random.default_rng(5)
    apart = [rng.integers(2, 261, n).tolist() for n in (3, 11, 30)]
    shared = rng.integers(2, 261, 60).tolist()
    together = [[*shared, t] for t in range(20, 34)]
    for prompts in (apart, together):
        got = [texts[0].token_ids for texts in reader.generate(prompts, max_new_tokens=12)]
        assert list(map(list, got)) == greedy(model, prompts, 12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=2)
def test_a_session_gives_the_same(family):
    model = tiny(family)
    reader = load(model)
    rng = np.random.default_rng(6)
    prefix = rng.integers(2, 261, 30).tolist()
    sequences = [(prefix + rng.integers(2, 261, n).tolist(), rng.integers(2, 261, 4).tolist()) for n in (0, 3, 25)]
    with reader.session(prefix) as session:
        scores = session.score(sequences)
        assert scores.stats.cached_tokens > 0
        check_scores(scores.token_logprobs, one_by_one(model, sequences))
        texts = session.generate([c for c, _ in sequences], max_new_tokens=15)
    assert [list(t[0].token_ids) for t in texts] == greedy(model, [c for c, _ in sequences], 15)


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_deterministic_readers_of_dense_models(precision):
    reader = load(tiny("GraniteSWA"), precision, deterministic=True)
    sequences = random_sequences(np.random.default_rng(1), 261)
    together = reader.score(sequences).token_logprobs
    for (context, continuation), want in zip(sequences, together, strict=True):
        np.testing.assert_array_equal(reader.score([(context, continuation)]).token_logprobs[0], want)
    shared = np.random.default_rng(7).integers(2, 261, 50).tolist()
    prompts = [[*shared, t] for t in range(20, 34)]
    many = reader.generate(prompts, max_new_tokens=12, token_logprobs=True)
    alone = [reader.generate([prompt], max_new_tokens=12, token_logprobs=True)[0] for prompt in prompts]
    for mine, theirs in zip(many, alone, strict=True):
        assert mine[0].token_ids == theirs[0].token_ids
        np.testing.assert_array_equal(mine[0].token_logprobs, theirs[0].token_logprobs)


WAYS = [(dtype, precision) for dtype in (torch.bfloat16, torch.float32) for precision in ("fast", "high", "exact")]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=2)
def test_no_right_model_is_refused(family):
    """Each type, each precision and each factor. The next family has the other pairs of type and precision."""
    index = list(FAMILIES).index(family)
    for at, (dtype, precision) in enumerate(WAYS[index % 2 :: 2], index):
        assert load(tiny(family, FACTORS[at % 3]).to(dtype), precision).describe()["check"] == "full"


@pytest.mark.fuzz
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_right_model_is_refused_with_any_factor(family, factor):
    for dtype, precision in WAYS:
        assert load(tiny(family, factor).to(dtype), precision).describe()["check"] == "full"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=2)
def test_no_wrong_pass_is_accepted(family):
    at = list(FAMILIES).index(family)
    reader = load(tiny(family, FACTORS[at % 3]).bfloat16(), ("fast", "high", "exact")[(at + 1) % 3])
    sequences = random_sequences(np.random.default_rng(1), 261)
    right = np.concatenate(reader.score(sequences).token_logprobs)
    chunked = {"window_wider", "window_narrower", "no_window", "chunk_as_window"}
    sunk = {"no_sinks", "sinks_of_the_next_head", "sinks_of_the_other_sign"}
    wanted = chunked if family.startswith("Llama4") else sunk | {"slopes"}
    wanted |= {"temperature_by_place", "slopes"} if family == "Llama4" else set()
    missed, refused = {}, set()
    for name, mutant in MUTANTS.items():
        with mutant(reader.local_model.model):
            moved = np.abs(np.concatenate(reader.score(sequences).token_logprobs) - right).max()
            if moved == 0 and name not in wanted:  # this family has no such part
                continue
            try:
                check(reader.local_model.model)
            except UnsupportedModelError:
                refused.add(name)
            else:
                if moved > MOVED:
                    missed[name] = moved
    assert missed == {}
    assert wanted <= refused
    check(reader.local_model.model)  # the mutants are gone


@pytest.mark.parametrize("name", ["window_wider", "window_narrower", "no_window", "temperature_by_place"])
def test_chunks_and_steps_of_the_temperature_longer_than_the_texts_are_checked(name):
    reader = load(tiny("Llama4", attention_chunk_size=128, floor_scale=8192))
    with MUTANTS[name](reader.local_model.model), pytest.raises(UnsupportedModelError):
        check(reader.local_model.model)
    assert reader.local_model.model.windows == [Chunk(128), None, Chunk(128)]
    assert reader.model.config.attention_chunk_size == 128
    assert {m.floor_scale for m in reader.model.modules() if hasattr(m, "floor_scale")} == {8192}


def test_a_chunk_without_its_length_is_refused():
    config = tiny("Llama4").config
    config.attention_chunk_size = None
    with pytest.raises(UnsupportedModelError, match=r"layer 0 is 'chunked_attention'.*attention_chunk_size"):
        layer_windows(config, "it")


def test_captured_attention_is_that_of_eager():
    model = tiny("GptOss")
    rng = np.random.default_rng(2)
    prompt, answer = rng.integers(2, 261, 20).tolist(), rng.integers(2, 261, 4).tolist()
    spans = [(0, 5), (5, 13), (13, 20)]
    tree = PrefixTree.build([(prompt + answer, [])])
    (captured,) = capture_attention(load(model).local_model.model, tree, [CaptureRequest(prompt, answer, spans)])
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(torch.tensor([prompt + answer]), output_attentions=True).attentions
    for layer, of_layer in enumerate(weights):
        rows = of_layer[0, :, len(prompt) :].mean((0, 1))
        want = [float(rows[a:b].mean()) for a, b in spans]
        np.testing.assert_allclose(captured.attention[layer], want, rtol=1e-4, atol=1e-7)


def test_gradients_are_refused_by_name():
    tree = PrefixTree.build([([1, 2, 3], [])])
    tensors = [torch.ones(3, 2, 8)] * 3
    for changes in ({"sinks": torch.ones(2)}, {"slopes": torch.ones(2)}, {"window": Chunk(2)}):
        params = AttentionParams(**{"scale": 1.0, "window": None, "softcap": None, "input_precision": None, **changes})
        with pytest.raises(UnsupportedModelError, match="sinks, slopes or chunks"):
            GradientKeys(tree, torch.device("cpu")).attend(0, *tensors, params)


@pytest.mark.parametrize("window", [None, 6, Chunk(5)], ids=str)
@pytest.mark.parametrize(("impl", "row_by_row"), [("auto", False), ("auto", True), ("torch", False)])
@pytest.mark.parametrize("rows", [2, 14])
def test_decoding_with_sinks_and_slopes(rows, impl, row_by_row, window):
    """Step by step against a dense softmax over each row's own path. 14 rows of a prompt are read in tiles."""
    rng = np.random.default_rng(rows)
    generator = torch.Generator().manual_seed(rows)
    prompt = rng.integers(0, 50, 9).tolist()
    tree = PrefixTree.build([([*prompt, 50], []), ([*prompt[:4], 60, 61], [])])
    leaves = np.sort(rng.choice(tree.leaves, rows))
    draw = lambda n, heads: torch.randn(n, heads, 8, generator=generator)  # noqa: E731
    kept = KeyValues([draw(len(tree), 2)], [draw(len(tree), 2)])
    slopes = None if isinstance(window, Chunk) else torch.tensor([0.4, 0.1, 0.02, -0.3])
    params = AttentionParams(0.5, window, None, None, torch.tensor([1.0, -2.0, 4.0, float("-inf")]), slopes)
    cache = DecodeKeys(tree, kept, leaves, 8, impl=impl, row_by_row=row_by_row)
    paths = [tree.path(int(leaf)) for leaf in leaves]
    keys, values = ([list(t[0][path].double()) for path in paths] for t in (kept.keys, kept.values))
    for step in range(7):
        if step == 4:  # a row leaves
            live = np.arange(1, len(keys))
            cache.select(live)
            keys, values = keys[1:], values[1:]
        cache.begin_step()
        query, key, value = draw(len(keys), 4), draw(len(keys), 2), draw(len(keys), 2)
        got = cache.attend(0, query, key, value, params)
        for b in range(len(keys)):
            keys[b].append(key[b].double())
            values[b].append(value[b].double())
            own = len(keys[b]) - 1
            assert cache.step_positions[b] == own
            place = torch.arange(own + 1)
            seen = torch.ones(own + 1, dtype=torch.bool)
            if isinstance(window, Chunk):
                seen = place // window.tokens == own // window.tokens
            elif window is not None:
                seen = own - place < window
            for head in range(4):
                scores = torch.stack(keys[b])[:, head // 2] @ query[b, head].double() * 0.5
                if slopes is not None:
                    scores = scores + slopes[head].double() * (place - own)
                weights = torch.cat([scores.masked_fill(~seen, -torch.inf), params.sinks[head, None].double()])
                want = weights.softmax(0)[:-1] @ torch.stack(values[b])[:, head // 2]
                torch.testing.assert_close(got[b, head].double(), want, rtol=1e-5, atol=1e-5)


def test_a_head_of_512_runs_on_every_path():
    """Gemma 4's global layers have such heads."""
    config = transformers.Qwen3Config(**{**COMMON, "head_dim": 512, "num_hidden_layers": 1, "num_key_value_heads": 1})
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).eval()
    sequences = random_sequences(np.random.default_rng(2), 261)
    reader = load(model)
    check_scores(reader.score(sequences).token_logprobs, one_by_one(model, sequences))
    prompts = [c for c, _ in sequences[:4]]
    got = [list(t[0].token_ids) for t in reader.generate(prompts, max_new_tokens=10)]
    assert got == greedy(model, prompts, 10)
