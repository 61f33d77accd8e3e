"""Run items through a pool, and yield exactly one outcome for each as it comes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from fastreader.errors import FastreaderError, NotReloadableError
from fastreader.integrations.ray.actor import Actor, Work, raised
from fastreader.integrations.ray.pool import ActorPool, require_ray

_COLUMN = "item"


def read_items(batch: Any) -> list[Any]:
    """Return the items of a batch that `stream` made."""
    return [json.loads(text) for text in batch.column(_COLUMN).to_pylist()]


def stream(
    pool: ActorPool, work: Work, items: Sequence[tuple[str, Any]], batch_size: int, ordered: bool
) -> Iterator[tuple[str, dict[str, Any] | FastreaderError]]:
    """Yield the id of each item with its values or its error.

    Ray runs a batch again if its actor dies. An outcome that comes twice for that reason is dropped.

    Args:
        pool: the actors.
        work: what they do; it reads with `read_items`.
        items: pairs of a distinct id and JSON values.
        batch_size: number of items of a batch, at most.
        ordered: keep the order of the items; without it an outcome waits for no other batch.

    Raises:
        NotReloadableError: if an actor cannot load the reader.
        FastreaderError: if an actor died again and again in one batch, or an item has no outcome.
    """
    if not items:
        return
    ray = require_ray()
    import pyarrow as pa

    waiting = dict.fromkeys(id for id, _ in items)
    with pool.connected():
        batch_size = min(batch_size, math.ceil(len(items) / pool.actors))  # work for every actor
        tables = []
        for start in range(0, len(items), batch_size):
            texts = [json.dumps(values, ensure_ascii=False) for _, values in items[start : start + batch_size]]
            tables.append(pa.table({_COLUMN: pa.array(texts, pa.large_string())}))
        pool = dataclasses.replace(pool, actors=min(pool.actors, len(tables)))
        dataset = pool.map(ray.data.from_arrow(tables), Actor, {"work": work}, batch_size)
        dataset.context.enable_progress_bars = False
        dataset.context.execution_options.preserve_order = ordered
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():
                    if row["fatal"]:
                        error = raised(row["error"])
                        raise NotReloadableError(
                            f"reader: expected one that every actor can load, got {work.reader.name!r}, for which an "
                            f"actor raised {type(error).__name__}: {error}"
                        ) from error
                    if row["id"] in waiting:
                        del waiting[row["id"]]
                        values = raised(row["error"]) if row["error"] is not None else json.loads(row["result"])
                        yield row["id"], values
        except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
            raise FastreaderError(
                f"an actor died again and again in one batch of questions; {len(waiting)} of {len(items)} have no "
                f"result yet, those before are kept; Ray reports: {str(error).splitlines()[0]}"
            ) from error
    if waiting:
        raise FastreaderError(
            f"Ray returned no result for {len(waiting)} of {len(items)} questions: {list(waiting)[:5]}"
        )
