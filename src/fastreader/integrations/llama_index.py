"""LlamaIndex: a node postprocessor that re-ranks."""

from __future__ import annotations

from typing import Any

from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import NOTE, named_reader
from fastreader.passages.arrange import arrange
from fastreader.passages.ranking import rerank

try:
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error


class FastreaderRerank(BaseNodePostprocessor):
    """Keep the nodes that are most relevant to the query, by `fastreader.rerank`; scores are in [0, 1].

    Attributes:
        model, device, dtype, precision: as for `Reader.load`; loaded at the first call.
        top_n: at most this many nodes are returned; None returns all.
        method: as for `fastreader.rerank`.
        options: further arguments of `fastreader.rerank`.
    """

    model: str = Field(default="smollm2-135m", description="As for Reader.load.")
    device: str = Field(default="auto")
    dtype: str = Field(default="auto")
    precision: str = Field(default="fast")
    top_n: int | None = Field(default=3, description="Number of nodes returned.")
    method: str = Field(default="query_likelihood")
    options: dict[str, Any] = Field(default_factory=dict)
    _reader: Any = PrivateAttr(default=None)

    def __init__(self, reader: Any = None, **values: Any) -> None:
        """Take a reader to use instead of `model`; it is not serialised."""
        super().__init__(**values)
        self._reader = reader

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises it."""
        return "FastreaderRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("query_bundle: expected a query, got None")
        if not nodes:
            return []
        reader = self._reader or named_reader(self.model, self.device, self.dtype, self.precision)
        passages = [Passage(n.node.get_content(metadata_mode=MetadataMode.EMBED), id=n.node.node_id) for n in nodes]
        ranking = rerank(reader, query_bundle.query_str, passages, method=self.method, top_n=self.top_n, **self.options)
        kept = []
        for result in ranking:
            node = nodes[result.index].node
            if result.note:
                node = node.model_copy(update={"metadata": {**node.metadata, NOTE: result.note}})
            kept.append(NodeWithScore(node=node, score=result.relevance))
        return kept


class FastreaderReorder(BaseNodePostprocessor):
    """Put the best nodes where a reader's position bias is largest (`fastreader.arrange`); no reader runs.

    Attributes:
        bias: the name of a reader whose calibrations are at hand, or the file of one.
    """

    bias: str = Field(default="smollm2-135m", description="A reader's name, or the file of a calibration.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises it."""
        return "FastreaderReorder"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return arrange(nodes, self.bias)
