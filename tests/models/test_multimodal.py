"""Text of checkpoints that also see: the text model's kernels, and the numbers of the whole model one at a time."""

import copy
import json
import re

import peft
import pytest
import torch
import transformers
from helpers.support import byte_tokenizer
from safetensors.torch import load_file, save_file

import fastreader as fr
from fastreader.errors import UnsupportedModelError
from fastreader.models.loading import text_only
from fastreader.models.loading import text_only as text_models

SIZES = {
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 32,
}


def text_config(kind, **values):
    return {"model_type": kind, **SIZES, **values}


def gemma3():
    config = transformers.Gemma3Config(
        text_config={**SIZES, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def mistral3():
    vision = {**VISION, "model_type": "pixtral", "head_dim": 16}
    config = transformers.Mistral3Config(text_config=text_config("mistral"), vision_config=vision)
    return transformers.Mistral3ForConditionalGeneration(config)


def llava():
    vision = {**VISION, "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text_config("llama"), vision_config=vision)
    return transformers.LlavaForConditionalGeneration(config)


def paligemma():
    vision = {**VISION, "model_type": "siglip_vision_model"}
    config = transformers.PaliGemmaConfig(text_config=text_config("gemma"), vision_config=vision)
    return transformers.PaliGemmaForConditionalGeneration(config)


def internvl():
    vision = {**VISION, "model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]}
    config = transformers.InternVLConfig(text_config=text_config("qwen2"), vision_config=vision)
    return transformers.InternVLForConditionalGeneration(config)


def aya():
    vision = {**VISION, "model_type": "siglip_vision_model"}
    config = transformers.AyaVisionConfig(text_config=text_config("cohere2"), vision_config=vision)
    return transformers.AyaVisionForConditionalGeneration(config)


def idefics3():
    vision = {**VISION, "model_type": "idefics3_vision"}
    config = transformers.Idefics3Config(text_config=text_config("llama"), vision_config=vision)
    return transformers.Idefics3ForConditionalGeneration(config)


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
PATCHES = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 1,
    "temporal_patch_size": 1,
}


def of_family(name, text, vision, **values):
    config = getattr(transformers, f"{name}Config")(
        text_config={**SIZES, "rope_parameters": ROPE, **text}, vision_config={**PATCHES, **vision}, **values
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def qwen2_vl():
    return of_family("Qwen2VL", {}, {"hidden_size": 64})


def qwen2_5_vl():
    return of_family("Qwen2_5_VL", {}, {"out_hidden_size": 64, "fullatt_block_indexes": [1], "window_size": 28})


def qwen3_vl():
    return of_family("Qwen3VL", {}, {"out_hidden_size": 64, "deepstack_visual_indexes": [0]})


def qwen3_vl_moe():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    return of_family("Qwen3VLMoe", experts, {"out_hidden_size": 64, "deepstack_visual_indexes": [0]})


def glm4v():
    return of_family("Glm4v", {}, {"out_hidden_size": 64, "image_size": 28})


def llama4():
    layers = {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "no_rope_layers": [1, 0, 1]}
    experts = {"num_local_experts": 4, "intermediate_size_mlp": 96, "attention_chunk_size": 7}
    vision = {"num_hidden_layers": 1, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    return of_family("Llama4", {**layers, **experts}, {**VISION, **vision, "pixel_shuffle_ratio": 1.0})


def phi4():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    channels = dict.fromkeys(["ext_pw_out_channel", "depthwise_separable_out_channel", "nemo_conv_channels"], 32)
    config = transformers.Phi4MultimodalConfig(
        **SIZES,
        vision_config={**sizes, "num_hidden_layers": 2, "image_size": 28, "crop_size": 28, "patch_size": 14},
        audio_config={**sizes, **channels, "num_blocks": 1},
    )
    return transformers.Phi4MultimodalForCausalLM(config)


ALL = "fused (3 layer"
FAMILIES = {
    gemma3: ALL,
    mistral3: ALL,
    llava: ALL,
    internvl: ALL,
    idefics3: ALL,
    qwen2_vl: ALL,
    qwen2_5_vl: ALL,
    qwen3_vl: ALL,
    qwen3_vl_moe: "fused (3 attention, 13 norm, 3 mixture of experts)",
    glm4v: "fused (3 feed-forward",  # its attention turns pairs of neighbours
    llama4: "3 mixture of experts)",
    phi4: ALL,
}


@pytest.fixture(params=FAMILIES.items(), ids=lambda item: item[0].__name__)
def whole_and_path(request):
    make, path = request.param
    return weighty(make), path


def weighty(make):
    """Return a model whose random weights are so large that attention matters."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


def with_adapter(model, targets):
    config = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=targets)
    return peft.get_peft_model(model, config).eval()


@torch.no_grad()
def one_at_a_time(model, context, continuation):
    ids = torch.tensor([list(context) + list(continuation)])
    rows = model(input_ids=ids).logits[0].double().log_softmax(-1)[len(context) - 1 : -1]
    return float(rows.gather(1, torch.tensor(continuation)[:, None]).sum())


@pytest.mark.long(keep=4)
def test_text_runs_fused_with_the_numbers_of_the_whole_model(whole_and_path, tmp_path):
    whole, path = whole_and_path
    whole.save_pretrained(tmp_path)
    byte_tokenizer(chat=True).save_pretrained(tmp_path)
    shared = list(range(20, 60))
    pairs = [([*shared, i], [70 + i, 80, 90 + i]) for i in range(4)]
    direct = [one_at_a_time(whole, *pair) for pair in pairs]
    for given in (tmp_path, (whole, byte_tokenizer(chat=True))):
        reader = fr.Reader.load(given, device="cpu", precision="exact")
        assert path in reader.describe()["forward"]
        assert not any("vision" in name or "visual" in name for name, _ in reader.model.named_parameters())
        found = [result.logprob for result in reader.loglikelihood(pairs)]
        assert found == pytest.approx(direct, abs=1e-4)


def test_it_has_the_path_and_digits_of_the_text_model_alone(tmp_path):
    whole = gemma3().eval()
    config = whole.config.get_text_config()
    alone = transformers.Gemma3ForCausalLM(config).eval()
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    readers = [fr.Reader.load((m, byte_tokenizer()), device="cpu", precision="exact") for m in (whole, alone)]
    paths = [reader.describe()["forward"] for reader in readers]
    assert paths[0] == paths[1]
    pairs = [([20, 30, 40], [50, 60])]
    assert readers[0].score(pairs).logprob.tolist() == readers[1].score(pairs).logprob.tolist()
    texts = [reader.generate([[20, 30]], max_new_tokens=5)[0][0].token_ids for reader in readers]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("make", "kind", "path"), [(qwen2_vl, "Qwen2", ALL), (qwen2_5_vl, "Qwen2", ALL), (qwen3_vl, "Qwen3", ALL)]
)
def test_text_without_a_causal_lm_of_its_own_has_the_digits_of_its_kin(make, kind, path):
    """The text of Qwen-VL is a Qwen whose class transformers does not register."""
    whole = weighty(make)
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    alone = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    readers = [fr.Reader.load((m, byte_tokenizer()), device="cpu", precision="exact") for m in (whole, alone)]
    paths = [reader.describe()["forward"] for reader in readers]
    assert paths[0] == paths[1] and path in paths[0]
    pairs = [([*range(20, 60), i], [50, 60]) for i in range(3)]
    assert readers[0].score(pairs).logprob.tolist() == readers[1].score(pairs).logprob.tolist()
    texts = [reader.generate([[20, 30]], max_new_tokens=5)[0][0].token_ids for reader in readers]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("make", [gemma3, qwen2_5_vl, llama4, phi4])
def test_weights_of_towers_are_not_read(make, tmp_path):
    whole = weighty(make)
    whole.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = fr.Reader.load(tmp_path, device="cpu", precision="exact").score([([20, 30], [40])]).logprob
    tensors = load_file(file)
    left = {name: t for name, t in tensors.items() if not re.search("vision|visual|image_embed|audio_embed", name)}
    assert len(left) < len(tensors)
    save_file(left, file, metadata={"format": "pt"})
    assert fr.Reader.load(tmp_path, device="cpu", precision="exact").score([([20, 30], [40])]).logprob == kept


def test_a_tower_that_text_needs_is_read_after_all(tmp_path, monkeypatch):
    whole = weighty(gemma3)
    whole.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    named, tried = text_only.outside, []

    def too_many(*arguments):
        tried.append(arguments)
        return [*named(*arguments), "model.language_model.norm"]

    monkeypatch.setattr(text_only, "outside", too_many)
    reader = fr.Reader.load(tmp_path, device="cpu", precision="exact")
    assert tried and reader.score([([20, 30], [40])]).logprob == pytest.approx(
        [one_at_a_time(whole, [20, 30], [40])], abs=1e-4
    )


def test_towers_raise_when_they_are_called():
    tower = text_models.AbsentEncoder()
    for use in (lambda: tower(torch.zeros(1)), lambda: tower.dtype):
        with pytest.raises(text_models.EncoderNeededError, match="was not loaded, takes part"):
            use()
    assert not hasattr(tower, "dtype")


def test_a_whole_model_that_leaves_out_a_factor_is_refused(tmp_path):
    """AyaVision does not scale its logits, as the Cohere 2 inside does alone: which is meant is unknown."""
    whole = aya().eval()
    whole.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    for given in ((whole, byte_tokenizer()), tmp_path):
        with pytest.raises(UnsupportedModelError, match=r"leaves out the factor 0.0625 .* pair of Cohere2ForCausalLM"):
            fr.Reader.load(given, device="cpu")


def test_a_whole_model_of_other_numbers_stays_whole(monkeypatch):
    """The text model's LM head is another one here."""
    whole = gemma3().eval()
    assembled = text_models.assembled

    def other(model):
        text = assembled(model)
        text.lm_head = copy.deepcopy(text.lm_head)
        torch.nn.init.normal_(text.lm_head.weight)
        return text

    monkeypatch.setattr(text_models, "assembled", other)
    assert text_models.text_model(whole) is whole


@pytest.mark.parametrize(
    ("make", "targets"),
    [(gemma3, ["q_proj"]), (llava, "all-linear"), (qwen2_5_vl, "all-linear"), (phi4, ["q_proj"]), (llama4, ["q_proj"])],
)
def test_an_adapter_of_the_whole_model(make, targets, tmp_path):
    """It may change encoders too. Of Llama 4's folder, AutoModelForCausalLM makes a text model with other names."""
    adapted = with_adapter(weighty(make), targets)
    adapted.save_pretrained(tmp_path / "adapter")
    weighty(make).save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    pair = ([*range(20, 50)], [70, 80])
    reader = fr.Reader.load(tmp_path / "base", adapter=tmp_path / "adapter", device="cpu", precision="exact")
    assert reader.loglikelihood([pair])[0].logprob == pytest.approx(one_at_a_time(adapted, *pair), abs=2e-5)


def test_an_adapter_of_the_text_model(tmp_path):
    whole = weighty(gemma3)
    alone = transformers.Gemma3ForCausalLM(whole.config.get_text_config()).eval()
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    adapted = with_adapter(alone, ["q_proj"])
    adapted.save_pretrained(tmp_path / "adapter")
    whole.save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    pair = ([*range(20, 50)], [70, 80])
    reader = fr.Reader.load(tmp_path / "base", adapter=tmp_path / "adapter", device="cpu", precision="exact")
    assert reader.loglikelihood([pair])[0].logprob == pytest.approx(one_at_a_time(adapted, *pair), abs=2e-5)


def test_code_of_a_processor_does_not_choose_the_class(tmp_path):
    weighty(llava).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoProcessor": "processing.Own"}}))
    reader = fr.Reader.load(tmp_path, device="cpu", precision="exact", trust_remote_code=True)
    assert ALL in reader.describe()["forward"]


@pytest.mark.parametrize(
    "names", [("model.language_model",), ("model.language_model", "model.vision_tower"), ("model",)]
)
def test_a_device_map_of_the_whole_model(names, tmp_path):
    weighty(gemma3).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    places = dict.fromkeys((*names, "lm_head"), "cpu")
    reader = fr.Reader.load(tmp_path, device_map=places, precision="exact")
    assert "fused" in reader.describe()["forward"]
    plain = fr.Reader.load(tmp_path, device="cpu", precision="exact")
    pairs = [([20, 30, 40], [50, 60])]
    assert reader.score(pairs).logprob.tolist() == plain.score(pairs).logprob.tolist()


def test_a_callers_rotary_buffers_are_left_as_they_are():
    """A dynamic embedding keeps the frequencies of the longest text so far. Trying the model must not reset them."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    text = text_config("llama", max_position_embeddings=32, rope_parameters=rope)
    config = transformers.LlavaConfig(text_config=text, vision_config={**VISION, "model_type": "clip_vision_model"})
    whole = transformers.LlavaForConditionalGeneration(config).eval()
    whole(input_ids=torch.arange(100)[None])
    kept = whole.model.language_model.rotary_emb.inv_freq.clone()
    fr.Reader.load((whole, byte_tokenizer()), device="cpu")
    assert torch.equal(whole.model.language_model.rotary_emb.inv_freq, kept)


def test_a_tower_without_weights_is_no_obstacle():
    whole = weighty(gemma3)
    whole.model.vision_tower.to("meta")
    assert "fused" in fr.Reader.load((whole, byte_tokenizer()), device="cpu").describe()["forward"]


def test_a_causal_lm_inside_of_a_model_that_names_no_output_embedding(monkeypatch):
    """Nemotron-H Omni is such a model."""
    whole = weighty(llama4)
    monkeypatch.setattr(type(whole), "get_output_embeddings", lambda self: None)
    reader = fr.Reader.load((whole, byte_tokenizer()), device="cpu", precision="exact")
    pair = ([*range(20, 50)], [70, 80])
    assert reader.loglikelihood([pair])[0].logprob == pytest.approx(one_at_a_time(whole, *pair), abs=2e-5)


def test_a_model_that_needs_an_image_is_refused():
    text = {"model_type": "opt", **SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64}
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    asking = {**small, "encoder_hidden_size": 32, "vocab_size": 261}
    config = transformers.Blip2Config(
        vision_config={**small, "image_size": 28}, qformer_config=asking, text_config=text, num_query_tokens=2
    )
    whole = transformers.Blip2ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match=r"does not run on text alone .*pixel_values"):
        fr.Reader.load((whole, byte_tokenizer()), device="cpu")


def test_text_that_is_read_in_both_directions_is_refused():
    """transformers' default attention lets PaliGemma's text see what follows. Its eager attention does not."""
    with pytest.raises(UnsupportedModelError, match="both directions"):
        fr.Reader.load((paligemma().eval(), byte_tokenizer()), device="cpu")
    config = transformers.GemmaConfig(**SIZES, use_bidirectional_attention=True)
    with pytest.raises(UnsupportedModelError, match="both directions"):
        fr.Reader.load((transformers.GemmaForCausalLM(config).eval(), byte_tokenizer()), device="cpu")


def test_a_callers_model_keeps_its_mode():
    whole = gemma3().train()
    assert text_models.text_model(whole) is not whole
    assert all(module.training for module in whole.modules())


def test_models_of_text_are_left_alone(tiny_reader):
    model = tiny_reader.model
    assert text_models.text_model(model) is model
