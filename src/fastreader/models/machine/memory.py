"""Estimate the memory of a pass, and the number of tokens that fit in one."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fastreader.models.config.facts import layer_configs
from fastreader.models.config.windows import layers_without_attention
from fastreader.models.machine.chunking import ASSUMED_WIDTH, chunk_rows

_MAX_TOKENS = 65_536  # a larger pass multiplies no faster
_SHARE = 0.6  # of the free memory, for the default budget
_HARD_SHARE = 0.95  # of the free memory, for any one pass
_ALLOCATED = 1.15  # memory taken per byte of tensors, since there are gaps, empty slots of keys and small tensors
_BLOCK = 256  # tokens that a thread processes at a time
_LOGITS = 2_000_000  # values of a block of logits
_SCANNED = 64  # tokens of a chunk of a scan
_PAIRS = 16  # tokens of a chunk of the Triton kernels
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_SETTINGS_OF_GLIBC = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}  # a user's own
Forward = Literal["own", "upcast", "fused"]


def free_bytes(device: torch.device) -> int:
    """Return the free memory of `device` in bytes, on the CPU within the machine's, the container's and ulimit's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reusable)
    return min(_machine_free(), _container_free(), address_space_left())


def address_space_left() -> int:
    """Return the bytes that this process may still map below its limit of address space (`ulimit -v`)."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(_STATM.read_text().split(maxsplit=1)[0])
    except (ImportError, FileNotFoundError):  # not Linux
        return 2**62
    return 2**62 if most == resource.RLIM_INFINITY else max(0, most - pages * resource.getpagesize())


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Within the block, take memory of 1 MB or more from the system and return it when it is freed.

    Else glibc keeps freed blocks of up to 32 MB in its heap, where a model's weights leave gaps between them.
    """
    settings = _malloc_settings()
    if settings is None:
        yield
        return
    settings(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:  # what glibc has by itself after the first block of 32 MB was freed
        settings(_MMAP_THRESHOLD, 32 << 20)
        settings(_TRIM_THRESHOLD, 64 << 20)


@contextmanager
def blocks_used_again() -> Iterator[None]:
    """Within the block, inside one of `large_blocks_apart`, keep freed memory of up to 8 MB for what comes next.

    The system fills what it hands out with zeros, which takes longer than to convert a part of a weight into it.
    """
    settings = _malloc_settings()
    if settings is None:
        yield
        return
    settings(_MMAP_THRESHOLD, 8 << 20)
    settings(_TRIM_THRESHOLD, 64 << 20)
    try:
        yield
    finally:
        settings(_MMAP_THRESHOLD, 1 << 20)


def _malloc_settings() -> Any:
    """Return mallopt, or None without glibc or with settings of the user."""
    return None if _SETTINGS_OF_GLIBC & os.environ.keys() else _libc("mallopt")


def _libc(name: str) -> Any:
    """Return a function of glibc, or None elsewhere."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def return_freed() -> None:
    """Return freed memory to the system, since glibc keeps more after loading and the check than the weights take.

    Of garbage, only what is newer than the last collection is looked for: within `without_collections` all of a load.
    """
    gc.collect(0)
    trim = _libc("malloc_trim")
    if trim is not None:  # musl has none
        trim(0)


def bytes_per_token(config: Any, dtype: torch.dtype, forward: Forward, operands: torch.dtype | None = None) -> int:
    """Return the peak activation memory of a pass, in bytes per packed token.

    The residual stream and its sums, and attention: queries, keys and values as projected, rotated, and in the type
    of the products. A model's own forward also has the feed-forward over all tokens at once (gate, up, activation,
    product; in a mixture of experts, those a token visits). An upcast one runs the feed-forward over chunks, and a
    fused one everything except attention: of all tokens it holds the stream, the angles, queries, keys and values,
    the kernels' copy of keys and values, and attention's output.

    Args:
        dtype: storage type of the weights.
        forward: "own", "upcast" (activations in float32, `models.upcast`), or "fused" (`models.fused`, every layer).
        operands: type of queries, keys and values in a fused forward; float32 if None.
    """
    size = dtype.itemsize if forward == "own" else max(dtype.itemsize, 4)
    hidden = int(config.hidden_size)
    shapes = [_head_shape(layer) for layer in layer_configs(config)]
    heads, key_heads, head_size = max(shapes, key=lambda shape: shape[2] * (shape[0] + 2 * shape[1]))
    projected = head_size * (heads + 2 * key_heads)
    if forward == "fused":
        operand_values = projected + head_size * (2 * key_heads + heads)
        exact = hidden * size + 2 * head_size * size + operand_values * (operands or torch.float32).itemsize
        return int(_ALLOCATED * exact)
    attention = projected * (2 * size + min(dtype.itemsize, 4)) + head_size * heads * 2 * size
    experts = max(int(getattr(layer, "num_experts_per_tok", None) or 0) for layer in layer_configs(config))
    if forward == "upcast":
        # a mixture of experts sums over all tokens at once, besides its input and what its shared experts give
        mixed = 2 * hidden * size if experts else 0
        return 3 * hidden * size + mixed + attention
    inner = max(_inner_size(layer, hidden) for layer in layer_configs(config))
    if experts:
        inner = int(getattr(config, "moe_intermediate_size", None) or inner) * experts
    return 3 * hidden * size + 2 * hidden * max(size, 4) + max(attention, 4 * inner * size)


def recurrent_bytes_per_token(mixers: list[tuple[str, torch.nn.Module]], state_bytes: int, pair_heads: int = 0) -> int:
    """Return the peak memory that recurrent layers add to a pass, in bytes per packed token.

    A mixer holds what it projects, and in float32 the table of its convolution, a gathered column, the sum, the
    activation and what is split off it. A level of a scan has at most a state for each chunk of tokens, before and
    after it. The Triton kernels of states that are matrices hold two rows of products of each token with its chunk.

    Args:
        mixers: the recurrent layers of a model.
        state_bytes: of their states after one token.
        pair_heads: most heads of a layer that those kernels run; 0 elsewhere.
    """
    most = 0
    for _, mixer in mixers:
        parts = list(mixer.modules())
        projected = sum(int(getattr(part, "out_features", 0)) for part in parts)
        convolved = sum(part.out_channels for part in parts if isinstance(part, torch.nn.Conv1d))
        selective = hasattr(mixer, "x_proj") or hasattr(mixer, "x_proj_weight")  # Mamba: steps, gates, their products
        most = max(most, 2 * projected + (9 if selective else 5) * convolved)
    return 4 * (most + 2 * _PAIRS * pair_heads) + 2 * state_bytes // max(1, len(mixers)) // _SCANNED


@dataclass(frozen=True)
class Overhead:
    """Memory of a pass besides what each of its tokens takes.

    Attributes:
        fixed: bytes, however few tokens there are.
        rows, row_bytes: number of tokens processed at a time, and the bytes each takes then.
        thread_bytes: bytes for each of torch's CPU threads.
    """

    fixed: int = 0
    rows: int = 0
    row_bytes: int = 0
    thread_bytes: int = 0

    def bytes(self, tokens: int) -> int:
        """Return the overhead of a pass of `tokens`."""
        threads = torch.get_num_threads() * self.thread_bytes if self.thread_bytes else 0
        return self.fixed + threads + min(tokens, self.rows) * self.row_bytes

    def max_tokens(self, space: float, token_bytes: int) -> int:
        """Return how many tokens fit in `space` bytes with the overhead, at least 1."""
        many = int((space - self.bytes(self.rows)) / token_bytes)
        few = int((space - self.bytes(0)) / (token_bytes + self.row_bytes))
        return max(1, many if many >= self.rows else min(few, self.rows))


NO_OVERHEAD = Overhead()


def pass_overhead(config: Any, dtype: torch.dtype, device: torch.device, forward: Forward, products: str) -> Overhead:
    """Return a pass's memory besides its tokens: chunks being processed, a block of logits, a converted weight.

    On the CPU each thread processes a block; elsewhere all tokens of one larger chunk are processed together.

    Args:
        dtype: storage type of the weights.
        forward: see `bytes_per_token`. "own" has no overhead, its tokens include everything.
        products: how linear layers multiply, a precision of `ops.linear`.
    """
    if forward == "own":
        return NO_OVERHEAD
    hidden = int(config.hidden_size)
    inner = max(_inner_size(layer, hidden) for layer in layer_configs(config))
    size = max(dtype.itemsize, 4)
    if device.type == "cpu":
        return Overhead(_LOGITS * size, thread_bytes=_BLOCK * (hidden + 2 * inner) * size)
    operand = torch.bfloat16 if products == "bf16" else torch.float64 if dtype == torch.float64 else torch.float32
    converted = 0 if dtype == operand else hidden * inner * operand.itemsize
    # the norm's result, and either the projections with their rotated copies, or gate and input with their product
    row_bytes = (hidden + max(3 * inner, 6 * hidden)) * size
    rows = chunk_rows(device, ASSUMED_WIDTH * hidden if forward == "upcast" else 2 * inner)
    return Overhead(_LOGITS * size + converted, rows, row_bytes)


def key_value_bytes(config: Any, dtype: torch.dtype, scale: int = 0) -> int:
    """Return the memory of one token's keys and values in all layers, in bytes.

    Args:
        dtype: type they are cached in.
        scale: bytes of a scale for each key head, of keys and of values.
    """
    without = layers_without_attention(config)
    shapes = [_head_shape(layer) for place, layer in enumerate(layer_configs(config)) if place not in without]
    return sum(2 * key_heads * (head_size * dtype.itemsize + scale) for _, key_heads, head_size in shapes)


def _head_shape(config: Any) -> tuple[int, int, int]:
    """Return (query heads, key heads, head size) of a layer's config, with keys of full size in latent attention."""
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    if not heads:  # a state-space model
        return 0, 0, 0
    if latent := getattr(config, "kv_lora_rank", None) and getattr(config, "qk_nope_head_dim", None):
        return heads, heads, max(int(latent) + int(config.qk_rope_head_dim), int(config.v_head_dim))
    head_size = int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads)
    return heads, int(getattr(config, "num_key_value_heads", None) or heads), head_size


