"""The check at load: right models pass, wrong passes do not, and a verdict is kept."""

import json

import numpy as np
import pytest
import torch
from helpers import registry
from helpers.families import COMMON, FAMILIES, deep, tiny
from helpers.mutants import LATE, MUTANTS, apart, longer, shown
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama
from safetensors.torch import load_file, save_file

from fastreader import Reader
from fastreader.errors import InputError, ModelFileError, UnsupportedModelError
from fastreader.models import check as checking
from fastreader.models.check import check, known_verdict, own, verdict_path
from fastreader.models.rewriting.fused import FusedStep, parts
from fastreader.models.rewriting.layers import decoder_layers
from fastreader.ops import extension
from fastreader.ops.linear import WidenedTensor, blocks, linear
from fastreader.reader import reader as reading

FACTORS = (1, 4, 16, 64)
PRECISIONS = ("fast", "high", "exact")
ARITHMETICS = [(torch.bfloat16 if at % 2 == 0 else torch.float32, PRECISIONS[at % 3]) for at in range(6)]
MOVED = 1e-4  # nats


def scaled(family, factor, dtype=torch.bfloat16):
    """A tiny model whose matrices are multiplied: large weights saturate softmax and activations."""
    model = tiny(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
    return model.to(dtype)


# Float32 itself is further off here: the model's own modules are 8.5e-4 from float64.
NOISY = {("Mixtral", 64): 8.5e-4}


@pytest.mark.parametrize(
    ("family", "factor"),
    [
        (family, factor)
        for row, family in enumerate(FAMILIES)
        for column, factor in enumerate(FACTORS)
        if (row // 2 + column) % 2 == 0
    ],
)
@pytest.mark.long(keep=10)
def test_no_right_model_is_refused(family, factor):
    """Two factors a family, with one precision and type each: `make fuzz` runs all factors in all of them."""
    passes_the_check(family, factor, *ARITHMETICS[(list(FAMILIES).index(family) + FACTORS.index(factor)) % 6])


def passes_the_check(family, factor, dtype, precision):
    reader = Reader.load((scaled(family, factor, dtype), byte_tokenizer()), device="cpu", precision=precision)
    assert reader.describe()["check"] == "full"
    assert reader.checked is not None and reader.checked.layer < NOISY.get((family, factor), 2e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=8)
def test_large_weights_are_widened_as_they_are_multiplied(family, monkeypatch):
    """The tiny weights of these tests are copied to float32 otherwise."""
    widened = []

    def noted(values, dtype):
        widened.append(tuple(values.shape))
        return WidenedTensor(values, dtype)

    monkeypatch.setattr(own, "AT_ONCE", 0)
    monkeypatch.setattr(own, "WidenedTensor", noted)
    monkeypatch.setattr(blocks, "AT_ONCE", 100)  # several parts of each weight
    passes_the_check(family, 4, torch.bfloat16, "exact")
    if family != "GPT2":  # its layers are not linear ones, so that "exact" holds the whole model in float32
        assert len(set(widened)) > 1


@pytest.mark.fuzz
@pytest.mark.parametrize(("dtype", "precision"), ARITHMETICS)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_right_model_is_refused_in_any_arithmetic(family, factor, dtype, precision):
    passes_the_check(family, factor, dtype, precision)


def accepted(family, factor, precision):
    """Return the wrong passes that the check accepts though they move a result, and how many it refuses."""
    reader = Reader.load((scaled(family, factor), byte_tokenizer()), device="cpu", precision=precision)
    sequences = random_sequences(np.random.default_rng(1), 261)
    right = np.concatenate(reader.score(sequences).token_logprobs)
    missed, refused = {}, 0
    for name, mutant in MUTANTS.items():
        with mutant(reader.local_model.model):
            moved = np.abs(np.concatenate(reader.score(sequences).token_logprobs) - right).max()
            if name == "generation_scale":  # no score shows it
                moved = 1.0
            if moved == 0:  # this family has no such part
                continue
            try:
                check(reader.local_model.model)
            except UnsupportedModelError:
                refused += 1
            else:
                if moved > MOVED:
                    missed[name] = moved
    check(reader.local_model.model)  # the mutants are gone
    return missed, refused


@pytest.mark.parametrize(
    ("family", "quick"),
    [("Llama", False), ("GPT2", False), ("Gemma2, window, caps", False), ("Mixtral", False), ("Gemma3, window", True)],
)
@pytest.mark.long(keep=1)
def test_passes_that_are_wrong_at_length_or_in_generation_are_refused(family, quick):
    """A draw of the table of benchmarks/check_mutants.py."""
    precision = PRECISIONS[list(FAMILIES).index(family) % 3]
    model = deep(family).bfloat16() if quick else scaled(family, 1)
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision=precision)
    sequences, prompts = longer(261, 300)
    right, refused = shown(reader, sequences, prompts), 0
    for name, mutant in LATE.items():
        with mutant(reader.local_model.model):
            try:
                check(reader.local_model.model, quick)
            except UnsupportedModelError:
                refused += 1
            else:
                assert apart(right, shown(reader, sequences, prompts)) < 1e-3, name
    assert refused >= 8
    check(reader.local_model.model, quick)  # the mutants are gone


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_in_one_call_that_turns_keys_otherwise_shows_where_attention_is_certain(precision):
    reader = Reader.load((scaled("Qwen2", 16), byte_tokenizer()), device="cpu", precision=precision)
    mutant = LATE["steps_in_one_call_turned_otherwise"](reader.local_model.model)
    with mutant, pytest.raises(UnsupportedModelError, match="one call"):
        check(reader.local_model.model)


@pytest.mark.parametrize(
    ("family", "factor", "precision"),
    [("Ministral3, scaled queries", 1, "exact"), ("Granite", 1, "fast"), ("Qwen2", 4, "fast"), ("Qwen2", 4, "exact")],
)
@pytest.mark.long(keep=1)
def test_a_key_that_steps_lose_shows_whatever_its_weight(family, factor, precision):
    reader = Reader.load((scaled(family, factor), byte_tokenizer()), device="cpu", precision=precision)
    for name in (
        "steps_without_their_newest_key",
        "steps_without_the_first_key",
        "steps_in_one_call_without_the_first_key",
        "steps_after_the_other_text",
    ):
        with LATE[name](reader.local_model.model), pytest.raises(UnsupportedModelError, match="generation"):
            check(reader.local_model.model)
    check(reader.local_model.model)


@pytest.mark.skipif(bool(extension.why_missing()), reason=f"no kernels: {extension.why_missing()}")
@pytest.mark.parametrize("place", [None, 0, 13, 31])
def test_a_product_that_erases_the_others_of_a_block_is_refused(monkeypatch, place):
    """Massive activations come after some tokens of trained models, not in short texts of a check."""

    def erasing(rows, weight, bias=None, *, precision):
        if precision == "int16" and len(rows) and rows.shape[1] >= 32:
            blocks = rows[:, : rows.shape[1] // 32 * 32].unflatten(1, (-1, 32))
            massive = blocks.abs().amax(-1, keepdim=True)
            lost = blocks.abs() < massive / 8191
            if place is not None:  # a kernel that is wrong at one place of its registers
                lost &= blocks[..., place : place + 1].abs() == massive
            rows = torch.cat([blocks.masked_fill(lost, 0.0).flatten(1), rows[:, blocks[0].numel() :]], dim=1)
        return linear(rows, weight, bias, precision=precision)

    model = scaled("Llama", 1)
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="fast", products="int16")
    right = np.concatenate(reader.score(random_sequences(np.random.default_rng(1), 261)).token_logprobs)
    monkeypatch.setattr(parts, "linear", erasing)
    other = np.concatenate(reader.score(random_sequences(np.random.default_rng(1), 261)).token_logprobs)
    assert np.abs(other - right).max() < 1e-3, "texts of this model show it, so that the test shows nothing"
    with pytest.raises(UnsupportedModelError, match="massive"):
        check(reader.local_model.model)


@pytest.mark.parametrize(
    ("family", "ran"), [("Llama", {0, 6}), ("Mixtral", {0, 6}), ("Gemma2, window, caps", {0, 1, 4, 6})]
)
def test_a_quick_check_runs_the_first_and_the_last_layer_of_each_kind(family, ran):
    reader, seen = Reader.load((deep(family), byte_tokenizer()), device="cpu", check="off"), set()
    model = reader.local_model.model
    for at, layer in enumerate(decoder_layers(model.original, model.name)):
        layer.self_attn.register_forward_hook(lambda *_, at=at: seen.add(at))
    assert 0 <= check(model, quick=True).layer < 2e-4
    assert seen == ran
    check(model)
    assert seen == set(range(7))


@pytest.mark.skipif(bool(extension.why_missing()), reason=f"no kernels: {extension.why_missing()}")
@pytest.mark.parametrize(
    ("family", "ran"), [("Llama", [0, 6]), ("Gemma3, window", None), ("Qwen3", [0, 6]), ("SmolLM3", [0, 1, 4, 6])]
)
def test_a_quick_check_steps_through_two_layers_of_each_kind(monkeypatch, family, ran):
    """Of the step's own tensors, so that a wrong one of these shows."""
    reader = Reader.load((deep(family), byte_tokenizer()), device="cpu", check="off")
    model = reader.local_model.model
    if ran is None:
        assert isinstance(model.fused_step, str)
        return
    steps, call = [], FusedStep.__call__

    def noted(self, *others):
        steps.append(self)
        return call(self, *others)

    monkeypatch.setattr(FusedStep, "__call__", noted)
    whole = model.fused_step
    check(model, quick=True)
    assert [list(step.numbers) for step in steps] == [ran, ran]
    assert model.fused_step is whole
    each = len(whole.layers.before[2]) // 7
    own = [tensor for layer in ran for tensor in whole.layers.before[2][each * layer :][:each]]
    assert all(a is b for a, b in zip(steps[0].layers.before[2], own, strict=True))
    check(model)
    assert [step.numbers for step in steps[2:]] == [None, None]
    norms = whole.layers.before[0]
    for layer, quick in ((ran[-1], True), (ran[0], True), (3, False)):
        own = norms[2 * layer]
        norms[2 * layer] = 1.5 * own
        with pytest.raises(UnsupportedModelError, match="a step of generation in one call"):
            check(model, quick)
        norms[2 * layer] = own


def test_a_weight_that_is_not_finite_is_named_by_a_quick_check_in_any_layer():
    model = tiny("Llama", num_hidden_layers=5)
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 5] = float("nan")
    reader = Reader.load((model, byte_tokenizer()), device="cpu", check="off")
    with pytest.raises(ModelFileError, match=r"model.layers.2.mlp.up_proj.weight has values that are not finite"):
        check(reader.local_model.model, quick=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=5)
