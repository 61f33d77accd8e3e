"""The readers of a run by name, each loaded at its first use, and a check of the names that methods give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastreader.core.checks import expect
from fastreader.core.protocol import ReaderProtocol
from fastreader.data.answer_cache import Cache
from fastreader.errors import FastreaderError
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import model_of
from fastreader.study.measures.case import Load

if TYPE_CHECKING:
    from fastreader.study.cells import Cell
    from fastreader.study.config import Study


class Models:
    """Readers by name: those that a study compares, and those that its methods name.

    Args:
        load: returns a reader by name.
        cache, max_batch_tokens: see `CachedReader`.
        check: called once with the name and the description of each reader, as soon as it is loaded.

    Attributes:
        opened: the readers that are loaded.
    """

    def __init__(
        self,
        load: Load,
        cache: Cache,
        max_batch_tokens: int | None = None,
        *,
        check: Callable[[str, Mapping[str, str]], None] | None = None,
    ) -> None:
        self._load, self._cache, self._limit, self._check = load, cache, max_batch_tokens, check
        self.opened: dict[str, CachedReader] = {}

    def open(self, name: str) -> CachedReader:
        """Return a reader, loaded at the first call.

        Raises:
            InputError: if `load` returns no reader.
            FastreaderError: if it cannot be loaded, or `check` rejects it.
        """
        if name not in self.opened:
            loaded = self._load(name)
            expect(isinstance(loaded, ReaderProtocol), "load", "a function that returns a reader", loaded)
            if self._check is not None:
                self._check(name, loaded.describe())
            self.opened[name] = CachedReader(loaded, self._cache, self._limit)
        return self.opened[name]

    def release(self, name: str) -> None:
        """Forget a reader, whose memory is free once nobody else holds it."""
        self.opened.pop(name, None)


def loader(study: Study) -> Load:
    """Return a function that loads a reader as a study says."""

    def load(name: str) -> ReaderProtocol:
        from fastreader.reader.reader import Reader

        config = model_of(study, name)
        if config.url is not None:
            from fastreader.reader.remote.server_reader import ServerReader

            return ServerReader(config.url, config.served, config.tokenizer, max_length=config.max_length)
        options = load_options(study, name)
        if config.quantised:
            from fastreader.models.loading.quantise import quantised

            pair = quantised(config.model, config.quantised, options["device"])
            return Reader.load(pair, precision=options["precision"])
        return Reader.load(config.model, **options)

    return load


def load_options(study: Study, name: str) -> dict[str, Any]:
    """Return the arguments of `Reader.load` for a reader that is loaded here, besides the model."""
    config = model_of(study, name)
    own = {key: getattr(config, key) or getattr(study, key) for key in ("device", "dtype", "precision")}
    return own | ({"adapter": config.adapter} if config.adapter else {})


def require_models(study: Study, cells: Iterable[Cell]) -> None:
    """Check that the readers that each method names can be loaded, as far as that is known before weights are read.

    Raises:
        FastreaderError: as `Reader.load`, with the name of the method.
    """
    from fastreader.models.loading.load import require_loadable
    from fastreader.models.loading.options import LoadOptions

    for label, names in {cell.config.label: cell.method.named_readers for cell in cells}.items():
        for name in names:
            config = model_of(study, name)
            if config.url is not None or config.quantised:
                continue
            try:
                require_loadable(LoadOptions(config.model, **load_options(study, name)))
            except FastreaderError as error:
                raise type(error)(f"method {label!r}: model: {error}") from error