def _inner_size(config: Any, hidden: int) -> int:
    """Return the width of a layer's feed-forward, the largest if the config lists one for each layer (Gemma 3n)."""
    sizes = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    return max(sizes) if isinstance(sizes, (list, tuple)) else int(sizes)


def generation_memory(
    activation_bytes: int, key_value_bytes: int, new_tokens: int, state_bytes: int = 0
) -> tuple[int, int]:
    """Return the memory of a prompt token, and of a text generated after the prompt.

    Args:
        activation_bytes: of a packed token, see `bytes_per_token`.
        key_value_bytes: of a token, see `key_value_bytes`.
        new_tokens: number of tokens generated; the last is never read, so a single one needs no keys.
        state_bytes: of recurrent layers after one token; a step holds those before it and after it.

    Returns:
        (bytes per prompt token, number of prompt tokens that take as much memory as one text)
    """
    if new_tokens < 2:
        return activation_bytes, new_tokens
    size = activation_bytes + key_value_bytes
    return size, -(-(activation_bytes + new_tokens * key_value_bytes + 2 * state_bytes) // size)


def pass_limits(token_bytes: int, devices: Iterable[torch.device], overhead: Overhead = NO_OVERHEAD) -> tuple[int, int]:
    """Return the default number of tokens per pass, and the number above which a pass does not fit.

    The default is what fits in a share of the memory free now on the device with the least of it, up to a maximum.
    """
    free = min(map(free_bytes, devices))
    default = min(_MAX_TOKENS, overhead.max_tokens(_SHARE * free, token_bytes))
    return default, overhead.max_tokens(_HARD_SHARE * free, token_bytes)


_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
# Limit, usage and statistics files of a control group, version 2 and 1.
_GROUP = Path("/sys/fs/cgroup")
_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current", _GROUP / "memory.stat"),
    (
        _GROUP / "memory" / "memory.limit_in_bytes",
        _GROUP / "memory" / "memory.usage_in_bytes",
        _GROUP / "memory" / "memory.stat",
    ),
)


def _machine_free() -> int:
    try:
        _, _, after = _MEMINFO.read_text().partition("MemAvailable:")
    except FileNotFoundError:  # not Linux
        after = ""
    if after:
        return int(after.split(maxsplit=1)[0]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES")) // 2


def _container_free(groups: tuple[tuple[Path, Path, Path], ...] = _GROUPS) -> int:
    """Return the memory left below the container's limit, counting reclaimable file cache as free."""
    for limit, used, statistics in groups:
        try:
            most = limit.read_text().strip()
            if most == "max":
                continue
            taken, lines = int(used.read_text()), statistics.read_text().splitlines()
        except FileNotFoundError:  # another version, or no control group
            continue
        cached = 0
        for line in lines:
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                cached = int(value)
        return max(0, int(most) - max(0, taken - cached))
    return 2**62