def test_no_wrong_pass_is_accepted(family):
    """A draw of the full table, which is `test_no_wrong_pass_is_accepted_anywhere`."""
    at = list(FAMILIES).index(family)
    missed, refused = accepted(family, FACTORS[at % 4], PRECISIONS[at % 3])
    assert missed == {}
    assert refused >= 6


SOME = [
    ("bloom", "slopes_of_the_other_sign"),
    ("mpt", "slopes_of_the_other_sign"),
    ("gemma3n_text", "keys_of_another_layer"),
    ("gemma4_text", "keys_of_another_layer"),
    ("mixtral", "experts_of_the_next_token"),
    ("gpt_oss", "experts_of_the_next_token"),
]


@pytest.mark.parametrize(
    ("family", "mutant", "precision"),
    [  # each mutant in each precision, by one of its two families; `make fuzz` runs all
        pytest.param(*pair, precision, marks=[pytest.mark.fuzz] * ((row + column) % 2))
        for row, pair in enumerate(SOME)
        for column, precision in enumerate(PRECISIONS)
    ],
)
@pytest.mark.long(keep=3)
def test_what_only_some_families_have_is_checked(family, mutant, precision):
    model = registry.tiny_model(family, registry.SHARING if "gemma" in family else registry.patterns(family)[0])
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision=precision)
    with MUTANTS[mutant](reader.local_model.model), pytest.raises(UnsupportedModelError):
        check(reader.local_model.model)
    check(reader.local_model.model)


