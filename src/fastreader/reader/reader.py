"""Reader: the language model that reads the passages."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch

from fastreader.core.checked import checked
from fastreader.core.garbage import without_collections
from fastreader.core.progress import busy, note
from fastreader.core.protocol import TextOrTokens
from fastreader.errors import ModelFileError, NotReloadableError
from fastreader.models.check import (
    Checked,
    check,
    is_from_transformers,
    keep_verdict,
    known_verdict,
    trials_path,
    verdict_path,
)
from fastreader.models.loading.load import Loaded, load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.sizes import naming_shortage
from fastreader.models.machine.devices import naming_devices
from fastreader.models.machine.memory import (
    blocks_used_again,
    large_blocks_apart,
    return_freed,
)
from fastreader.models.passage_cache.cache import PassageCache
from fastreader.models.rewriting.choices import keep_choices, read_choices
from fastreader.models.tree_model import TreeModel
from fastreader.reader.base import ReaderBase
from fastreader.reader.local_model import LocalModel
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.relevance_head import RelevanceHead
from fastreader.reader.session import PassageReader, Session, open_session

_COMPARED_WHOLE = 1 << 26  # weights of a model that a first quick check compares in every layer, in about a second
_WORTH_RETURNING = 1 << 24  # bytes of weights; collecting garbage passes over every object of the process
# transformers changes PyTorch's default type and patches its initialisers while it loads.
_loading = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A child forked in the middle of a load would keep that type; Python's own import lock is held in the same way.
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


@checked
class Reader(ReaderBase):
    """A causal language model that scores many texts in one packed pass.

    Create one with `Reader.load`. It is safe to share between threads: one pass runs at a time. Each call plans for
    the memory that is free when it begins, so concurrent calls of `generate` should be given `max_batch_tokens`. As a
    context manager it is closed at the end. It pickles by reference: the other process loads the model from the same
    name or path, with the same arguments.

    Attributes:
        name: what it was loaded from.
        encoder: the tokenizer, by pieces.
        arithmetic: device, storage type and precision, and why.
        revision: distinguishes its weights and chat template from others of that name; empty for a packaged model.
        checked: what the check at load found; None if it was off.
    """

    def __init__(self, loaded: Loaded, check: str = "full") -> None:
        model, name, arithmetic = loaded.model, loaded.name, loaded.arithmetic
        encoder = TextEncoder(loaded.tokenizer)
        how = arithmetic.precision, arithmetic.products, arithmetic.deterministic
        with naming_devices(model, name):
            note("choosing kernels")
            keeps = not loaded.given and is_from_transformers(model)
            seen = isinstance(loaded.known_digest, str)  # nothing is kept for weights whose digest is not known yet
            path = trials_path(model, loaded.digest, arithmetic) if keeps and seen else None
            choices = read_choices(None if check == "full" else path)
            tree_model = TreeModel(model, name, *how, own=not loaded.given, choices=choices)
            if keeps and not choices.known:
                keep_choices(path or trials_path(model, loaded.digest, arithmetic), choices)
        if tree_model.why_not_upcast and tree_model.precision != arithmetic.precision:
            arithmetic = replace(arithmetic, precision=tree_model.precision, reason=tree_model.why_not_upcast)
        self.arithmetic = arithmetic
        self.revision = "" if loaded.packaged else loaded.digest
        local_model = LocalModel(tree_model, encoder, name, arithmetic, self.revision)
        local_model.digest = loaded.digest
        local_model.relevance = None if loaded.relevance is None else RelevanceHead(loaded.relevance)
        super().__init__(local_model)
        self._loaded_from: LoadOptions | None = None  # None for a model object
        self._digest = loaded.digest
        if loaded.given:
            self.local_model.watch_given()
        with naming_devices(model, name):
            self.checked, self.local_model.check = _verdict(tree_model, check, "" if loaded.given else loaded.digest)

    @classmethod
    def load(
        cls,
        model: Any,  # a name or a pair; `find` says what it expected
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        precision: str = "fast",
        *,
        products: str = "auto",
        check: str = "quick",
        trust_remote_code: bool = False,
        deterministic: bool = False,
        adapter: str | os.PathLike[str] | None = None,
        device_map: str | Mapping[str, Any] | None = None,
    ) -> Reader:
        """Load a reader.

        Args:
            model: a packaged name ("smollm2-135m"), a folder, a GGUF file, a hub id, or a (transformers
                model, tokenizer) pair, which is left as found. Calls raise if the weights of a given model changed.
                A cached model needs no network. A folder that holds only a PEFT adapter loads the base model that it
                names; adapters of a given model are merged in a copy.
            device: "auto" chooses CUDA if available; a pair stays on its own devices.
            dtype: how weights are stored: "auto", "bfloat16", "float16", "float32" or "float64". "file" keeps the
                integers of a quantised GGUF file (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q3_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4) on
                a CPU: they take about the memory of the file, writing reads no more than that, and nothing is rounded
                to bfloat16 on the way. "auto" does so where it can; elsewhere it is the type of the checkpoint, and for
                such a file bfloat16 if the precision is "fast", else float32.
            precision: how exactly they are multiplied. "fast": operands at worst rounded to bfloat16; "high": at
                worst split into two bfloat16 terms, near float32; "exact": float32, or float64 if the weights are.
                All else runs in float32.
            products: how linear layers multiply on a CPU: "bf16", "int16" (14 bits and a scale for every 32 values)
                or "float32" for "fast", "bf16x3" or "float32" for "high", "float32" for "exact". "auto" takes the
                fastest, by rates that are measured once and kept in the cache folder; float32 where nothing is 1.3
                times as fast. `describe` says which.
            check: the packed pass is compared with the model's own modules, layer by layer, before any number is
                reported. "full" does so now, in every layer; "quick" takes the verdict of an earlier check of the same
                weights, versions and arithmetic from the cache folder. Without one it compares the first and the last
                layer of each kind, and every layer of a model of at most 67 million weights. "off" trusts the model. A
                pair is always checked in full. `describe` names what ran.
            trust_remote_code: run code that the model's folder or the hub brings. Leave it off unless you have read
                that code: it can do whatever you can.
            deterministic: give a sequence the same bits whatever else is in its pass, on the CPU only. Without it, they
                may change by rounding where many texts are generated from one prompt; see docs/determinism.md.
            adapter: a folder or a hub id of a PEFT adapter (LoRA and others that can be merged), which is merged into
                the weights of the named model, rounded to their type. If the folder has a tokenizer, that one is used.
            device_map: where the parts of a named model go, as in transformers: "auto" and other names let accelerate
                spread layers over all GPUs and the CPU; a mapping gives a device for each part by the part's name. A
                layer is on one device and runs there, on the CPU too. None puts everything on `device`.

        Raises:
            ModelNotFoundError: if there is no such model or adapter.
            ModelFileError: if a file of it is damaged.
            UnsupportedModelError: if its architecture cannot run on a packed tree (with `deterministic`, if part of it
                could not keep that promise), or the packed pass computes something else than the model's own modules.
            InputError: if device, dtype, precision or check is unknown, the adapter is for another model, or the device
                map leaves out a part.
            MissingExtraError: if an adapter needs peft, which is not installed.
        """
        return cls._loaded(
            LoadOptions(
                model=model,
                device=device,
                dtype=dtype,
                precision=precision,
                products=products,
                check=check,
                trust_remote_code=trust_remote_code,
                deterministic=deterministic,
                adapter=adapter,
                device_map=device_map,
            )
        )

    @classmethod
    def _loaded(cls, options: LoadOptions) -> Reader:
        """Return the reader of a name, a path or a pair."""
        name = options.model if isinstance(options.model, str | os.PathLike) else "a model"
        with _loading, busy(f"loading {os.fspath(name)}"), large_blocks_apart(), without_collections():
            loaded = load(options)
            weights = sum(parameter.nbytes for parameter in loaded.model.parameters())
            with naming_shortage(os.fspath(name), loaded.need), blocks_used_again():
                reader = cls(loaded, options.check)
            if not loaded.given:
                reader.local_model.model.release_original()  # nobody else has it, so that weights are not held twice
                reader._loaded_from = replace(options.from_anywhere(), name=loaded.name)
                del loaded
                if weights > _WORTH_RETURNING:
                    return_freed()
            reader.local_model.watch_running()
            return reader

    def __repr__(self) -> str:
        a = self.arithmetic
        return (
            f"Reader({self.name!r}, {a.where}, weights {a.stored}, precision={a.precision!r}, products={a.products!r})"
        )

    @property
    def model(self) -> Any:
        """The transformers model that runs. Its attention and, where fused, its layers are fastreader's own."""
        return self.local_model.model.model

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, as it was given."""
        return self.encoder.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.local_model.model.device

    def close(self) -> None:
        """Release the model's memory. Every later call raises FastreaderError, and closing twice is harmless."""
        self.local_model.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what loads the reader again.

        Raises:
            NotReloadableError: if the reader was made from a model object.
            FastreaderError: if the reader was closed.
        """
        if self._loaded_from is None:
            raise NotReloadableError(
                f"reader: expected one that was loaded from a name or a path, which another process can load too, got "
                f"{self!r}, which was made from a model object; save model and tokenizer with save_pretrained and use "
                "Reader.load(folder)"
            )
        _ = self.local_model.model  # raises if the reader was closed
        return load_again, (self._loaded_from, self._digest)

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be copied: it holds a model and a lock; threads can share the reader itself")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def with_cache(self, cache: PassageCache) -> PassageReader:
        """Return a reader of the same model whose calls keep what they read of passages, and reuse it.

        Numbers are the same, bit for bit where docs/determinism.md promises it, else up to rounding::

            cache = fr.PassageCache(max_bytes=4 << 30)
            ranked = fr.rerank(reader.with_cache(cache), question, passages)

        Args:
            cache: several readers and threads may share one.
        """
        return PassageReader(self, cache)

    def session(
        self,
        *prefixes: TextOrTokens | Sequence[str],
        max_bytes: int | None = None,
        cache_scored: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
        special_tokens: bool = False,
        max_batch_tokens: int | None = None,
    ) -> Session:
        """Read prefixes once and keep their keys and values, so that later calls compute only what follows them.

        The session is a reader itself, with the same numbers up to rounding; `score_permutations` and `moi.rerank`
        accept one too, and `Session.prefill` reads more prefixes::

            with reader.session([instruction, passages]) as session:
                answers = session.generate([session.prompt([instruction, passages, q]) for q in questions])

        Args:
            prefixes: each a list of pieces, see `prompt` (shared by all prompts that start with these pieces), token
                ids, or a text. With `cache_scored` there may be none.
            max_bytes: memory for cached keys and values; by default half of what is free now.
            cache_scored: also cache the keys and values of whatever the session scores, for the calls after it: to
                generate after prompts whose passages were just scored, say. A call that would exceed `max_bytes` raises
                before it runs.
            system, chat, chat_options: see `prompt`, for prefixes given in pieces.
            special_tokens: see `generate`, for prefixes given as texts.
            max_batch_tokens: at most this many tokens of the prefixes are computed in one pass.

        Raises:
            InputError, ContextOverflowError: as `prompt` and `generate`.
            OutOfBudgetError: if the prefixes take more than `max_bytes`.
        """
        return open_session(
            self.local_model,
            prefixes,
            max_bytes,
            cache_scored,
            system=system,
            chat=chat,
            chat_options=chat_options,
            special_tokens=special_tokens,
            max_batch_tokens=max_batch_tokens,
        )


def load_again(options: LoadOptions, digest: str = "") -> Reader:
    """Load a reader in another process.

    Args:
        options: of the reader.
        digest: of the weights and the chat template that the reader must have; an empty one allows any.

    Raises:
        ModelFileError: if the weights or the chat template differ from the pickled reader's.
        ModelNotFoundError, UnsupportedModelError, InputError: as `Reader.load`.
    """
    reader = Reader._loaded(options)
    if digest and reader._digest != digest:
        raise ModelFileError(
            f"{options.model}: expected the weights and the chat template of the pickled reader ({digest}), got "
            f"others ({reader._digest}); load the reader again before it is pickled"
        )
    return reader


def _verdict(model: TreeModel, mode: str, digest: str) -> tuple[Checked | None, str]:
    """Return what the check of a model found, and which one ran: "full", "quick" or "off"."""
    if mode == "off":
        return None, "off"
    if not digest or not is_from_transformers(model.original):
        return check(model), "full"
    weights = sum(parameter.numel() for parameter in model.original.parameters())
    quick = mode == "quick" and weights > _COMPARED_WHOLE
    for path in (verdict_path(model, digest), verdict_path(model, digest, quick)):
        if mode == "quick" and (known := known_verdict(path)) is not None:
            return known, "quick"
    note("comparing with transformers, once for these weights")
    found = check(model, quick)
    keep_verdict(path, found)
    return found, "quick" if quick else "full"
