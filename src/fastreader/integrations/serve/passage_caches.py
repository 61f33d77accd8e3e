"""PassageCaches: what a server keeps of the passages that it reads, apart for each of its keys."""

from __future__ import annotations

import logging
from pathlib import Path

from fastreader.core.checks import expect
from fastreader.data.fingerprints import digest
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.models.machine.memory import free_bytes
from fastreader.models.passage_cache.cache import CacheInfo, PassageCache
from fastreader.reader.base import ReaderBase
from fastreader.reader.reader import Reader
from fastreader.reader.session.passages import PassageReader

log = logging.getLogger(__name__)
_SHARE = 10  # of the free memory, by default


class PassageCaches:
    """A cache of passages for each key of a server, or one for a server without keys.

    An answer comes sooner if its passages were read before, which must not show to the holder of another key.

    Args:
        reader: the server's.
        settings: its `keys` and those that begin with `passage_` matter.

    Attributes:
        readers: the reader with each key's cache, in the order of the keys; empty without caches.

    Raises:
        InputError: if the settings ask for caches that the reader cannot have.
        OSError: if a folder cannot be made.
    """

    def __init__(self, reader: ReaderBase, settings: ServerSettings) -> None:
        self.readers: list[PassageReader] = []
        most, folder = settings.passage_cache_bytes, settings.passage_folder
        expect(most != 0 or folder is None, "passage_folder", "None where nothing is kept", folder)
        if not isinstance(reader, (Reader, PassageReader)):
            expect(folder is None, "passage_folder", f"None for a {type(reader).__name__}", folder)
            expect(not most, "passage_cache_bytes", f"None or 0 for a {type(reader).__name__}", most)
            return
        if most is None:
            most = max(1, min(map(free_bytes, reader.local_model.model.devices)) // _SHARE)
        if most == 0:
            log.info("no keys and values of passages are kept")
            return
        count = max(1, len(settings.keys))
        share = max(1, most // count)
        of_files = settings.passage_folder_bytes // count
        folders: list[Path | None] = [None if folder is None else Path(folder)] * count
        if folder is not None and settings.keys:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            # Named by a digest, since a folder's name is no place for a key.
            folders = [Path(folder) / digest(key, 32) for key in settings.keys]
        stored = settings.passage_stored
        caches = [PassageCache(share, each, max_folder_bytes=of_files, stored=stored) for each in folders]
        self.readers = list(map(reader.with_cache, caches))
        if folder is not None:
            held = f"{sum(map(_held, self.readers)):,} passages and headers of this reader"
            log.info(
                "keeps up to %s MB of them as files in %s, which has %s", f"{of_files * count / 1e6:,.0f}", folder, held
            )
        each = f", {share / 1e6:,.0f} MB for each of {count} API keys" if count > 1 else ""
        log.info("keeps up to %s MB of keys and values of passages%s", f"{most / 1e6:,.0f}", each)

    def of(self, key: int) -> PassageReader | None:
        """Return the reader with the cache of a key, by the key's number, or None without caches."""
        return self.readers[key] if self.readers else None

    def info(self, key: int) -> CacheInfo:
        """Return what the cache of a key holds, by the key's number, and zeros without caches."""
        own = self.of(key)
        return CacheInfo(**dict.fromkeys(CacheInfo.__annotations__, 0)) if own is None else own.passage_cache.info()


def _held(reader: PassageReader) -> int:
    """Return the number of files that a reader's cache may find."""
    fingerprint, entries = reader.local_model.fingerprint(), reader.passage_cache.entries
    assert entries.folder is not None
    return sum(each.entries for each in entries.folder.readers() if each.fingerprint == entries.of_reader(fingerprint))
