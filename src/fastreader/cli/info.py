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
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
) -> None:
    """Show versions, devices, and the implementation that serves each operator."""
    facts = collect()
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
        "models": {
            "cache": str(cache_dir()),
            **{name: "pulled" if is_cached(name) else "not pulled" for name in PACKAGED},
        },
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
