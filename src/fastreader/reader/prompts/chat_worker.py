"""The program of the process that renders chat templates: requests from stdin, a line of JSON for each to stdout.

It is run as a file, without the package, so that it starts quickly and holds little.
"""

from __future__ import annotations

import json
import marshal
import signal
import struct
import sys
from typing import Any

_SECONDS = 1.0  # of CPU time for a rendering
_BYTES = 512 * 2**20  # of memory
_CHARACTERS = 2**24  # of a text, beyond the size of its request


def main() -> None:
    """Answer requests until stdin ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit_memory()
    # The default action of its signal ends the process, also within one long operation of the interpreter.
    timer = getattr(signal, "setitimer", None)
    while head := sys.stdin.buffer.read(8):
        (size,) = struct.unpack("<Q", head)
        call = marshal.loads(sys.stdin.buffer.read(size))  # nosec B302 # by the process that started this one
        if timer is not None:
            timer(signal.ITIMER_PROF, _SECONDS)
        reply = _rendered(render_jinja_template, call, size)
        if timer is not None:
            timer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()


def _rendered(render: Any, call: dict[str, Any], size: int) -> bytes:
    """Return the reply to a request of `size` bytes: a text, an error, or a limit that was reached."""
    try:
        texts, _ = render(**call)
        if len(texts[0]) > _CHARACTERS + size:
            return _line("limit", f"writes more than {_CHARACTERS} characters")
        return _line("text", texts[0])
    except MemoryError:
        return _line("limit", f"takes more than {_BYTES >> 20} MiB of memory")
    except Exception as error:  # the template is a program of the model's, which may fail in any way
        return _line("error", f"{type(error).__name__}: {str(error)[:2000]}")


def _line(kind: str, text: str) -> bytes:
    return json.dumps({kind: text}).encode()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
