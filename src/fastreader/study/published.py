"""Published: figures of a paper, which a report shows only if reader, retriever and data set are the paper's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Published(BaseModel):
    """The figures of one reader on one data set in a table of a paper.

    Attributes:
        source: paper and table, such as "Kim et al. 2024, table 1".
        readers: names of the reader, as a study names it: hub ids, and the name by which an engine serves it.
        data_set: name of the data set, as `Study.data_set` states it.
        retriever: name of the retriever, as `Study.retriever` states it; "" if the figures need none.
        questions: number of questions of the paper; None if it gives none.
        values: figures in [0, 1], by metric and by a method's name in the study.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    readers: Annotated[tuple[str, ...], Field(min_length=1)]
    data_set: str
    retriever: str = ""
    questions: int | None = None
    values: dict[str, dict[str, Annotated[float, Field(ge=0, le=1)]]]
