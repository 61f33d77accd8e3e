"""PyTerrier: a transformer that re-ranks, `retriever >> pt.text.get_text(...) >> FastreaderRerank()`."""

from __future__ import annotations

from typing import Any

from fastreader.core.checks import check_text, expect
from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import NOTE, ranking

try:
    import pandas
    import pyterrier
except ImportError as error:
    raise MissingExtraError("pyterrier", "pyterrier") from error


class FastreaderRerank(pyterrier.Transformer):
    """Score the documents of each query by `fastreader.rerank`, in packed passes that all queries share.

    Input columns: qid, query, docno and the text. All columns stay; score (in [0, 1]), rank (from 0) and
    fastreader_note (empty if there is nothing to report) are set. Rows come query by query, the best first.

    Args:
        model, device, dtype, precision: arguments of `Reader.load`, which runs at the first call; the reader is shared.
        text_field: column of a document's text.
        top_n: at most this many rows for each query; None returns all.
        method: a method of `fastreader.rerank`; None takes a relevance model's own, else query likelihood.
        instruction: what makes a document relevant, for the methods that take one.
        options: further arguments of `fastreader.rerank`.
        reader: a reader to use instead of `model`.
        cache: a `PassageCache`, so that the documents of later queries are read once; None reads all.

    Raises:
        InputError: if `text_field` is empty; in `transform`, if a query has several texts, or a text is missing.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        text_field: str = "text",
        top_n: int | None = None,
        method: str | None = None,
        instruction: str | None = None,
        options: dict[str, Any] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        precision: str = "fast",
        reader: Any = None,
        cache: Any = None,
    ) -> None:
        check_text("text_field", text_field)
        self.model, self.text_field, self.top_n, self.method = model, text_field, top_n, method
        self.instruction, self.options = instruction, dict(options or {})
        self.device, self.dtype, self.precision = device, dtype, precision
        self.reader, self.cache = reader, cache

    def transform(self, inp: Any) -> Any:
        """Return a copy of a frame of documents with their scores and ranks.

        Raises:
            pyterrier.validate.InputValidationError: if a column is missing.
            InputError: as for the class.
        """
        pyterrier.validate.result_frame(inp, extra_columns=["query", self.text_field], context=self)
        kept = [column for column in inp.columns if column not in ("score", "rank", NOTE)]
        if not len(inp):
            found = inp[kept].copy()
            types = {"score": "float64", "rank": "int64", NOTE: "object"}
            return found.assign(**{name: pandas.Series(dtype=of) for name, of in types.items()})
        groups = list(inp.groupby("qid", sort=False))
        questions = []
        for qid, rows in groups:
            texts = rows["query"].unique().tolist()
            expect(len(texts) == 1, f"query of qid {qid}", "one text in all its rows", texts)
            questions.append(texts[0])
        passages = [self._passages(rows) for _, rows in groups]
        rankings = ranking(self, questions, passages, self.top_n, progress=False)
        parts = []
        for (_, rows), ranked in zip(groups, rankings, strict=True):
            part = rows[kept].iloc[ranked.indices].copy()
            part["score"] = [result.relevance for result in ranked]
            part["rank"] = range(len(part))
            part[NOTE] = [result.note for result in ranked]
            parts.append(part)
        return pandas.concat(parts, ignore_index=True)

    def _passages(self, rows: Any) -> list[Passage]:
        passages = []
        for docno, text in zip(rows["docno"], rows[self.text_field], strict=True):
            check_text(f"{self.text_field} of docno {docno}", text, empty=True)
            passages.append(Passage(text, id=str(docno)))
        return passages

    def __repr__(self) -> str:
        name = self.model if self.reader is None else self.reader.name
        return f"FastreaderRerank({name!r}, method={self.method!r})"
