"""ActorPool: where actors run, how many there are, and what each of them has."""

from __future__ import annotations

import inspect
import math
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_number, check_text, expect, rejecting
from fastreader.errors import MissingExtraError

_RETRIES = 3  # of a batch whose actor died; without a limit, a question that kills its actor would run for ever
_EXPECTED = "'local', 'auto' or the HOST:PORT of a cluster that runs"


@checked
@dataclass(frozen=True)
class ActorPool:
    """The actors of a call.

    A process that is connected to Ray already stays connected, and its connection is used.

    Attributes:
        address: "local" starts Ray on this machine, for this call only; "auto" joins the cluster that this machine
            belongs to; HOST:PORT or ray://HOST:PORT joins another one.
        actors: number of actors; each loads a reader.
        gpus: number of GPUs of each actor; a fraction shares one.
        cpus: number of CPU cores of each actor.
        batch_size: number of questions that an actor processes together; a study has its own `batch_size`.

    Raises:
        InputError: if a number is out of range.
    """

    address: str = "local"
    actors: int = 1
    gpus: float = 0
    cpus: float = 1
    batch_size: int = 32

    def __post_init__(self) -> None:
        check_text("address", self.address)
        check_int("actors", self.actors)
        check_number("gpus", self.gpus, minimum=0)
        check_number("cpus", self.cpus, above=0)
        check_int("batch_size", self.batch_size)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to Ray for the block, unless the process is connected.

        Raises:
            InputError: if there is no cluster at the address.
            MissingExtraError: if Ray is not installed.
        """
        ray = require_ray()
        if ray.is_initialized():
            yield
            return
        self._check_reachable()
        own: dict[str, Any] = {}
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no report to Ray's makers
            cores = max(os.cpu_count() or 1, math.ceil(self.actors * self.cpus))
            own = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": cores}
        with rejecting(f"address: expected {_EXPECTED}, got {self.address!r}", ConnectionError, ValueError):
            # What workers print would appear on standard output, among the results.
            ray.init(address=self.address, log_to_driver=False, logging_level="warning", **own)
        try:
            yield
        finally:
            ray.shutdown()

    def map(self, dataset: Any, actor: type, arguments: dict[str, Any], batch_size: int) -> Any:
        """Return the dataset that `actor` makes of the batches of `dataset`."""
        settings: dict[str, Any] = {
            "fn_constructor_kwargs": arguments,
            "compute": require_ray().data.ActorPoolStrategy(size=self.actors, max_tasks_in_flight_per_actor=2),
            "batch_size": batch_size,
            "batch_format": "pyarrow",
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
        }
        if "ray_remote_args" not in inspect.signature(dataset.map_batches).parameters:
            return dataset.map_batches(actor, **settings)  # Ray 2.64 and later: retries are Ray's own, without a limit
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*ray_remote_args.*")  # there is no other way to limit retries
            return dataset.map_batches(actor, max_restarts=-1, max_task_retries=_RETRIES, **settings)

    def _check_reachable(self) -> None:
        """Check that something listens at the address, which Ray's client would try for minutes."""
        host, _, port = self.address.rpartition("://")[2].rpartition(":")
        if self.address in ("local", "auto"):
            return
        expect(bool(host) and port.isdecimal() and int(port) < 2**16, "address", _EXPECTED, self.address)
        with rejecting(f"address: expected {_EXPECTED}, got {self.address!r}", OSError):
            socket.create_connection((host, int(port)), 5).close()


def require_ray() -> Any:
    """Return the module `ray`, with `ray.data`.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray[data]", "ray") from error
    return ray
