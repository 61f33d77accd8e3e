"""LlamaIndex: node postprocessors that re-rank, and that place nodes for a reader."""

from __future__ import annotations

from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import RankerFields, noted, ranking
from fastreader.passages.arrange import arrange

try:
    from llama_index.core.bridge.pydantic import Field
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error


class _Postprocessor(BaseNodePostprocessor):
    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises it."""
        return cls.__name__


class FastreaderRerank(RankerFields, _Postprocessor):
    """Keep the nodes that are most relevant to the query, by `fastreader.rerank`, with scores in [0, 1].

    The fields are documented in `RankerFields`.
    """

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("query_bundle: expected a query, got None")
        if not nodes:
            return []
        passages = [Passage(n.node.get_content(metadata_mode=MetadataMode.EMBED), id=n.node.node_id) for n in nodes]
        kept = []
        for result in ranking(self, query_bundle.query_str, passages, self.top_n):
            node = nodes[result.index].node
            if result.note:
                node = node.model_copy(update={"metadata": noted(node.metadata, result.note)})
            kept.append(NodeWithScore(node=node, score=result.relevance))
        return kept


class FastreaderReorder(_Postprocessor):
    """Put the best nodes where a reader's position bias is largest, by `fastreader.arrange`.

    No reader runs.

    Attributes:
        bias: the name of a reader that has calibrations, or the file of one.
    """

    bias: str = Field(default="smollm2-135m", description="A reader's name, or the file of a calibration.")

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return arrange(nodes, self.bias)