@pytest.mark.fuzz
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_wrong_pass_is_accepted_anywhere(family, factor, precision):
    missed, _ = accepted(family, factor, precision)
    assert missed == {}


@pytest.mark.parametrize("mutant", ["no_window", "window_wider", "window_narrower"])
def test_a_window_longer_than_the_texts_is_checked(mutant):
    model = tiny("Gemma3, window", sliding_window=128)
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
    with MUTANTS[mutant](reader.local_model.model), pytest.raises(UnsupportedModelError, match="attention of layer 0"):
        check(reader.local_model.model)
    assert reader.local_model.model.windows == [128, None, 128]
    assert reader.model.config.sliding_window == 128


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embeddings_are_scaled_by_the_models_own_factor(dtype):
    """Of a hidden size whose root bfloat16 rounds: 640 ** 0.5 = 25.298 becomes 25.25."""
    stored = tiny("Gemma3, window", hidden_size=640, num_attention_heads=4, initializer_range=0.02).to(dtype)
    wide = tiny("Gemma3, window", hidden_size=640, num_attention_heads=4, initializer_range=0.02)
    wide.load_state_dict(stored.state_dict())
    for mine, theirs in zip(wide.buffers(), stored.buffers(), strict=True):
        mine.copy_(theirs)
    assert (
        abs(float(stored.get_input_embeddings().embed_scale) - (25.25 if dtype == torch.bfloat16 else 25.2982)) < 1e-4
    )
    sequences = random_sequences(np.random.default_rng(1), 261)
    got = Reader.load((stored, byte_tokenizer()), device="cpu", precision="exact").score(sequences)
    want = one_by_one(wide, sequences)
    np.testing.assert_allclose(np.concatenate(got.token_logprobs), np.concatenate(want), atol=2e-5)


