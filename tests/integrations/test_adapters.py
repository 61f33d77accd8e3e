"""fastreader inside LangChain, LlamaIndex, Haystack and rerankers: the real libraries, against fastreader.rerank."""

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.rerankers import logit_score

import fastreader as fr
from fastreader.errors import InputError
from fastreader.integrations.common import ANSWER, ATTRIBUTION, NO_ANSWER, NOTE

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
QUESTION = "Which river is long?"
TEXTS = ["The Nile is a river.", "", "Bread is baked.", "A long river flows.", "Cats sleep."]


@pytest.fixture(scope="module")
def expected(tiny_reader):
    return fr.rerank(tiny_reader, QUESTION, TEXTS)


class TestLangChain:
    pytest.importorskip("langchain_core", reason="needs the extra langchain")

    def documents(self):
        from langchain_core.documents import Document

        return [Document(text, id=f"d{i}", metadata={"page": i}) for i, text in enumerate(TEXTS)]

    def test_a_compressor(self, tiny_reader, expected):
        from langchain_core.documents import BaseDocumentCompressor

        from fastreader.integrations.langchain import FastreaderRerank

        own = FastreaderRerank(reader=tiny_reader, top_n=None)
        assert isinstance(own, BaseDocumentCompressor)
        documents = self.documents()
        kept = own.compress_documents(documents, QUESTION)
        assert [d.id for d in kept] == [f"d{i}" for i in expected.indices]
        for document, result in zip(kept, expected, strict=True):
            assert document.metadata["page"] == result.index
            assert document.metadata["relevance_score"] == pytest.approx(result.relevance, abs=1e-6)
            assert document.metadata.get(NOTE, "") == result.note
        assert all("relevance_score" not in document.metadata for document in documents)
        assert asyncio.run(own.acompress_documents(documents, QUESTION)) == kept
        assert FastreaderRerank(reader=tiny_reader).compress_documents(documents, QUESTION) == kept[:3]
        assert own.compress_documents([], QUESTION) == []

    def test_in_a_runnable(self, tiny_reader, expected):
        from langchain_core.runnables import RunnableLambda

        from fastreader.integrations.langchain import FastreaderRerank

        own = FastreaderRerank(reader=tiny_reader, top_n=1)
        chain = RunnableLambda(lambda _: self.documents()) | (lambda found: own.compress_documents(found, QUESTION))
        assert [d.id for d in chain.invoke(QUESTION)] == [f"d{expected.indices[0]}"]

    def test_its_values_are_kept_without_the_reader(self, tiny_reader):
        from fastreader.integrations.langchain import FastreaderRerank

        own = FastreaderRerank(reader=tiny_reader, model="a", method="qg", options={"seed": 1})
        values = own.model_dump()
        assert "reader" not in values and FastreaderRerank(**values) == FastreaderRerank(**values)
        assert FastreaderRerank(**values).method == "qg"
        with pytest.raises(ValueError, match="methd"):
            FastreaderRerank(methd="qg")

    def test_documents_placed_by_a_bias(self, packaged_reader):
        from fastreader.integrations.langchain import FastreaderReorder

        documents = self.documents()
        scores = [0.1, 0.9, 0.3, 0.8, 0.2]
        for document, score in zip(documents, scores, strict=True):
            document.metadata["relevance_score"] = score
        order = fr.Arranger.for_reader(packaged_reader).order(scores)
        placed = FastreaderReorder("smollm2-135m").transform_documents(documents)
        assert [d.metadata["page"] for d in placed] == order and order[-1] == 1
        ranked = FastreaderReorder("smollm2-135m", "none").transform_documents(documents)
        assert [d.metadata["page"] for d in ranked][-1] == 0
        assert FastreaderReorder("smollm2-135m").transform_documents([]) == []
        del documents[0].metadata["relevance_score"]
        with pytest.warns(UserWarning, match="1 of 5 have no score and come last"):
            placed = FastreaderReorder("smollm2-135m").transform_documents(documents)
        assert sorted(d.metadata["page"] for d in placed) == [0, 1, 2, 3, 4]
        documents[0].metadata["relevance_score"] = "high"
        with pytest.raises(InputError, match=r"documents\[0\]: score: expected a number or None, got 'high'"):
            FastreaderReorder("smollm2-135m").transform_documents(documents)

    def test_metadata_is_copied_deeply_and_a_threshold_leaves_documents_out(self, tiny_reader, expected):
        from fastreader.integrations.langchain import FastreaderRerank

        documents = self.documents()
        for document in documents:
            document.metadata["pages"] = [1]
        limit = expected[1].relevance
        kept = FastreaderRerank(reader=tiny_reader, top_n=None, score_threshold=limit - 1e-5).compress_documents(
            documents, QUESTION
        )
        assert [d.id for d in kept] == [f"d{i}" for i in expected.indices[:2]]
        kept[0].metadata["pages"].append(2)
        assert all(document.metadata["pages"] == [1] for document in documents)


