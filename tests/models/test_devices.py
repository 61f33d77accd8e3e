"""Models whose layers are on several devices."""

import copy

import accelerate
import numpy as np
import pytest
import torch
from helpers import registry
from helpers.families import FAMILIES, tiny
from helpers.support import LONG_FORMS, byte_tokenizer, one_by_one, random_sequences
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastreader import Reader
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.models.machine import memory
from fastreader.models.machine.devices import devices_of
from fastreader.models.rewriting import quantised
from fastreader.models.rewriting.device_hooks import settled

SEQUENCES = random_sequences(np.random.default_rng(1), 261, 5)
CPU = torch.device("cpu")
DIFFERENT = [  # in what goes from layer to layer: positions, masks, caps, routers, scaled queries
    *("Llama", "Gemma2, window, caps", "Gemma3, window", "GPT2", "GPTNeoX", "Mixtral", "Cohere2, window", "OPT"),
    "Ministral3, scaled queries",
]
FAKE = tuple(torch.device("xla", index) for index in range(3))


class Elsewhere(torch.Tensor):
    """A tensor that reports another device. Its values are in a CPU tensor."""

    @staticmethod
    def __new__(cls, inner, place, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=requires_grad
        )

    def __init__(self, inner, place, requires_grad=False):
        self.inner, self.place = inner, place

    @property
    def device(self):
        return self.place

    def to(self, *args, **kwargs):
        like = [value for value in args if isinstance(value, torch.Tensor)]
        device, dtype = (like[0].device, like[0].dtype) if like else torch._C._nn._parse_to(*args, **kwargs)[:2]
        values = self.inner if dtype is None else self.inner.to(dtype)
        device = self.place if device is None else device
        if device == self.place and values is self.inner:
            return self
        return values.clone() if device == CPU else Elsewhere(values.clone(), device)

    def cpu(self):
        return self.to(CPU)

    def tolist(self):
        return self.inner.tolist()

    def __deepcopy__(self, memo):
        copied = Elsewhere(self.inner.clone(), self.place)
        return torch.nn.Parameter(copied, requires_grad=False) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def leaves(value):
    """Yield what lists, tuples and dicts hold. Each op passes here, so that general trees would cost more than ops."""
    if type(value) in (list, tuple):
        for part in value:
            yield from leaves(part)
    elif type(value) is dict:
        yield from leaves(list(value.values()))
    else:
        yield value


def mapped(change, value):
    """Return lists, tuples and dicts with their leaves changed."""
    if type(value) in (list, tuple):
        return type(value)([mapped(change, part) for part in value])
    if type(value) is dict:
        return {key: mapped(change, part) for key, part in value.items()}
    return change(value)


def run(function, args, kwargs):
    """Run an op on the values. Raise where tensors of two devices meet, but for CPU scalars, as on CUDA."""
    given = [value for value in leaves((args, kwargs)) if isinstance(value, (torch.Tensor, torch.device))]
    asked = [value for value in given if isinstance(value, torch.device) and value != CPU]
    if not asked and not any(isinstance(value, Elsewhere) for value in given):
        return function(*args, **kwargs)
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    found = {tensor.device for tensor in tensors if tensor.device != CPU or tensor.dim()}
    if len(found) > 1 and function is not torch.ops.aten.copy_.default:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {function} got {found}")
    device = tensors[0].device if function is torch.ops.aten.copy_.default else next(iter(found), CPU)
    device = asked[0] if asked else device  # C++ takes all for CPU tensors and may ask for the CPU

    def within(value):
        return CPU if isinstance(value, torch.device) else value.inner if isinstance(value, Elsewhere) else value

    inner = mapped(within, (args, kwargs))
    known = {id(value.inner): value for value in given if isinstance(value, Elsewhere)}

    def labelled(value):
        if not isinstance(value, torch.Tensor) or device == CPU:
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value, device)

    return mapped(labelled, function(*inner[0], **inner[1]))