def test_a_converted_model_has_the_factor_that_loading_would_give(tmp_path):
    model = tiny("Gemma3, window", hidden_size=640)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    sequences = random_sequences(np.random.default_rng(1), 261)
    pair = Reader.load((model, byte_tokenizer()), device="cpu", dtype="bfloat16", precision="exact").score(sequences)
    loaded = Reader.load(str(tmp_path), device="cpu", dtype="bfloat16", precision="exact").score(sequences)
    np.testing.assert_array_equal(np.concatenate(pair.token_logprobs), np.concatenate(loaded.token_logprobs))


@pytest.mark.parametrize("family", ["Gemma2, window, caps", "Gemma3, window"])
def test_fast_fuses_the_models_own_activation(family):
    """On large inputs rounded products hide one activation behind another, and the first one tried was adopted."""
    reader = Reader.load((scaled(family, 4), byte_tokenizer()), device="cpu", precision="fast")
    fused = [m for m in reader.model.modules() if hasattr(m, "activation")]
    assert {m.activation for m in fused} <= {"gelu_tanh"}


def test_a_weight_that_is_not_finite_is_named():
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float("nan")
    with pytest.raises(ModelFileError, match=r"model.layers.1.mlp.up_proj.weight has values that are not finite"):
        Reader.load((model, byte_tokenizer()), device="cpu")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def count_checks(monkeypatch):
    ran = []
    monkeypatch.setattr(reading, "check", lambda model, quick=False: ran.append(quick) or check(model, quick))
    return ran


def test_a_verdict_is_kept(saved, monkeypatch):
    ran = count_checks(monkeypatch)
    first, second = Reader.load(saved), Reader.load(saved)
    assert len(ran) == 1
    assert (first.describe()["check"], second.describe()["check"]) == ("full", "quick")
    assert first.checked == second.checked
    assert Reader.load(saved, check="full").describe()["check"] == "full"
    assert len(ran) == 2


def test_a_quick_verdict_of_a_large_model_is_not_a_full_one(saved, monkeypatch):
    monkeypatch.setattr(reading, "_COMPARED_WHOLE", 0)
    ran = count_checks(monkeypatch)
    quick = [Reader.load(saved) for _ in range(2)]
    assert [reader.describe()["check"] for reader in quick] == ["quick", "quick"]
    assert ran == [True]
    full = Reader.load(saved, check="full")
    assert (full.describe()["check"], ran) == ("full", [True, False])
    assert Reader.load(saved).checked == full.checked  # the stronger of two verdicts
    assert len(ran) == 2


def test_a_verdict_is_of_these_weights_and_this_arithmetic(saved, monkeypatch):
    ran = count_checks(monkeypatch)
    Reader.load(saved, precision="exact")
    Reader.load(saved, precision="exact", dtype="bfloat16")
    assert len(ran) == 2
    tiny_llama(seed=1).save_pretrained(saved)
    Reader.load(saved, precision="exact")
    assert len(ran) == 3
    monkeypatch.setattr(checking.verdicts, "code_digest", lambda: "other code")
    Reader.load(saved, precision="exact")
    assert len(ran) == 4


