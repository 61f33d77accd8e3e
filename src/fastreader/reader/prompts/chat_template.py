"""Chat templates, rendered in a separate process whose time and memory are bounded."""

from __future__ import annotations

import atexit
import inspect
import json
import marshal
import os
import struct
import subprocess  # nosec B404 # this interpreter alone, without a shell
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastreader.core.checks import require
from fastreader.core.forks import repair_in_children
from fastreader.errors import InputError, UnsupportedModelError

_WORKER = Path(__file__).with_name("chat_worker.py")
_SETTINGS = {"tools", "documents", "chat_template"}  # those that reach the template, or are one
_PATIENCE = 60.0  # seconds for a start and a rendering, where no CPU time can be limited or the machine is busy
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    generation: bool,
    unfinished: bool = False,
) -> str:
    """Return the text of a conversation, as transformers' `apply_chat_template` writes it.

    A template is a program that comes with a model: it runs in another process, at most 1 s of CPU time and in
    512 MiB. A tokenizer class's own `apply_chat_template` runs in this process.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        messages: dicts with "role" and "content".
        variables: further variables of the template: None, numbers, text, and lists, tuples or dicts of them.
        generation: whether the start of the assistant's answer follows.
        unfinished: whether the last message is left open, to be continued.

    Raises:
        InputError: if the template rejects the messages or the variables, or is broken.
        UnsupportedModelError: if the template goes beyond its limits, or ends its process.
    """
    from transformers import PreTrainedTokenizerBase

    options = {"add_generation_prompt": generation, "continue_final_message": unfinished}
    if getattr(type(tokenizer), "apply_chat_template", None) is not PreTrainedTokenizerBase.apply_chat_template:
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **options, **variables))
        except Exception as error:  # it is the model's own code, which may fail in any way
            raise InputError(f"{type(error).__name__}: {error}") from error
    require(bool(messages), "messages: expected at least one")
    given = dict(variables)
    settings = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - _SETTINGS
    for name in given:
        require(
            name not in settings, f"{name}: expected variables of the chat template, got a setting of transformers'"
        )
    try:
        template = tokenizer.get_chat_template(given.pop("chat_template", None), given.get("tools"))
        turns = [{name: value for name, value in turn.items() if value is not None} for turn in messages]
        call = {**tokenizer.special_tokens_map, **given, **options, "chat_template": template, "conversations": [turns]}
        request = marshal.dumps(call)
    except ValueError as error:  # several templates without a default, or a value that is no plain data
        raise InputError(f"{type(error).__name__}: {error}") from error
    reply = _RENDERER.answer(request)
    if "error" in reply:
        raise InputError(reply["error"])
    if "limit" in reply:
        origin = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise UnsupportedModelError(
            f"the chat_template of {origin} cannot be rendered within its limits: it {reply['limit']} "
            f"({template[:60]!r}...); use chat=False, or another template"
        )
    return str(reply["text"])


def start_renderer() -> None:
    """Start the process that renders, and do not wait for it: the first chat comes after long imports."""
    _RENDERER.start()


class _Renderer:
    """The process that renders, started when it is first needed and again after a template ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None

    def after_fork(self) -> None:
        """Leave the process to the parent, whose pipes a child must not use."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.poll()  # it is no child of this process, which counts as ended
            self._worker = None

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        with self._lock:
            self._worker = self._worker or self._started()

    def answer(self, request: bytes) -> dict[str, str]:
        """Return what the process replies to a request, or under "limit" how it ended."""
        with self._lock:
            worker = self._worker = self._worker or self._started()
            late = threading.Timer(_PATIENCE, worker.kill)
            late.daemon = True
            late.start()
            try:
                reply = _exchange(worker, request)
            except BaseException:  # an interrupt, after which the next reply would be this one's
                self.close()
                raise
            finally:
                late.cancel()
            if reply is None:
                code = worker.wait()
                self.close()
                return {"limit": _ending(code)}
            if "limit" in reply:
                self.close()  # memory that it took may not come back
            return reply

    def _started(self) -> subprocess.Popen[bytes]:
        repair_in_children(self)
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-P", str(_WORKER)]
        return subprocess.Popen(  # nosec B603 # no shell, and none of it is input
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
        )

    def close(self) -> None:
        """End the process, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            with worker:  # closes its pipes and waits
                pass


def _exchange(worker: subprocess.Popen[bytes], request: bytes) -> dict[str, str] | None:
    """Return the reply to a request, or None if the process ended before."""
    if worker.stdin is None or worker.stdout is None:
        raise AssertionError("both are pipes")
    try:
        worker.stdin.write(struct.pack("<Q", len(request)) + request)
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    line = worker.stdout.readline()
    return dict(json.loads(line)) if line.endswith(b"\n") else None


def _ending(code: int) -> str:
    """Say why the process ended."""
    import signal

    if code == -getattr(signal, "SIGPROF", 0):
        return "runs for more than 1 s of CPU time"
    return f"ended the process that renders it (code {code}), or took more than {_PATIENCE:.0f} s"


_RENDERER = _Renderer()
atexit.register(_RENDERER.close)
