import subprocess
import sys

import pytest
import torch
from support import byte_tokenizer, tiny_llama

from fastreader.errors import InputError
from fastreader.models import precision
from fastreader.models.quiet import no_bars


def hub_cache(home, name="someone/tiny"):
    """A hub cache as huggingface_hub leaves it after a download."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    tiny_llama().save_pretrained(snapshot)
    byte_tokenizer().save_pretrained(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    return snapshot


LOAD = (
    "import socket, sys\n"
    "def refuse(*a, **k): raise ConnectionError('network touched')\n"
    "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
    "from fastreader import Reader\n"
    "print(Reader.load('someone/tiny', device='cpu').loglikelihood([('ab', 'c')])[0].tokens)\n"
)


def load_in_a_process(home):
    return subprocess.run(
        [sys.executable, "-c", LOAD],
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
    )


def test_a_hub_model_in_the_cache_touches_no_network(tmp_path):
    hub_cache(tmp_path)
    done = load_in_a_process(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_an_incomplete_hub_cache_goes_online_and_says_what_failed(tmp_path):
    (hub_cache(tmp_path) / "model.safetensors").unlink()
    done = load_in_a_process(tmp_path)
    assert done.returncode != 0
    assert "ModelNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("flags", "checkpoint", "arguments", "expected"),
    [
        ({"avx512_bf16"}, torch.bfloat16, {}, (torch.bfloat16, "fast")),
        ({"amx_bf16"}, torch.bfloat16, {"precision": "high"}, (torch.bfloat16, "high")),
        ({"avx2"}, torch.bfloat16, {}, (torch.bfloat16, "exact")),
        ({"avx2"}, torch.bfloat16, {"precision": "high"}, (torch.bfloat16, "exact")),
        ({"amx_bf16"}, torch.bfloat16, {"precision": "exact"}, (torch.bfloat16, "exact")),
        ({"amx_bf16"}, torch.bfloat16, {"dtype": "fp32"}, (torch.float32, "fast")),
        ({"amx_bf16"}, torch.bfloat16, {"dtype": torch.float64}, (torch.float64, "exact")),
    ],
)
def test_arithmetic(monkeypatch, flags, checkpoint, arguments, expected):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))
    values = {"device": "cpu", "dtype": "auto", "precision": "fast", **arguments}
    got = precision.resolve(checkpoint=checkpoint, **values)
    assert (got.dtype, got.precision) == expected and got.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_device_is_said():
    with pytest.raises(InputError, match="no CUDA device"):
        precision.resolve_device("cuda")


def test_only_bars_are_kept_off(capsys):
    with no_bars():
        print("\r 50%", end="", file=sys.stderr)
        print("\r100%", file=sys.stderr)
        print("a warning", file=sys.stderr)
    assert capsys.readouterr().err == "a warning\n"
