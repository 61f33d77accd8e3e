"""Count a model's weights from its config and the headers of its files, and reject a load that cannot fit."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from fastreader.errors import ModelFileError, OutOfBudgetError
from fastreader.models.gguf.weights import bytes_of, unpacked
from fastreader.models.loading.decide import Decision, form_of
from fastreader.models.loading.files import guarded_build, lacks_memory, parsed
from fastreader.models.loading.find import Found
from fastreader.models.loading.text_only import classes_for, on_meta
from fastreader.models.machine.memory import address_space_left, free_bytes
from fastreader.models.rewriting import surgery

_FILES = "model*.safetensors"
_MOST_HEADER = 100_000_000  # bytes of a safetensors header, the format's own limit
_CLAIM = 2  # a config that describes this many times the weights of its files is for another model
_SMALL = 2**22  # weights that a config may claim beyond that
_GIB = 2**30
_QUANTISED = 0.6  # bytes a weight of a GGUF file at 4 bits
_LAYER = re.compile(r".*?\.\d+(?=\.)")  # of a weight's name, up to its layer's index


@dataclass(frozen=True)
class Need:
    """The memory that a load takes.

    Attributes:
        weights: number of weights by the config.
        stored: as what they are held, in words.
        bytes: of memory that nothing else can use, on the device.
        mapped: bytes of files that stay mapped besides, which the system may drop.
        check: bytes that comparing layers in float32 takes besides for a while, at most.
        free: bytes that are free on the device.
        device: where the weights go.
    """

    weights: int
    stored: str
    bytes: int
    mapped: int
    check: int
    free: int
    device: str

    @property
    def fits(self) -> bool:
        """Whether the weights fit in what is free, mapped files too if the address space is limited."""
        if self.bytes > self.free:
            return False
        return self.device != "cpu" or self.bytes + self.mapped <= address_space_left()

    @property
    def taken(self) -> str:
        """What the weights take, in words."""
        besides = f", besides {in_gib(self.mapped)} of mapped files" if self.mapped else ""
        return f"{self.weights:,} weights as {self.stored} take {in_gib(self.bytes)} on {self.device}{besides}"

    @property
    def ways(self) -> str:
        """What would fit in what is free, in words."""
        narrow = 2.0 if self.device != "cpu" or 0 < self.mapped <= 2.2 * self.weights else 4.0
        sizes = {"dtype='bfloat16'": narrow, "a GGUF file of Q4_0 or Q4_K_M": _QUANTISED}
        took = {way: int(size * self.weights) for way, size in sizes.items()}
        found = [f"{way} ({in_gib(size)})" for way, size in took.items() if size < min(self.bytes, self.free)]
        if torch.cuda.is_available():
            found.append("device_map='auto'")
        most = self.free / _QUANTISED / 1e9
        return ", ".join([*found, f"a model of at most {most:.1f} billion weights in a GGUF file at 4 bits"])


def in_gib(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB // 10 else f"{count / 2**20:.0f} MiB"


def stored(folder: Path) -> tuple[int, int] | None:
    """Return the number of weights in a folder's safetensors files and their bytes, or None without such files.

    Only headers are read.

    Raises:
        ModelFileError: if a header is damaged.
    """
    index = folder / "model.safetensors.index.json"
    named = parsed(index).get("weight_map") if index.is_file() else None
    files = sorted({folder / name for name in named.values()} if isinstance(named, dict) else folder.glob(_FILES))
    found = [_header(file) for file in files]
    return (sum(count for count, _ in found), sum(size for _, size in found)) if files else None


def _header(file: Path) -> tuple[int, int]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MOST_HEADER, file.stat().st_size - 8):
                raise ValueError(f"a header of {length} bytes")
            tensors = json.loads(stream.read(length))
        tensors.pop("__metadata__", None)
        count = sum(math.prod(each["shape"]) for each in tensors.values())
        return count, sum(each["data_offsets"][1] - each["data_offsets"][0] for each in tensors.values())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ModelFileError(f"{file}: damaged or truncated ({error})") from error


def described(found: Found) -> tuple[int, int] | None:
    """Return two numbers of weights that a config describes, or None if only the model's code knows.

    Returns:
        (all weights, tied ones once; weights of the largest layer and the largest matrix elsewhere)

    Raises:
        ModelFileError, UnsupportedModelError: if no model can be made of the config, as when it is read.
    """
    config = surgery.with_eager_attention(found.config) or found.config
    if found.options.trust_remote_code:
        return None

    def counted() -> tuple[int, int] | None:
        kind = classes_for(config, False, None)[0]
        mapping = getattr(kind, "_model_mapping", None)
        if mapping is not None:
            if type(config) not in mapping:
                return None
            kind = mapping[type(config)]
            kind = kind[0] if isinstance(kind, tuple) else kind
        model = on_meta(kind, config)
        model.tie_weights()
        layers: Counter[str] = Counter()
        others = [0]
        for name, parameter in model.named_parameters():
            if layer := _LAYER.match(name):
                layers[layer[0]] += parameter.numel()
            else:
                others.append(parameter.numel())
        return layers.total() + sum(others), max(layers.values(), default=0) + max(others)

    return guarded_build(counted, found.source, config)


def need(found: Found, decision: Decision) -> Need | None:
    """Return the memory that loading files takes, or None if it is not known before.

    Raises:
        ModelFileError: if the config describes far more weights than the files hold, or a header is damaged.
        UnsupportedModelError: if no model can be made of the config.
    """
    if decision.reads == "pair" or getattr(found.config, "quantization_config", None):
        return None
    folder, file = Path(found.source), found.file
    if file is not None:
        held: tuple[int, int] | None = sum(math.prod(t.shape) for t in file.tensors.values()), 0
    else:
        held = stored(folder) if folder.is_dir() else None
    if (counts := described(found)) is None:
        return None
    weights, check = counts[0], 4 * counts[1]
    if held is not None and weights > _CLAIM * held[0] + _SMALL:
        claims = "config.json describes" if file is None else "its keys describe"
        raise ModelFileError(
            f"{found.source}: {claims} {weights:,} weights, the files hold {held[0]:,}; one of them belongs to another "
            "model"
        )
    device, dtype = decision.arithmetic.device, decision.arithmetic.dtype
    kind = str(dtype).removeprefix("torch.")
    free, size = free_bytes(device), weights * dtype.itemsize
    if file is not None and decision.reads == "integers":
        others = "".join(f", {name} unpacked" for name in unpacked(file))
        taken = bytes_of(file, form_of(found, decision), laid_out=True)
        return Need(weights, f"the file's integers{others}", taken, 0, check, free, device.type)
    if file is not None:
        taken = bytes_of(file, form_of(found, decision), laid_out=device.type == "cpu")
        return Need(weights, kind, taken, 0, check, free, device.type)
    mapped = 0 if held is None else held[1]
    # On a CPU the kernels have their own layout; the file serves as the other copy if the type is the same.
    same = held is not None and held[1] == held[0] * dtype.itemsize
    copies = 1 if same or device.type != "cpu" else 2
    return Need(weights, kind, copies * size, mapped, check, free, device.type)


def require_fit(found: Found, decision: Decision) -> Need | None:
    """Reject a load that cannot fit before memory is allocated for its weights, and return what it takes if known.

    Raises:
        OutOfBudgetError: if the weights take more memory than is free.
        ModelFileError: if the config describes far more weights than the files hold.
    """
    wanted = need(found, decision)
    if wanted is not None and not wanted.fits and found.options.device_map is None:
        raise OutOfBudgetError(
            f"{found.source}: {wanted.taken}, and {in_gib(wanted.free)} are free. What would fit: {wanted.ways}"
        )
    return wanted


@contextmanager
def naming_shortage(name: str, wanted: Need | None) -> Iterator[None]:
    """Within the block, let a lack of the CPU's memory be an OutOfBudgetError that says what the load of `name` takes.

    Raises:
        OutOfBudgetError: if memory ends.
    """
    try:
        yield
    except torch.OutOfMemoryError:  # of a GPU
        raise
    except Exception as error:
        if wanted is None or not lacks_memory(error):
            raise
        first = error.__cause__ if isinstance(error, OutOfBudgetError) and error.__cause__ else error
        raise OutOfBudgetError(
            f"{name}: the model does not fit in memory ({type(first).__name__}: {first}). Its {wanted.taken}; "
            f"comparing layers takes at most {in_gib(wanted.check)} more, and {in_gib(wanted.free)} were free. What "
            "would take less: a file with fewer bits a weight, a smaller model, or check='off' after a first load"
        ) from error