class TestLlamaIndex:
    pytest.importorskip("llama_index.core", reason="needs the extra llama-index")

    def nodes(self):
        from llama_index.core.schema import NodeWithScore, TextNode

        nodes = [TextNode(text=text, id_=f"n{i}", metadata={}) for i, text in enumerate(TEXTS)]
        return [NodeWithScore(node=node, score=0.0) for node in nodes]

    def test_a_postprocessor(self, tiny_reader, expected):
        from llama_index.core.postprocessor.types import BaseNodePostprocessor

        from fastreader.integrations.llama_index import FastreaderReorder, FastreaderRerank

        nodes = self.nodes()
        for node, score in zip(nodes, (0.1, 0.9, 0.3, 0.8, 0.2), strict=True):
            node.score = score
        placed = FastreaderReorder().postprocess_nodes(nodes, query_str=QUESTION)
        assert [node.score for node in placed] == fr.arrange(
            [0.1, 0.9, 0.3, 0.8, 0.2], "smollm2-135m", [node.score for node in nodes]
        )
        own = FastreaderRerank(reader=tiny_reader, top_n=None)
        assert isinstance(own, BaseNodePostprocessor)
        kept = own.postprocess_nodes(self.nodes(), query_str=QUESTION)
        assert [n.node.node_id for n in kept] == [f"n{i}" for i in expected.indices]
        for node, result in zip(kept, expected, strict=True):
            assert node.score == pytest.approx(result.relevance, abs=1e-6)
            assert node.node.metadata.get(NOTE, "") == result.note
        assert len(FastreaderRerank(reader=tiny_reader).postprocess_nodes(self.nodes(), query_str=QUESTION)) == 3
        assert own.postprocess_nodes([], query_str=QUESTION) == []
        with pytest.raises(ValueError, match="query_bundle"):
            own.postprocess_nodes(self.nodes())

    def test_reranking_shows_in_traces(self, tiny_reader):
        from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
        from llama_index.core.instrumentation import get_dispatcher
        from llama_index.core.instrumentation.event_handlers import BaseEventHandler

        from fastreader.integrations.llama_index import FastreaderRerank

        seen = []

        class Handler(BaseEventHandler):
            def handle(self, event, **_):
                seen.append(event)

        root = get_dispatcher()
        root.add_event_handler(Handler())
        try:
            debug = LlamaDebugHandler(print_trace_on_end=False)
            own = FastreaderRerank(reader=tiny_reader, top_n=2, callback_manager=CallbackManager([debug]))
            kept = own.postprocess_nodes(self.nodes(), query_str=QUESTION)
        finally:
            root.event_handlers.pop()
        started, ended = [event for event in seen if "ReRank" in event.class_name()]
        assert (len(started.nodes), started.top_n) == (5, 2)
        assert [n.node.node_id for n in ended.nodes] == [n.node.node_id for n in kept]
        [pair] = debug.get_event_pairs(CBEventType.RERANKING)
        assert len(pair) == 2

    def test_unknown_arguments_are_refused(self):
        from fastreader.integrations.llama_index import FastreaderReorder, FastreaderRerank

        for made, wrong in ((FastreaderRerank, "top_k"), (FastreaderRerank, "mehtod"), (FastreaderReorder, "bais")):
            with pytest.raises(ValueError, match=f"{wrong}\n.*not permitted"):
                made(**{wrong: "x"})

    def test_nodes_without_a_score_come_last(self):
        from fastreader.integrations.llama_index import FastreaderReorder

        nodes = self.nodes()
        for node, score in zip(nodes, (0.1, None, 0.3, None, 0.2), strict=True):
            node.score = score
        with pytest.warns(UserWarning, match="2 of 5 have no score"):
            placed = FastreaderReorder().postprocess_nodes(nodes, query_str=QUESTION)
        wanted = fr.arrange(list(range(5)), "smollm2-135m", [3, 2, 5, 1, 4])
        assert [int(n.node.node_id[1:]) for n in placed] == wanted

    def test_metadata_as_llama_index_renders_it(self, tiny_reader):
        from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

        from fastreader.integrations.llama_index import FastreaderRerank

        node = TextNode(text=TEXTS[0], metadata={"title": "Rivers"})
        (kept,) = FastreaderRerank(reader=tiny_reader, metadata_mode="embed").postprocess_nodes(
            [NodeWithScore(node=node)], query_str=QUESTION
        )
        text = node.get_content(metadata_mode=MetadataMode.EMBED)
        assert "Rivers" in text
        assert kept.score == pytest.approx(fr.rerank(tiny_reader, QUESTION, [text])[0].relevance, abs=1e-6)

    def test_it_serialises_without_the_reader(self, tiny_reader):
        from fastreader.integrations.llama_index import FastreaderRerank

        own = FastreaderRerank(reader=tiny_reader, model="a", top_n=2, method="qg")
        again = FastreaderRerank.from_json(own.to_json())
        assert (again.model, again.top_n, again.method, again.reader) == ("a", 2, "qg", None)


