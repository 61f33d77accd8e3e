"""ReaderReference: what a reader is loaded from, so that each actor loads its own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastreader.core.checks import check_keys, expect
from fastreader.data.fingerprints import reader_name
from fastreader.models.loading.options import LoadOptions, from_anywhere
from fastreader.reader.reader import Reader, load_again

ReaderLike = Any  # Reader | ReaderReference | str | os.PathLike[str]


@dataclass(frozen=True)
class ReaderReference:
    """A reader that is not loaded yet.

    Attributes:
        name: of the reader, in results.
        call, arguments: what loads it.
    """

    name: str
    call: Callable[..., Reader]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, reader: ReaderLike, **options: Any) -> ReaderReference:
        """Create a reference.

        Args:
            reader: a packaged name, a hub id, or a path that exists on every machine of the cluster. Or a reader
                that was loaded from one of these.
            **options: further arguments of `Reader.load`, for a name.

        Raises:
            NotReloadableError: if the reader was made from a model object.
            InputError: if `reader` is something else, or an option is unknown.
        """
        if isinstance(reader, cls):
            return reader
        known = {p.name: p.default for p in inspect.signature(Reader.load).parameters.values() if p.name != "model"}
        check_keys("options", options, known)
        if isinstance(reader, Reader):
            expect(not options, "options", "none for a reader that is already loaded", sorted(options))
            call, arguments = reader.__reduce__()
            return cls(reader.name, call, arguments)
        named = isinstance(reader, (str, os.PathLike))
        expect(named, "reader", "a Reader, or the name or path of one, which each actor can load", reader)
        name = reader_name(reader)
        return cls(name, load_again, (LoadOptions(**{"model": from_anywhere(reader), **options, "name": name}),))

    def load(self) -> Reader:
        """Load the reader, with the errors of `Reader.load`."""
        return self.call(*self.arguments)