def test_a_damaged_verdict_is_replaced(saved, monkeypatch):
    ran = count_checks(monkeypatch)
    Reader.load(saved)
    (kept,) = (saved.parent / "cache" / "checks").iterdir()
    right = json.loads(kept.read_text())
    wrong = [{"layer": 1e9}, {"logprob": 1.0}, {"rounded": 2.0}, {"layer": -1.0}, {"layer": True}, {"logprob": None}]
    wrong += [{"layer": float("nan")}, {"logprob": float("inf")}, {"layer": "0"}, {"rounded": []}, {"more": 0.0}]
    damaged = ["", "[]", '{"layer": 0}', "null", "[" * 100_000, '{"layer":' * 100_000, "\udcff", "1" * 5000]
    for text in [*damaged, *(json.dumps(right | change) for change in wrong)]:
        kept.write_text(text, errors="surrogateescape")
        assert known_verdict(kept) is None, text[:80]
    kept.unlink()
    kept.mkdir()
    assert known_verdict(kept) is None
    kept.rmdir()
    kept.write_text("[" * 100_000)
    assert Reader.load(saved).describe()["check"] == "full"
    assert json.loads(kept.read_text()) == right
    assert len(ran) == 2


@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
def test_a_verdict_is_of_one_instruction_set(saved, monkeypatch):
    """A cache folder may be shared by machines."""
    model = Reader.load((tiny_llama(), byte_tokenizer()), precision="exact").local_model.model
    paths = {verdict_path(model, "w")}
    for name in ("avx2", "neon", "amx"):
        monkeypatch.setattr(extension, "best_instruction_set", lambda name=name: name)
        paths.add(verdict_path(model, "w"))
    assert len(paths) == 4
    monkeypatch.setenv("FASTREADER_CPU_ISA", "portable")
    paths.add(verdict_path(model, "w"))
    monkeypatch.setattr(model, "products", "int16")
    paths.add(verdict_path(model, "w"))
    assert len(paths) == 6


def test_a_verdict_is_of_all_values_of_the_weights(saved, monkeypatch):
    ran = count_checks(monkeypatch)
    Reader.load(saved)
    weights = load_file(saved / "model.safetensors")
    weights["model.embed_tokens.weight"][101, 3] += 0.5
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    Reader.load(saved)
    assert len(ran) == 2


def test_a_cache_that_cannot_be_written_keeps_no_verdict(saved, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "file"))
    assert Reader.load(saved).describe()["check"] == "full"


def test_a_check_can_be_off_and_a_pair_is_always_checked(saved, monkeypatch):
    ran = count_checks(monkeypatch)
    reader = Reader.load(saved, check="off")
    assert (reader.describe()["check"], reader.checked, ran) == ("off", None, [])
    pair = (tiny_llama(), byte_tokenizer())
    assert [Reader.load(pair).describe()["check"] for _ in range(2)] == ["full", "full"]
    with pytest.raises(InputError, match="check: expected one of"):
        Reader.load(saved, check="yes")


def test_a_class_of_ones_own_keeps_no_verdict(saved, monkeypatch):
    """Its code may change while its weights do not."""
    import transformers

    class Own(transformers.LlamaForCausalLM):
        pass

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", Own.from_pretrained)
    ran = count_checks(monkeypatch)
    Reader.load(saved), Reader.load(saved)
    assert len(ran) == 2


def test_short_contexts_are_checked():
    for positions in (3, 4, 5, 9):
        model = tiny("GPT2", n_positions=positions)
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.5)
        reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
        with MUTANTS["logit_scale"](reader.local_model.model), pytest.raises(UnsupportedModelError):
            check(reader.local_model.model)


def test_the_check_leaves_the_callers_model_as_it_was():
    model = tiny("Gemma3, window", vocab_size=COMMON["vocab_size"])
    before = {name: (id(p), p.dtype, p.clone()) for name, p in model.named_parameters()}
    Reader.load((model, byte_tokenizer()), device="cpu", precision="fast")
    for name, parameter in model.named_parameters():
        identity, dtype, values = before[name]
        assert (id(parameter), parameter.dtype) == (identity, dtype)
        assert torch.equal(parameter, values)
    assert model.config.sliding_window == 7
    assert not any("fastreader_constants" in m.__dict__ for m in model.modules())


def test_an_activation_with_weights_of_its_own_passes():
    """Apertus' has parameters, which half types round."""
    import transformers

    torch.manual_seed(0)
    model = transformers.ApertusForCausalLM(transformers.ApertusConfig(**COMMON)).bfloat16().eval()
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="fast")
    assert reader.checked is not None


def test_an_lm_head_wider_than_the_embedding():
    model = tiny_llama()
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 400, bias=False)
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision="exact")
    want = model(input_ids=torch.tensor([[5, 6]])).logits[0, -1].double().log_softmax(-1)[399]
    assert reader.score([([5, 6], [399])]).logprob[0] == pytest.approx(float(want), abs=1e-5)