class TestHaystack:
    pytest.importorskip("haystack", reason="needs the extra haystack")

    def documents(self):
        from haystack import Document

        return [Document(content=text or None, id=f"h{i}", meta={"page": i}) for i, text in enumerate(TEXTS)]

    def test_in_a_pipeline(self, tiny_reader, expected):
        from haystack import Pipeline

        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        pipeline = Pipeline()
        pipeline.add_component("ranker", FastreaderRanker(reader=tiny_reader))
        kept = pipeline.run({"ranker": {"query": QUESTION, "documents": self.documents()}})["ranker"]["documents"]
        assert [d.id for d in kept] == [f"h{i}" for i in expected.indices]
        for document, result in zip(kept, expected, strict=True):
            assert document.score == pytest.approx(result.relevance, abs=1e-6)
            assert document.meta["page"] == result.index and document.meta.get(NOTE, "") == result.note

    def test_alone_and_later(self, tiny_reader, expected):
        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        own = FastreaderRanker(reader=tiny_reader, top_k=3)
        own.warm_up()
        two = own.run(QUESTION, self.documents(), top_k=2)["documents"]
        assert [d.id for d in two] == [f"h{i}" for i in expected.indices[:2]]
        later = asyncio.run(own.run_async(QUESTION, self.documents()))["documents"]
        assert [d.id for d in later] == [f"h{i}" for i in expected.indices[:3]]
        assert own.run(QUESTION, [])["documents"] == []

    def test_arguments_that_rankers_of_haystack_take(self, tiny_reader, expected):
        from haystack import Document
        from haystack.utils import ComponentDevice, Device, DeviceMap

        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        own = FastreaderRanker(device=ComponentDevice.from_str("cpu"))
        assert own.device == "cpu" and FastreaderRanker.from_dict(own.to_dict()).device == "cpu"
        several = ComponentDevice.from_multiple(DeviceMap({"a": Device.cpu(), "b": Device.gpu(0)}))
        for wrong, named in (({"device": several}, "device"), ({"top_k": -1}, "top_k"), ({"top_k": 0}, "top_k")):
            with pytest.raises(InputError, match=f"^{named}: expected"):
                FastreaderRanker(**wrong)
        limit = expected[1].relevance - 1e-5
        own = FastreaderRanker(reader=tiny_reader, score_threshold=limit, top_k=None)
        assert [d.id for d in own.run(QUESTION, self.documents())["documents"]] == [
            f"h{i}" for i in expected.indices[:2]
        ]
        own = FastreaderRanker(reader=tiny_reader, meta_fields_to_embed=["topic"], embedding_separator=": ")
        [kept] = own.run(QUESTION, [Document(content=TEXTS[0], meta={"topic": "Rivers"})])["documents"]
        text = f"Rivers: {TEXTS[0]}"
        assert kept.score == pytest.approx(fr.rerank(tiny_reader, QUESTION, [text])[0].relevance, abs=1e-6)

    def test_documents_of_one_id_are_one(self, tiny_reader):
        from haystack import Document

        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        documents = [
            Document(content=TEXTS[i], id=str(i % 2), score=score) for i, score in enumerate((None, 1, 2, 0.5))
        ]
        kept = FastreaderRanker(reader=tiny_reader).run(QUESTION, documents)["documents"]
        assert sorted((d.id, d.content) for d in kept) == [("0", TEXTS[2]), ("1", TEXTS[1])]

    def test_a_pipeline_is_written_and_read(self, tiny_reader):
        from haystack import Pipeline

        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        pipeline = Pipeline()
        pipeline.add_component("ranker", FastreaderRanker("a", top_k=2, method="qg", reader=tiny_reader))
        again = Pipeline.loads(pipeline.dumps()).get_component("ranker")
        assert isinstance(again, FastreaderRanker)
        assert (again.model, again.top_k, again.method, again.reader) == ("a", 2, "qg", None)

    def test_documents_placed_by_a_bias(self):
        from haystack import Document, Pipeline

        from haystack_integrations.components.rankers.fastreader import FastreaderReorder

        scores = [0.1, 0.9, 0.3, 0.8, 0.2]
        documents = [Document(content=str(i), score=score) for i, score in enumerate(scores)]
        pipeline = Pipeline()
        pipeline.add_component("reorder", FastreaderReorder())
        pipeline = Pipeline.loads(pipeline.dumps())
        placed = pipeline.run({"reorder": {"documents": documents}})["reorder"]["documents"]
        assert placed == fr.arrange(documents, "smollm2-135m", scores) and placed[-1] == documents[1]
        own = FastreaderReorder()
        assert own.run([]) == {"documents": []}
        documents[0].score = None
        with pytest.warns(UserWarning, match="1 of 5 have no score and come last"):
            placed = own.run(documents)["documents"]
        assert placed == fr.arrange(documents, "smollm2-135m", [-1.0, *scores[1:]])
        twice = [Document(content=text, id="a", score=score) for text, score in (("a", None), ("b", 1.0), ("c", 0.5))]
        assert own.run([*twice, documents[2]])["documents"] == fr.arrange(
            [twice[1], documents[2]], "smollm2-135m", [1.0, 0.3]
        )
        for bias, named in (
            (None, "bias: expected text"),
            ("", "bias: expected text"),
            ("no reader", "no calibration"),
        ):
            with pytest.raises(InputError, match=named):
                FastreaderReorder(bias).run(documents)