class Devices(TorchDispatchMode):
    """Within it `FAKE` are devices whose tensors may not meet."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def spread(model, places):
    """Place parts of a model on devices: the most specific name wins."""
    for name, module in model.named_modules():
        holders = [part for part in places if not part or name == part or name.startswith(f"{part}.")]
        place = places[max(holders, key=len)]
        for values in (module._parameters, module._buffers):
            for key, tensor in values.items():
                if tensor is None:
                    continue
                away = Elsewhere(tensor.detach(), place) if place != CPU else tensor.detach()
                values[key] = torch.nn.Parameter(away, requires_grad=False) if values is module._parameters else away
    return model


MIXED = (FAKE[0], FAKE[1], CPU)


def layers_of(model, places):
    """Return a map that gives each layer the next place, and the head one that the last layer has not."""
    base = model.base_model_prefix
    stack = next(name for name, part in model.base_model.named_modules() if isinstance(part, torch.nn.ModuleList))
    count = len(model.base_model.get_submodule(stack))
    spots = {f"{base}.{stack}.{index}": places[index % len(places)] for index in range(count)}
    head = next(name for name, part in model.named_modules() if part is model.get_output_embeddings())
    return {"": places[0], **spots, head: places[1]}


class Made(TorchFunctionMode):
    """Within it functions whose C++ code makes tensors where it believes others to be make them on the CPU first."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.tensor and torch.device(kwargs.get("device") or CPU) in FAKE:
            return function(*args, **{**kwargs, "device": CPU}).to(kwargs["device"])
        if function is torch.nn.functional.one_hot and args[0].device in FAKE:
            return function(args[0].to(CPU), *args[1:], **kwargs).to(args[0].device)
        return function(*args, **kwargs)


@pytest.fixture
def devices(monkeypatch):
    monkeypatch.setattr(quantised, "_PLAIN", (*quantised._PLAIN, Elsewhere))
    # Inference mode keeps no version of a tensor, which subclasses need.
    off = torch.no_grad
    monkeypatch.setattr(torch.inference_mode, "__enter__", lambda self: vars(self).setdefault("off", off()).__enter__())
    monkeypatch.setattr(torch.inference_mode, "__exit__", lambda self, *error: vars(self)["off"].__exit__(*error))
    with Made(), Devices():
        yield


def numbers(reader, sequences=SEQUENCES):
    return [np.asarray(values) for values in reader.score(sequences).token_logprobs]


def same(got, want, tolerance=1e-4):
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES if LONG_FORMS else DIFFERENT)
@pytest.mark.long(keep=1)
def test_all_that_goes_from_layer_to_layer_is_moved(family, devices):
    model = tiny(family)
    places = (FAKE, MIXED, (CPU, FAKE[0]))[list(FAMILIES).index(family) % 3]
    want = one_by_one(model, SEQUENCES)
    given = spread(copy.deepcopy(model), layers_of(model, places))
    given.config._experts_implementation = "eager"  # others choose types by the name of the device
    with pytest.raises(RuntimeError, match="same device"):
        one_by_one(given, SEQUENCES)
    reader = Reader.load((given, byte_tokenizer()), precision="exact")
    same(numbers(reader), want)
    assert set(reader.describe()["device"].split(" + ")) == set(map(str, places))


def test_a_list_of_layers_on_one_device_is_called_layer_by_layer(devices):
    model = tiny("Llama")
    given = spread(copy.deepcopy(model), {"": FAKE[0], "model.layers": FAKE[1]})
    reader = Reader.load((given, byte_tokenizer()), precision="exact", check="off")  # as each family's is above
    same(numbers(reader), one_by_one(model, SEQUENCES))


def test_parts_that_meet_without_a_seam_are_named(devices, monkeypatch):
    monkeypatch.setattr("fastreader.models.rewriting.device_hooks._add_hook", lambda *_: None)
    model = tiny("Llama")
    with pytest.raises(
        UnsupportedModelError, match=r"parts cannot be on several devices.* so: .*(must be on|same device)"
    ):
        Reader.load((spread(model, layers_of(model, FAKE)), byte_tokenizer()))


def test_recurrent_layers_lie_on_one_device(devices):
    given = spread(registry.tiny_model("lfm2", registry.PATTERNS["lfm2"][0]), {"": FAKE[0], "lm_head": FAKE[1]})
    with pytest.raises(UnsupportedModelError, match="recurrent layers' model on one device, got xla:0, xla:1"):
        Reader.load((given, byte_tokenizer()))


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
@pytest.mark.long
def test_keys_of_a_layer_on_another_device(family, devices):
    model = registry.tiny_model(family, registry.SHARING)
    want = one_by_one(model, SEQUENCES)
    given = spread(copy.deepcopy(model), layers_of(model, FAKE))
    reader = Reader.load((given, byte_tokenizer()), precision="exact")
    same(numbers(reader), want)


