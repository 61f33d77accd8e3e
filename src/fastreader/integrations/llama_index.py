"""LlamaIndex: node postprocessors that re-rank, and that place nodes for a reader."""

from __future__ import annotations

from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError
from fastreader.integrations.common import RankerFields, extended, kept_by
from fastreader.passages.arrange import arrange

try:
    from llama_index.core.bridge.pydantic import ConfigDict, Field
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.instrumentation import get_dispatcher
    from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingExtraError("llama-index-core", "llama-index") from error


_dispatcher = get_dispatcher(__name__)


class _Postprocessor(BaseNodePostprocessor):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises it."""
        return cls.__name__


class FastreaderRerank(RankerFields, _Postprocessor):
    """Keep the nodes that are most relevant to the query, by `fastreader.rerank`, with scores in [0, 1].

    Reranking shows in traces, by LlamaIndex's events and callbacks.

    Attributes:
        metadata_mode: reads a node's metadata as LlamaIndex renders it ("embed", "llm", "all", "none"). None reads a
            node as `fastreader.rerank` does: its text, and its metadata's `title` as the title.

    The other fields are documented in `RankerFields`.
    """

    metadata_mode: MetadataMode | None = None

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("query_bundle: expected a query, got None")
        if not nodes:
            return []
        query, mode = query_bundle.query_str, self.metadata_mode
        top_n = len(nodes) if self.top_n is None else self.top_n
        started = ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=top_n, model_name=self.model)
        about = {EventPayload.MODEL_NAME: self.model, EventPayload.QUERY_STR: query, EventPayload.TOP_K: top_n}
        _dispatcher.event(started)
        with self.callback_manager.event(CBEventType.RERANKING, {EventPayload.NODES: nodes, **about}) as event:
            passages = [n if mode is None else Passage(n.node.get_content(metadata_mode=mode)) for n in nodes]
            kept = []
            for result, more in kept_by(self, query, passages, self.top_n):
                node = nodes[result.index].node
                if more:
                    # A model that answers next must not read another's answer among the metadata.
                    unread = ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
                    update = {key: [*getattr(node, key), *more] for key in unread}
                    node = node.model_copy(update={"metadata": extended(node.metadata, more), **update})
                kept.append(NodeWithScore(node=node, score=result.relevance))
            event.on_end({EventPayload.NODES: kept})
        _dispatcher.event(ReRankEndEvent(nodes=kept))
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