class TestRerankers:
    pytest.importorskip("rerankers", reason="needs the extra rerankers")

    def test_rank_and_score(self, tiny_reader, expected):
        from fastreader.integrations.rerankers import FastreaderRanker

        own = FastreaderRanker(reader=tiny_reader)
        ranked = own.rank(QUESTION, TEXTS, doc_ids=[f"r{i}" for i in range(5)])
        assert [r.document.doc_id for r in ranked.results] == [f"r{i}" for i in expected.indices]
        assert [r.score for r in ranked.results] == pytest.approx([r.relevance for r in expected], abs=1e-6)
        assert [r.rank for r in ranked.results] == [1, 2, 3, 4, 5]
        assert ranked.top_k(1)[0].document.text == TEXTS[expected.indices[0]]
        best = expected[0]
        assert own.score(QUESTION, best.passage.text) == pytest.approx(best.relevance, abs=1e-6)

    def test_by_the_library_own_face(self, model, expected):
        from rerankers import Reranker

        import fastreader.integrations.rerankers  # noqa: F401  # registers the ranker

        own = Reranker(str(model), model_type="FastreaderRanker", precision="exact", device="cpu")
        assert own.rank(QUESTION, TEXTS).results[0].document.text in TEXTS


def test_a_document_has_one_text_in_every_library(tiny_reader):
    import haystack
    import langchain_core.documents
    from llama_index.core.schema import NodeWithScore, TextNode
    from rerankers import Document

    from fastreader.integrations import langchain, llama_index, rerankers
    from haystack_integrations.components.rankers import fastreader

    text, about = TEXTS[0], {"title": "Rivers of Africa", "page": 3}
    document = langchain_core.documents.Document(text, metadata=about)
    node = NodeWithScore(node=TextNode(text=text, metadata=about))
    own = haystack.Document(content=text, meta=about)
    wanted = fr.rerank(tiny_reader, QUESTION, [fr.Passage(text, "Rivers of Africa")])[0].relevance
    plain = fr.rerank(tiny_reader, QUESTION, [text])[0].relevance
    [first] = langchain.FastreaderRerank(reader=tiny_reader).compress_documents([document], QUESTION)
    [second] = llama_index.FastreaderRerank(reader=tiny_reader).postprocess_nodes([node], query_str=QUESTION)
    [third] = fastreader.FastreaderRanker(reader=tiny_reader).run(QUESTION, [own])["documents"]
    fourth = rerankers.FastreaderRanker(reader=tiny_reader).rank(QUESTION, [Document(text, metadata=about)]).results[0]
    direct = [result.relevance for item in (document, node, own) for result in fr.rerank(tiny_reader, QUESTION, [item])]
    found = [first.metadata["relevance_score"], second.score, third.score, fourth.score, *direct]
    assert found == pytest.approx([wanted] * 7, abs=1e-6) and abs(wanted - plain) > 1e-4