@pytest.mark.parametrize(
    ("family", "places"), [("Llama", FAKE), ("Gemma2, window, caps", MIXED), ("Mixtral", FAKE), ("GPT2", MIXED)]
)
@pytest.mark.long(keep=1)
def test_writing_and_sessions(family, places, devices):
    model = tiny(family)
    options = {"precision": "exact", "check": "off"}  # each family's check has run above
    alone = Reader.load((model, byte_tokenizer()), **options)
    reader = Reader.load((spread(copy.deepcopy(model), layers_of(model, places)), byte_tokenizer()), **options)
    prompts = [SEQUENCES[0][0], SEQUENCES[0][0], [5, 6, 7]]

    def texts(of, **options):
        return [text.token_ids for row in of.generate(prompts, max_new_tokens=4, **options) for text in row]

    assert texts(reader) == texts(alone)
    assert texts(reader, temperature=1.0, seed=3) == texts(alone, temperature=1.0, seed=3)
    with reader.session(prompts[0], cache_scored=True) as session:
        same(numbers(session), numbers(alone))
        assert texts(session) == texts(alone)
        same(numbers(session), numbers(alone))


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        *(("Llama", "fast"), ("Gemma3, window", "high"), ("GPTNeoX", "fast")),
        pytest.param("Llama", "high", marks=pytest.mark.fuzz),
        pytest.param("Gemma3, window", "fast", marks=pytest.mark.fuzz),
        pytest.param("GPTNeoX", "high", marks=pytest.mark.fuzz),
    ],
)
@pytest.mark.long(keep=1)
def test_precisions(family, precision, devices):
    model, sequences = tiny(family).bfloat16(), random_sequences(np.random.default_rng(1), 261, 40)
    want = one_by_one(copy.deepcopy(model).float(), sequences)
    given = spread(copy.deepcopy(model), layers_of(model, MIXED))
    got = numbers(Reader.load((given, byte_tokenizer()), precision=precision), sequences)
    own = one_by_one(model, sequences)
    away, theirs = (np.abs(np.concatenate(one) - np.concatenate(want)).mean() for one in (got, own))
    assert away < (theirs if precision == "fast" else 5e-3)


@pytest.fixture
def folder(tmp_path):
    tiny("Llama", tie_word_embeddings=True).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def parts(*places):
    names = (
        "model.embed_tokens",
        "model.rotary_emb",
        *(f"model.layers.{i}" for i in range(3)),
        "model.norm",
        "lm_head",
    )
    return {name: places[min(index, len(places) - 1)] for index, name in enumerate(names)}


def test_a_map_places_a_named_model(folder, devices, monkeypatch):
    monkeypatch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    want = numbers(Reader.load(folder, device="cpu", precision="exact"))
    given = {"": str(FAKE[0]), "model.layers.1": FAKE[1], "model.layers": "cpu", "model.norm": FAKE[1]}
    reader = Reader.load(folder, precision="exact", device_map=given)
    base = reader.model.model
    assert [str(devices_of(part)[0]) for part in (base.embed_tokens, base.layers[0], base.layers[1], base.norm)] == [
        "xla:0",
        "cpu",
        "xla:1",
        "xla:1",
    ]
    assert reader.device == FAKE[0]  # of the LM head, which is tied to the embedding
    assert reader.describe()["device"] == "xla:0 + cpu + xla:1"
    same(numbers(reader), want)


