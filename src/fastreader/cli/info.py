"""fastreader info."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Annotated

import typer

from fastreader import __version__
from fastreader.cli.options import Format
from fastreader.cli.output import write_json
from fastreader.cli.screen import Screen


def info(
    model: Annotated[
        str | None,
        typer.Argument(help="A model: also show what it takes, without loading it.", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
) -> None:
    """Show versions, devices, the implementation that serves each operator, and the memory that a model takes."""
    facts = collect()
    if model is not None:
        facts["memory"] = memory_of(model)
    if format is not Format.table:
        write_json(facts, indent=2)
        return
    from rich.table import Table

    from fastreader.cli.tables.scores import UNLIMITED

    table = Table(show_header=False)
    for section, values in facts.items():
        for name, value in values.items():
            table.add_row(section, name, str(value))
        table.add_section()
    console = Screen()
    (console if console.is_terminal else Screen(width=UNLIMITED)).print(table)


_PACKAGES = ("torch", "transformers", "triton", "numpy", "scipy", "flash-attn", "gguf", "lm-eval")


def collect() -> dict[str, dict[str, str]]:
    """Return facts by section, all text."""
    import torch

    from fastreader.data.files import cache_dir
    from fastreader.models.loading.packaged import PACKAGED, is_cached
    from fastreader.models.machine.arithmetic import PRECISIONS, cpu_flags, resolve
    from fastreader.ops.serving import RAN_ON_GPUS

    chosen = {name: resolve("auto", "auto", name, torch.bfloat16) for name in PRECISIONS}
    arithmetic = chosen["fast"]
    device = (
        torch.cuda.get_device_name() if arithmetic.device.type == "cuda" else platform.processor() or platform.machine()
    )
    return {
        "version": {"fastreader": __version__, "python": sys.version.split()[0], **_versions()},
        "device": {
            "default": f"{arithmetic.device} ({device})",
            "threads": str(torch.get_num_threads()),
            "instructions": ", ".join(
                sorted(
                    cpu_flags()
                    & {"avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16"}
                )
            ),
            **{f"precision {name}": f"{found.products}: {found.reason}" for name, found in chosen.items()},
        },
        "operators": _operators(),
        "on GPUs": RAN_ON_GPUS,
        "models": {
            "cache": str(cache_dir()),
            **{name: "pulled" if is_cached(name) else "not pulled" for name in PACKAGED},
        },
    }


def memory_of(model: str) -> dict[str, str]:
    """Return what loading a model takes, from its config and the headers of its files, in words.

    Raises:
        ModelNotFoundError: if nothing has that name.
        ModelFileError: if a file is damaged.
    """
    import torch

    from fastreader.models.loading import sizes
    from fastreader.models.loading.decide import decide
    from fastreader.models.loading.find import find
    from fastreader.models.loading.options import LoadOptions
    from fastreader.models.machine import memory

    found = find(LoadOptions(model))
    decision = decide(found)
    wanted = sizes.need(found, decision)
    if wanted is None:
        return {"model": model, "weights": "known when it is loaded: quantised, or by other code"}
    arithmetic = decision.arithmetic
    config = found.config.get_text_config()
    token = memory.bytes_per_token(config, arithmetic.dtype, "upcast")
    # a fused pass has keys and values in the type of its products, as few models have others
    wide = torch.float64 if arithmetic.dtype == torch.float64 else torch.float32
    cached = torch.bfloat16 if arithmetic.products == "bf16" else wide
    return {
        "model": model,
        "weights": wanted.taken,
        "check at load": f"{sizes.in_gib(wanted.check)} more for a while, at most",
        "working memory": f"{sizes.in_gib(1000 * token)} for every 1000 tokens of a pass, at most",
        "keys and values": f"{sizes.in_gib(1000 * memory.key_value_bytes(config, cached))} for every 1000 tokens",
        "free": f"{sizes.in_gib(wanted.free)} on {wanted.device}",
        "fits": "yes" if wanted.fits else f"no; what would fit: {wanted.ways}",
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _operators() -> dict[str, str]:
    from fastreader.ops.serving import serving

    return {
        f"{name}, {each.device}": f"{each.implementation}: {each.why}"
        for name, by_device in serving().items()
        for each in by_device
    }