def each_library(**options):
    """Return the metadata that each library's ranker gives the documents, by their index in TEXTS."""
    import haystack
    import langchain_core.documents
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    from fastreader.integrations import langchain, llama_index, rerankers
    from haystack_integrations.components.rankers import fastreader

    documents = [langchain_core.documents.Document(text, id=str(i)) for i, text in enumerate(TEXTS)]
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i))) for i, text in enumerate(TEXTS)]
    own = [haystack.Document(content=text or None, id=str(i)) for i, text in enumerate(TEXTS)]
    first = langchain.FastreaderRerank(top_n=None, **options).compress_documents(documents, QUESTION)
    second = llama_index.FastreaderRerank(top_n=None, **options).postprocess_nodes(nodes, query_str=QUESTION)
    third = fastreader.FastreaderRanker(top_k=None, **options).run(QUESTION, own)["documents"]
    fourth = rerankers.FastreaderRanker(**options).rank(QUESTION, TEXTS, list(range(5))).results
    assert all(ANSWER not in node.node.get_content(metadata_mode=MetadataMode.LLM) for node in second)
    assert not any(item.metadata for item in (*documents, *(node.node for node in nodes)))
    return [
        {int(document.id): document.metadata for document in first},
        {int(node.node.node_id): node.node.metadata for node in second},
        {int(document.id): document.meta for document in third},
        {int(result.document.doc_id): result.document.metadata for result in fourth},
    ]


def test_attribution_is_in_the_metadata_of_every_library(tiny_reader):
    order = [i for i in fr.rerank(tiny_reader, QUESTION, TEXTS).indices if TEXTS[i]]
    wanted = fr.attribute(tiny_reader, QUESTION, [TEXTS[i] for i in order])
    assert np.abs(wanted.shapley).max() > 1e-3
    for found in each_library(reader=tiny_reader, attribute=True):
        assert {found[i][ANSWER] for i in order} == {wanted.answer}
        assert [found[i][ATTRIBUTION] for i in order] == pytest.approx(wanted.shapley.tolist(), abs=1e-6)
        assert ATTRIBUTION not in found[1] and ANSWER not in found[1]  # the document without text
    assert all(ATTRIBUTION not in own for found in each_library(reader=tiny_reader) for own in found.values())


def test_a_cache_reads_documents_once_in_every_library(tiny_reader):
    """Scores and contributions are the uncached ones, and saved settings lack the cache as they lack the reader."""
    import haystack
    import langchain_core.documents
    from llama_index.core.schema import NodeWithScore, TextNode

    from fastreader.integrations import langchain, llama_index, rerankers
    from haystack_integrations.components.rankers import fastreader

    full = [text for text in TEXTS if text]
    documents = [langchain_core.documents.Document(text) for text in full]
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in full]
    own = [haystack.Document(content=text) for text in full]
    caches = [fr.PassageCache() for _ in range(4)]
    first, second, third, fourth = (
        made(reader=tiny_reader, attribute=True, cache=cache)
        for made, cache in zip(
            (
                langchain.FastreaderRerank,
                llama_index.FastreaderRerank,
                fastreader.FastreaderRanker,
                rerankers.FastreaderRanker,
            ),
            caches,
            strict=True,
        )
    )
    first.top_n = second.top_n = third.top_k = None
    for question in (QUESTION, "Who sleeps?"):
        wanted = fr.rerank(tiny_reader, question, full)
        ranked = first.compress_documents(documents, question)
        shares = fr.attribute(tiny_reader, question, [full[i] for i in wanted.indices]).shapley
        assert [d.metadata[ATTRIBUTION] for d in ranked] == pytest.approx(shares.tolist(), abs=1e-5)
        scores = [
            [d.metadata["relevance_score"] for d in ranked],
            [node.score for node in second.postprocess_nodes(nodes, query_str=question)],
            [d.score for d in third.run(question, own)["documents"]],
            [result.score for result in fourth.rank(question, full).results],
        ]
        assert scores == [pytest.approx([result.relevance for result in wanted], abs=1e-6)] * 4
    # By ranking for each question, and with each attribution's own header besides.
    assert [cache.info().misses for cache in caches] == [caches[0].info().misses] * 4
    assert all(cache.info().hits >= len(full) and cache.info().misses < 3 * len(full) for cache in caches)
    assert "cache" not in {*first.model_dump(), *second.to_dict(), *third.to_dict()["init_parameters"]}


