"""--ray: the actors that a command runs over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from fastreader.core.checks import require

if TYPE_CHECKING:
    from fastreader.integrations.ray import ActorPool

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run over actors of Ray: local (this machine), auto or HOST:PORT.",
        show_default=False,
    ),
]
RayActorsOption = Annotated[
    int | None, typer.Option(help="Number of actors, each with a reader.", min=1, show_default="1")
]
RayGpusOption = Annotated[
    float | None,
    typer.Option(help="Number of GPUs of each actor, may be a fraction.", min=0, show_default="0"),
]


def pool_of(address: str | None, actors: int | None, gpus: float | None, batch_size: int = 32) -> ActorPool | None:
    """Return the pool of --ray; None without it.

    Raises:
        InputError: if another option of it is given alone.
        MissingExtraError: if Ray is not installed.
    """
    if address is None:
        require(actors is None, "--ray-actors: needs --ray, the address")
        require(gpus is None, "--ray-gpus: needs --ray, the address")
        return None
    from fastreader.integrations.ray import ActorPool
    from fastreader.integrations.ray.pool import require_ray

    require_ray()
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # it reports the plan of every dataset
    return ActorPool(address, actors or 1, gpus or 0, batch_size=batch_size)
