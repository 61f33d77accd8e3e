"""Adapters of PEFT: merged at load they give what peft gives, and whatever does not fit is rejected by name."""

import json
import pickle
import warnings

import numpy as np
import pytest
import torch
from helpers.commands import run
from helpers.support import byte_tokenizer, one_by_one, random_sequences, tiny_llama

from fastreader import PermutationScores, Reader, score_permutations
from fastreader.errors import InputError, ModelFileError, ModelNotFoundError, OutOfBudgetError, UnsupportedModelError

peft = pytest.importorskip("peft")
SEQUENCES = random_sequences(np.random.default_rng(1), 261)
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
KINDS = {
    "LoRA": ("LoraConfig", LORA),
    "rank-stabilised": ("LoraConfig", {**LORA, "use_rslora": True}),
    "DoRA": ("LoraConfig", {**LORA, "use_dora": True}),
    "all layers": ("LoraConfig", {**LORA, "target_modules": "all-linear"}),
    "embedding and head": ("LoraConfig", {**LORA, "target_modules": ["embed_tokens", "lm_head"]}),
    "a whole module": ("LoraConfig", {**LORA, "modules_to_save": ["lm_head"]}),
    "tokens": ("LoraConfig", {**LORA, "trainable_token_indices": [5, 9, 17]}),
    "LoHa": ("LoHaConfig", {"target_modules": ["q_proj", "down_proj"]}),
    "LoKr": ("LoKrConfig", {"target_modules": ["q_proj", "down_proj"]}),
    "IA3": ("IA3Config", {"target_modules": ["q_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    "OFT": ("OFTConfig", {"target_modules": ["q_proj", "down_proj"], "oft_block_size": 4}),
    "VeRA": ("VeraConfig", {"target_modules": ["q_proj", "down_proj"], "r": 8}),
}


def adapted(kind="LoRA", model=None):
    """A tiny model with an adapter that changes its scores."""
    name, options = KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of tied embeddings
        given = peft.get_peft_model(model or tiny_llama(), getattr(peft, name)(**options))
    generator = torch.Generator().manual_seed(3)
    for parameter in given.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return given.eval()


@pytest.fixture
def folders(tmp_path):
    """A base model's folder, and an empty one for its adapter."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_llama().save_pretrained(base)
    byte_tokenizer().save_pretrained(base)
    return base, adapter


def save(given, adapter, base=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given.save_pretrained(adapter)
    if base is not None:
        edit(adapter, base_model_name_or_path=str(base))


def edit(adapter, **values):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def same(reader, want, tolerance=1e-5):
    assert not any("peft" in type(module).__module__ for module in reader.model.modules())
    for got, wanted in zip(reader.score(SEQUENCES).token_logprobs, want, strict=True):
        np.testing.assert_allclose(got, wanted, atol=tolerance * max(1, len(wanted)), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long(keep=4)
def test_an_adapter_is_merged_into_a_named_model(kind, folders):
    base, adapter = folders
    given = adapted(kind)
    save(given, adapter)
    want = one_by_one(given, SEQUENCES)
    plain = one_by_one(tiny_llama(), SEQUENCES)
    assert max(np.abs(a - b).max() for a, b in zip(want, plain, strict=True)) > 0.01
    reader = Reader.load(base, device="cpu", precision="exact", adapter=adapter)
    same(reader, want)
    assert reader.name == f"{base}+{adapter}"
    assert reader.revision != Reader.load(base, device="cpu", precision="exact").revision


@pytest.mark.parametrize("kind", ["embedding and head", "tokens"])
def test_tied_embeddings_are_parted_where_an_adapter_changes_one(kind, tmp_path):
    given = adapted(kind, tiny_llama(tie_word_embeddings=True))
    want = one_by_one(given, SEQUENCES)
    same(Reader.load((given, byte_tokenizer()), precision="exact"), want)
    assert given.get_base_model().config.tie_word_embeddings


def test_an_adapter_of_the_head_alone_leaves_a_tied_embedding():
    model = tiny_llama(tie_word_embeddings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False))
    same(Reader.load((given.eval(), byte_tokenizer()), precision="exact"), one_by_one(given, SEQUENCES))


def test_a_folder_with_only_an_adapter_loads_its_base(folders):
    base, adapter = folders
    given = adapted()
    save(given, adapter, base)
    reader = Reader.load(adapter, device="cpu", precision="exact")
    same(reader, one_by_one(given, SEQUENCES))
    assert reader.name == str(adapter)
    again = pickle.loads(pickle.dumps(reader))
    assert again.score(SEQUENCES).logprob.tolist() == reader.score(SEQUENCES).logprob.tolist()


def test_a_pickled_reader_loads_its_adapter_again(folders):
    base, adapter = folders
    save(adapted(), adapter)
    reader = Reader.load(base, device="cpu", precision="exact", adapter=adapter)
    again = pickle.loads(pickle.dumps(reader))
    assert again.name == reader.name
    assert again.score(SEQUENCES).logprob.tolist() == reader.score(SEQUENCES).logprob.tolist()


def test_the_tokenizer_of_an_adapter_is_used(folders):
    base, adapter = folders
    save(adapted(), adapter)
    byte_tokenizer(chat=True).save_pretrained(adapter)
    assert Reader.load(base, device="cpu", adapter=adapter).tokenizer.chat_template
    assert not Reader.load(base, device="cpu").tokenizer.chat_template


@pytest.mark.parametrize("kind", KINDS)
def test_a_given_model_with_adapters_is_merged_in_a_copy(kind):
    given = adapted(kind)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    want = one_by_one(given, SEQUENCES)
    same(Reader.load((given, byte_tokenizer()), precision="exact"), want)
    after = given.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    again = one_by_one(given, SEQUENCES)
    assert all((a == b).all() for a, b in zip(want, again, strict=True))


def test_a_copy_shares_the_weights_that_no_adapter_changes():
    given = adapted()
    reader = Reader.load((given, byte_tokenizer()), precision="exact")
    assert reader.model.lm_head.weight is given.get_base_model().lm_head.weight


def test_the_active_adapters_count():
    given = adapted()
    given.add_adapter("other", peft.LoraConfig(**LORA, init_lora_weights=False))
    given.set_adapter("other")
    other = one_by_one(given, SEQUENCES)
    same(Reader.load((given, byte_tokenizer()), precision="exact"), other)
    given.set_adapter("default")
    first = one_by_one(given, SEQUENCES)
    assert max(np.abs(a - b).max() for a, b in zip(first, other, strict=True)) > 0.01
    same(Reader.load((given, byte_tokenizer()), precision="exact"), first)
    given.merge_adapter()
    same(Reader.load((given, byte_tokenizer()), precision="exact"), first)
    with given.disable_adapter():
        same(Reader.load((given, byte_tokenizer()), precision="exact"), one_by_one(tiny_llama(), SEQUENCES))


def test_adapters_that_transformers_added_are_merged_too():
    model = tiny_llama()
    model.add_adapter(peft.LoraConfig(**LORA, init_lora_weights=False))
    want = one_by_one(model.eval(), SEQUENCES)
    same(Reader.load((model, byte_tokenizer()), precision="exact"), want)
    again = one_by_one(model, SEQUENCES)
    assert all((a == b).all() for a, b in zip(want, again, strict=True))
    model.disable_adapters()
    same(Reader.load((model, byte_tokenizer()), precision="exact"), one_by_one(tiny_llama(), SEQUENCES))


def test_an_adapter_of_experts(tmp_path):
    from helpers.families import tiny

    model = tiny("Mixtral")
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        init_lora_weights=False,
    )
    given = peft.get_peft_model(model, config).eval()
    same(Reader.load((given, byte_tokenizer()), precision="exact"), one_by_one(given, SEQUENCES))


def test_an_adapter_is_given_only_with_a_name():
    with pytest.raises(InputError, match="adapter: expected None, since a given model"):
        Reader.load((tiny_llama(), byte_tokenizer()), adapter="some/adapter")


@pytest.mark.parametrize("adapter", ["", 5, ["a"]])
def test_an_adapter_is_a_name_or_a_path(adapter, folders):
    with pytest.raises(InputError, match="adapter"):
        Reader.load(folders[0], device="cpu", adapter=adapter)


@pytest.fixture
def questions(tmp_path):
    row = {"question": "Which?", "ctxs": [{"text": "This."}, {"text": "That."}], "candidates": ["one", "two"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "questions.jsonl"


def test_the_command_line_merges_an_adapter(folders, questions):
    base, adapter = folders
    save(adapted(), adapter)
    options = ("-m", base, "--precision", "exact", "--device", "cpu", "-f", "jsonl")
    plain = PermutationScores.from_dict(json.loads(run("score", questions, *options).stdout))
    merged = PermutationScores.from_dict(json.loads(run("score", questions, *options, "--adapter", adapter).stdout))
    reader = Reader.load(base, device="cpu", precision="exact", adapter=adapter)
    want = score_permutations(reader, "Which?", ["This.", "That."], candidates=["one", "two"])
    np.testing.assert_array_equal(merged.logprobs, want.logprobs)
    assert np.abs(merged.logprobs - plain.logprobs).max() > 0.01
    ranked = run("rerank", questions, *options, "--adapter", adapter).stdout
    assert ranked != run("rerank", questions, *options).stdout


def test_a_run_resumes_only_with_its_adapter(folders, questions, tmp_path):
    base, adapter = folders
    save(adapted(), adapter)
    common = ("score", questions, "-m", base, "--device", "cpu", "-o", tmp_path / "scores.jsonl")
    run(*common, "--adapter", adapter)
    run(*common, "--adapter", adapter, "--resume")
    assert "other settings: adapter" in run(*common, "--resume", expect=2).stderr
    save(adapted("DoRA"), adapter)
    refused = run(*common, "--adapter", adapter, "--resume", expect=2).stderr
    assert "other settings: adapter_revision" in refused


def test_an_adapter_needs_a_model_to_merge_into(tmp_path):
    (tmp_path / "answers.jsonl").write_text('{"question": "?", "predictions": {"a": "x"}, "answers": ["x"]}\n')
    assert "--adapter: " in run("vote", tmp_path / "answers.jsonl", "--adapter", "some/adapter", expect=2).stderr


def test_lm_eval_merges_an_adapter(folders):
    lm_eval = pytest.importorskip("fastreader.integrations.lm_eval", reason="install the extra lm-eval")
    base, adapter = folders
    save(adapted(), adapter)
    reader = lm_eval.FastreaderLM(str(base), device="cpu", precision="exact", adapter=str(adapter)).reader
    same(reader, one_by_one(adapted(), SEQUENCES))
    with pytest.raises(InputError, match=r"options: expected none .* already loaded, got \['adapter'\]"):
        lm_eval.FastreaderLM(reader, adapter=str(adapter))


def test_a_missing_folder_is_named(folders, tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such folder of an adapter"):
        Reader.load(folders[0], device="cpu", adapter=tmp_path / "nowhere")


@pytest.mark.parametrize("gone", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(gone, folders):
    base, adapter = folders
    save(adapted(), adapter)
    (adapter / gone).unlink()
    with pytest.raises(ModelNotFoundError, match=r"the adapter folder lacks.*adapter_"):
        Reader.load(base, device="cpu", adapter=adapter)


@pytest.mark.parametrize("base", [None, "", "/nowhere/at/all"])
def test_a_missing_base_is_named(base, folders):
    _, adapter = folders
    save(adapted(), adapter)
    edit(adapter, base_model_name_or_path=base)
    with pytest.raises(ModelNotFoundError, match=r"names no base model|/nowhere/at/all"):
        Reader.load(adapter, device="cpu")


@pytest.mark.parametrize("damage", ["{", "[]", '{"peft_type": "NONE"}', '{"peft_type": "LORA", "r": "many"}'])
def test_a_damaged_config_is_named(damage, folders):
    base, adapter = folders
    save(adapted(), adapter)
    (adapter / "adapter_config.json").write_text(damage)
    with pytest.raises((ModelFileError, InputError), match="adapter"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_damaged_weights_are_named(folders):
    base, adapter = folders
    save(adapted(), adapter)
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(ModelFileError, match="the adapter is damaged"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_weights_that_are_not_finite_are_named(folders):
    base, adapter = folders
    given = adapted()
    next(p for p in given.parameters() if p.requires_grad).data[:] = float("nan")
    save(given, adapter)
    with pytest.raises(ModelFileError, match="NaN"):
        Reader.load(base, device="cpu", adapter=adapter)


MISFITS = {
    "another size": lambda: adapted(model=tiny_llama(hidden_size=32)),
    "more layers": lambda: adapted(model=tiny_llama(num_hidden_layers=3)),
    "fewer layers": lambda: adapted(model=tiny_llama(num_hidden_layers=1)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_an_adapter_for_another_model_is_rejected(case, folders):
    base, adapter = folders
    save(MISFITS[case](), adapter)
    with pytest.raises(InputError, match="adapter: expected one for LlamaForCausalLM of this size"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_an_adapter_for_another_architecture_is_rejected(folders):
    from helpers.families import tiny

    base, adapter = folders
    save(peft.get_peft_model(tiny("GPT2"), peft.LoraConfig(r=4, target_modules=["c_attn"])), adapter)
    with pytest.raises(InputError, match=r"adapter: expected one for LlamaForCausalLM.*c_attn"):
        Reader.load(base, device="cpu", adapter=adapter)


@pytest.mark.parametrize("key", ["lora_A", "lora_B"])
def test_a_file_that_lacks_a_weight_is_rejected(key, folders):
    from safetensors.torch import load_file, save_file

    base, adapter = folders
    save(adapted(), adapter)
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(next(name for name in weights if key in name))
    save_file(weights, file)
    with pytest.raises(InputError, match="it has no weight for"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_a_learnt_prompt_is_rejected(folders):
    base, adapter = folders
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    given = peft.get_peft_model(tiny_llama(), config)
    save(given, adapter)
    with pytest.raises(UnsupportedModelError, match="PROMPT_TUNING cannot be merged"):
        Reader.load(base, device="cpu", adapter=adapter)
    with pytest.raises(UnsupportedModelError, match="learnt prompt"):
        Reader.load((given, byte_tokenizer()))


def test_an_adapter_that_starts_at_certain_tokens_is_rejected(folders):
    """Activated LoRA (aLoRA) changes only what follows its invocation, which no merging does."""
    base, adapter = folders
    config = peft.LoraConfig(**LORA, alora_invocation_tokens=[5, 9], task_type="CAUSAL_LM", init_lora_weights=False)
    given = peft.get_peft_model(tiny_llama(), config)
    save(given, adapter)
    with pytest.raises(UnsupportedModelError, match="cannot be merged"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_pickled_weights_run_nothing(folders, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    base, adapter = folders
    save(adapted(), adapter)
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps({"weight": Evil()}))
    with pytest.raises(ModelFileError, match="the adapter is damaged"):
        Reader.load(base, device="cpu", adapter=adapter)
    assert not (tmp_path / "ran").exists()


def test_a_lack_of_memory_is_not_called_damage(folders, monkeypatch):
    import peft

    def exhausted(*_, **__):
        raise MemoryError

    base, adapter = folders
    save(adapted(), adapter)
    monkeypatch.setattr(peft.utils, "load_peft_weights", exhausted)
    with pytest.raises(MemoryError):
        Reader.load(base, device="cpu", adapter=adapter)


GROWN = {
    "embeddings saved by themselves": ({}, False),
    "modules_to_save": ({"modules_to_save": ["embed_tokens", "lm_head"]}, False),
    "modules_to_save, tied": ({"modules_to_save": ["embed_tokens"]}, True),
    "LoRA on embedding and head": ({"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, False),
    "fewer rows than a padded embedding": ({"modules_to_save": ["embed_tokens", "lm_head"]}, False),
}


@pytest.mark.parametrize("kind", GROWN)
def test_an_adapter_with_added_tokens_grows_the_embeddings(kind, tmp_path):
    options, tied = GROWN[kind]
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    padded = 300 if kind.startswith("fewer") else 261
    tiny_llama(tie_word_embeddings=tied, vocab_size=padded).save_pretrained(base)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|new{i}|>" for i in range(6)]})
    grown = tiny_llama(tie_word_embeddings=tied, vocab_size=padded)
    grown.resize_token_embeddings(len(tokenizer))
    grown.config._name_or_path = grown.name_or_path = str(base)
    generator = torch.Generator().manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of tied embeddings
        given = peft.get_peft_model(grown, peft.LoraConfig(**{**LORA, **options}))
        for parameter in given.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
        given.save_pretrained(adapter)
        edit(adapter, base_model_name_or_path=str(base), task_type="CAUSAL_LM")
        tokenizer.save_pretrained(adapter)
        theirs = given.eval()
        if padded < len(tokenizer):  # it does not take rows away
            theirs = peft.AutoPeftModelForCausalLM.from_pretrained(str(adapter)).eval()
    sequences = [*SEQUENCES, ([5, len(tokenizer) - 1, 9], [len(tokenizer) - 2, 7])]
    want = one_by_one(theirs, sequences)
    for arguments in ({"model": base, "adapter": adapter}, {"model": adapter}):
        reader = Reader.load(**arguments, device="cpu", precision="exact", check="off")
        for got, wanted in zip(reader.score(sequences).token_logprobs, want, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["up_proj"], ["lm_head"], "all-linear"], ids=str)
@pytest.mark.parametrize("as_pair", [False, True])
@pytest.mark.long(keep=4)
def test_biases_of_an_adapter_are_merged_into_layers_without(targets, as_pair, folders):
    base, adapter = folders
    given = peft.get_peft_model(tiny_llama(), peft.LoraConfig(r=4, lora_bias=True, target_modules=targets))
    generator = torch.Generator().manual_seed(3)
    for name, parameter in given.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    want = one_by_one(given.eval(), SEQUENCES)
    if as_pair:
        reader = Reader.load((given, byte_tokenizer()), precision="exact")
        assert all(np.array_equal(*pair) for pair in zip(one_by_one(given, SEQUENCES), want, strict=True))
    else:
        save(given, adapter)
        reader = Reader.load(base, device="cpu", adapter=adapter, precision="exact")
    same(reader, want)


def test_a_decomposition_drawn_at_each_load_is_refused(folders):
    base, adapter = folders
    config = peft.LoraConfig(**LORA, init_lora_weights="pissa_niter_4")
    save(peft.get_peft_model(tiny_llama(), config), adapter)
    with pytest.raises(UnsupportedModelError, match=r"pissa_niter_4.*drawn again.*path_initial_model_for_weight"):
        Reader.load(base, device="cpu", adapter=adapter)


def test_a_decomposition_computed_alike_at_each_load_is_merged(folders):
    base, adapter = folders
    given = peft.get_peft_model(tiny_llama(), peft.LoraConfig(**LORA, init_lora_weights="pissa"))
    for name, parameter in given.named_parameters():
        if "lora_" in name:
            parameter.data += 0.02
    save(given.eval(), adapter)
    same(Reader.load(base, device="cpu", adapter=adapter, precision="exact"), one_by_one(given, SEQUENCES), 1e-4)


def test_a_config_of_the_base_beside_an_adapter(folders):
    """As axolotl leaves it."""
    base, adapter = folders
    given = adapted()
    save(given, adapter, base)
    (adapter / "config.json").write_text((base / "config.json").read_text())
    same(Reader.load(adapter, device="cpu", precision="exact"), one_by_one(given, SEQUENCES))


def test_an_adapters_config_left_in_a_models_folder(folders):
    """As after a merge into the folder."""
    base, adapter = folders
    save(adapted(), adapter)
    (base / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    same(Reader.load(base, device="cpu", precision="exact"), one_by_one(tiny_llama(), SEQUENCES))


@pytest.mark.parametrize("where", ["load_peft_weights", "set_peft_model_state_dict", "PeftModel"])
def test_a_lack_of_the_cpus_memory_is_named(where, folders, monkeypatch):
    def exhausted(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")

    base, adapter = folders
    save(adapted(), adapter)
    monkeypatch.setattr(peft.utils if where == "load_peft_weights" else peft, where, exhausted)
    with pytest.raises(OutOfBudgetError, match="does not fit in memory"):
        Reader.load(base, device="cpu", adapter=adapter)
