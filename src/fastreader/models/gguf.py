"""Converting a GGUF file once to a folder that loads fast."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import struct
from pathlib import Path

from fastreader.errors import MissingExtraError, ModelFileError
from fastreader.models.cache import building, cache_dir
from fastreader.models.quiet import no_bars

logger = logging.getLogger(__name__)

_MAGIC = b"GGUF"


def converted(path: Path) -> Path:
    """The folder with the contents of the GGUF file at `path`, converted now if it never was.

    The folder is named by the file's SHA-256, so a changed file is converted anew.

    Raises:
        MissingExtraError: `gguf` or `accelerate` is not installed.
        ModelFileError: not a GGUF file, or cut short.
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    target = cache_dir() / "gguf" / digest[:24]
    with building(target) as making:
        if making is not None:
            logger.warning("converting %s once; this takes about 20 seconds for 135M parameters", path.name)
            convert(path, making)
    return target


def convert(path: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file to `folder`: bfloat16 safetensors, config, tokenizer.

    Raises:
        MissingExtraError: `gguf` or `accelerate` is not installed.
        ModelFileError: not a GGUF file, or cut short.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "gguf")
    check_complete(path)
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    with no_bars():
        quantised = transformers.AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **source)
        config = quantised.config
        # transformers leaves the mark of the GGUF on the config, which then refuses to be saved.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        plain.load_state_dict(quantised.state_dict())
        plain.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    # save_pretrained keeps the weights to their owner; a shared cache is read by others.
    for file in folder.iterdir():
        file.chmod(0o644)


def check_complete(path: Path) -> None:
    """Refuse a file that is not GGUF or ends before its last tensor does.

    Raises:
        ModelFileError: naming what is wrong.
    """
    from gguf import GGUFReader

    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != _MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file (it starts with {magic!r}, expected {_MAGIC!r})")
    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cut short or damaged ({error})") from error
    size = path.stat().st_size
    if size < end:
        raise ModelFileError(f"{path}: cut short at {size:,} bytes, its tensors end at {end:,}")


def free_space(folder: Path) -> int:
    """Free bytes on the disk that holds `folder` or will."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
