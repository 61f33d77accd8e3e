"""deployment: an ASGI application in replicas of Ray Serve, such as the server with its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_number, check_text
from fastreader.errors import MissingExtraError
from fastreader.integrations.ray.actor import ReaderLike, ReaderReference


@checked
def deployment(
    create_app: Callable[..., Any],
    reader: ReaderLike,
    *,
    name: str = "fastreader",
    replicas: int = 1,
    gpus: float = 0,
    cpus: float = 1,
    **settings: Any,
) -> Any:
    """Return an application for `ray.serve.run`, whose replicas each load a reader and create an ASGI app with it.

    Args:
        create_app: called as ``create_app(reader, **settings)`` in each replica; returns an ASGI app (FastAPI).
        reader: what each replica loads: a name, a path, a `ReaderReference`, or a reader that was loaded from one.
        name: of the deployment.
        replicas: number of replicas.
        gpus: number of GPUs of each replica; a fraction shares one.
        cpus: number of CPU cores of each replica.
        **settings: further arguments of `create_app`.

    Raises:
        NotReloadableError: if the reader was made from a model object.
        InputError: if a number is out of range.
        MissingExtraError: if Ray Serve is not installed.
    """
    check_text("name", name)
    check_int("replicas", replicas)
    check_number("gpus", gpus, minimum=0)
    check_number("cpus", cpus, above=0)
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtraError("ray[serve]", "ray") from error
    source = ReaderReference.of(reader)

    def build() -> Any:
        return create_app(source.load(), **settings)

    resources = {"num_gpus": gpus, "num_cpus": cpus}
    wrapped = serve.deployment(name=name, num_replicas=replicas, ray_actor_options=resources)(serve.ingress(build)())
    return wrapped.bind()