def test_an_empty_answer_is_noted_instead_of_attributed(tiny_reader, monkeypatch):
    from fastreader.integrations import common

    empty = common.read(tiny_reader, fr.Example(QUESTION, [fr.Passage("a")]), candidates=[])
    monkeypatch.setattr(common, "read", lambda *_, **__: dataclasses.replace(empty, text=""))
    for found in each_library(reader=tiny_reader, attribute=True):
        assert all(NO_ANSWER in found[i][NOTE] and ANSWER not in found[i] for i in (0, 2, 3, 4))


def test_a_relevance_model_cannot_attribute(tmp_path):
    import langchain_core.documents

    from fastreader.integrations.langchain import FastreaderRerank

    _, folder = logit_score(tmp_path, "Qwen3")
    own = FastreaderRerank(reader=fr.Reader.load(str(folder), check="off"), attribute=True)
    with pytest.raises(InputError, match="attribute: expected a reader that answers"):
        own.compress_documents([langchain_core.documents.Document(TEXTS[0])], QUESTION)


def test_a_relevance_model_scores_by_itself_in_every_library(tmp_path):
    import haystack
    import langchain_core.documents
    from llama_index.core.schema import NodeWithScore, TextNode

    from fastreader.integrations import langchain, llama_index, rerankers
    from haystack_integrations.components.rankers import fastreader

    _, folder = logit_score(tmp_path, "Qwen3")
    reader, how, text = fr.Reader.load(str(folder), check="off"), "Judge the length.", TEXTS[0]
    wanted = [fr.rerank(reader, QUESTION, [text], instruction=given)[0].relevance for given in (None, how)]
    assert abs(wanted[0] - wanted[1]) > 1e-4
    document = langchain_core.documents.Document(text)
    node, own = NodeWithScore(node=TextNode(text=text)), haystack.Document(content=text)
    for given, relevance in zip((None, how), wanted, strict=True):
        both = {"reader": reader, "instruction": given}
        [first] = langchain.FastreaderRerank(**both).compress_documents([document], QUESTION)
        [second] = llama_index.FastreaderRerank(**both).postprocess_nodes([node], query_str=QUESTION)
        [third] = fastreader.FastreaderRanker(**both).run(QUESTION, [own])["documents"]
        fourth = rerankers.FastreaderRanker(**both).rank(QUESTION, [text]).results[0]
        found = [first.metadata["relevance_score"], second.score, third.score, fourth.score]
        assert found == pytest.approx([relevance] * 4, abs=1e-6)


def test_first_calls_at_the_same_time_load_once(monkeypatch):
    from fastreader.integrations.common import _loaded, named_reader

    loads = []
    monkeypatch.setattr(fr.Reader, "load", lambda model, **_: loads.append(model) or time.sleep(0.1) or object())
    _loaded.cache_clear()
    try:
        with ThreadPoolExecutor(8) as pool:
            names = ["a", "b"] * 4
            found = list(pool.map(lambda name: named_reader(name, "cpu", "auto", "fast"), names))
    finally:
        _loaded.cache_clear()
    assert sorted(loads) == ["a", "b"] and len(set(map(id, found))) == 2


def test_a_missing_library_names_its_extra():
    libraries = {
        "dspy": "dspy",
        "langchain": "langchain_core",
        "llama_index": "llama_index.core",
        "lm_eval": "lm_eval",
        "pyterrier": "pyterrier",
        "rerankers": "rerankers",
    }
    code = """
import importlib, sys
from fastreader.errors import MissingExtraError
sys.modules.update(dict.fromkeys(sys.argv[2:]))
for name in sys.argv[1].split():
    try:
        importlib.import_module(f"fastreader.integrations.{name}")
    except MissingExtraError as error:
        print(error)
"""
    command = [sys.executable, "-c", code, " ".join(libraries), *libraries.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name, told in zip(libraries, done.stdout.splitlines(), strict=True):
        assert f"the extra {name.replace('_', '-')} of fastreader" in told


def test_integrations_are_not_imported_by_the_package():
    code = "import sys, fastreader as fr; fr.rerank; print([m for m in sys.modules if 'integrations' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