@pytest.mark.parametrize("device_map", ["auto", "sequential", parts("cpu"), {"": torch.device("cpu")}, {"": CPU}])
def test_a_map_to_one_device_changes_nothing(folder, device_map):
    want = Reader.load(folder, device="cpu", check="full")
    reader = Reader.load(folder, device_map=device_map, check="full")
    assert reader.describe() == want.describe() and reader.device == CPU
    for got, wanted in zip(numbers(reader), numbers(want), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kept", ["cpu_offload", "hooks only"])
def test_weights_that_accelerate_loads_for_each_call_lie_where_it_keeps_them(kept):
    model = tiny("Llama")
    want = one_by_one(model, SEQUENCES)
    with torch.no_grad():
        before = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    if kept == "cpu_offload":
        accelerate.cpu_offload(model, execution_device=CPU)
        assert model.lm_head.weight.is_meta
    else:
        accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    same(numbers(reader), want, 1e-5)
    assert not any(hasattr(module, "_hf_hook") for module in reader.model.modules())
    with torch.no_grad():  # the given model is as it was found
        torch.testing.assert_close(model(input_ids=torch.tensor([[5, 6, 7]])).logits, before)
    assert model.lm_head.weight.is_meta == (kept == "cpu_offload") and hasattr(model.lm_head, "_hf_hook")


def test_weights_that_are_shared_stay_shared():
    model = tiny("Llama", tie_word_embeddings=True)
    accelerate.cpu_offload(model, execution_device=CPU)
    own = settled(model, "x")
    assert own.lm_head.weight is own.model.embed_tokens.weight and not own.lm_head.weight.is_meta


def test_weights_on_a_disk_are_refused(tmp_path, folder):
    model = tiny("Llama")
    given = parts("cpu", "cpu", "cpu", "cpu", "disk", "cpu")
    accelerate.dispatch_model(model, given, offload_dir=tmp_path)
    with pytest.raises(
        UnsupportedModelError, match=r"model\.layers\.2.* is on a disk; a packed pass keeps weights in memory"
    ):
        Reader.load((model, byte_tokenizer()))
    with pytest.raises(InputError, match="device_map: expected weights in memory"):
        Reader.load(folder, device_map=given)


def test_a_layer_lies_on_one_device(devices):
    given = spread(tiny("Llama"), {"": CPU, "model.layers.1.mlp": FAKE[0]})
    with pytest.raises(UnsupportedModelError, match=r"LlamaDecoderLayer is on several devices \(cpu, xla:0\)"):
        Reader.load((given, byte_tokenizer()))


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ("everywhere", "device_map: expected one of auto"),
        ({}, "device_map: expected a device for each part"),
        ({"": "nowhere"}, "device_map: expected devices"),
        ({"": None}, "device_map: expected devices"),
        ({"": "meta"}, "device_map: expected devices that hold weights"),
        ({"model.layers": "cpu"}, "device_map: expected one for LlamaForCausalLM"),
        ({"": "cpu", "model.layer": "cpu"}, "device_map: expected one for LlamaForCausalLM"),
        (3, "device_map: expected"),
    ],
)
def test_odd_maps_are_named(folder, device_map, message):
    with pytest.raises(InputError, match=message):
        Reader.load(folder, device_map=device_map)


def test_a_map_is_for_a_named_model_and_beside_no_device(folder):
    with pytest.raises(InputError, match="device_map: expected None, since a given model stays where it is"):
        Reader.load((tiny("Llama"), byte_tokenizer()), device_map="auto")
    with pytest.raises(InputError, match="device: expected 'auto' together with a device map"):
        Reader.load(folder, device="cpu", device_map="auto")
    with pytest.raises(InputError, match="dtype: expected another type than 'file' together with a device map"):
        Reader.load(folder, dtype="file", device_map="auto")


def test_the_device_with_the_least_memory_counts(devices, monkeypatch):
    free = {FAKE[0]: 50_000_000, FAKE[1]: 10_000_000, FAKE[2]: 90_000_000}
    monkeypatch.setattr(memory, "free_bytes", free.__getitem__)
    model = tiny("Llama")
    given = spread(model, layers_of(model, FAKE))
    reader = Reader.load((given, byte_tokenizer()), precision="exact", check="off")
    own = reader.local_model.model
    assert reader.budget() == memory.pass_limits(own.bytes_per_token, [FAKE[1]], own.overhead)[0]
    with reader.session([1, 2, 3]) as session:
        assert session._allowed == 5_000_000


def test_a_given_device_must_be_auto_for_a_model_on_several(devices):
    model = tiny("Llama")
    with pytest.raises(InputError, match="device: expected 'auto', since the given model is on several"):
        Reader.load((spread(model, layers_of(model, FAKE)), byte_tokenizer()), device=FAKE[0])
