"""Headers of GGUF files: complete, or a ModelFileError that names the file."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from atheris_runner import Target, run

MODULES = ("fastreader.models.gguf.header",)


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _header() -> bytes:
    """A file with three keys and one tensor of 4 x 8 float32."""
    keys = [
        _text(b"general.architecture") + struct.pack("<I", 8) + _text(b"llama"),
        _text(b"general.alignment") + struct.pack("<II", 4, 32),
        _text(b"list") + struct.pack("<IIQ3f", 9, 6, 3, 1.0, 2.0, 3.0),
    ]
    tensor = _text(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    return head + bytes(-len(head) % 32) + bytes(128)


EXAMPLES = (_header(), _header()[:60], b"GGUF", b"")


def make() -> Target:
    from fastreader.errors import ModelFileError, UnsupportedModelError
    from fastreader.models.gguf.header import parse

    path = Path(tempfile.mkdtemp()) / "fuzzed.gguf"

    def target(data: bytes) -> None:
        path.write_bytes(data)
        try:
            parse(path)
        except (ModelFileError, UnsupportedModelError) as error:
            assert path.name in str(error), error

    return target


if __name__ == "__main__":
    run(MODULES, make)
