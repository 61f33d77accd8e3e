"""fastreader inside LangChain, LlamaIndex, Haystack and rerankers: the real libraries, against fastreader.rerank."""

import asyncio
import os
import subprocess
import sys

import pytest

import fastreader as fr
from fastreader.errors import InputError
from fastreader.integrations.common import NOTE

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
        with pytest.raises(InputError, match="'relevance_score' in all metadata or in none"):
            FastreaderReorder("smollm2-135m").transform_documents(documents)


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

    def test_metadata_for_embedding_is_read(self, tiny_reader):
        from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

        from fastreader.integrations.llama_index import FastreaderRerank

        node = TextNode(text=TEXTS[0], metadata={"title": "Rivers"})
        (kept,) = FastreaderRerank(reader=tiny_reader).postprocess_nodes([NodeWithScore(node=node)], query_str=QUESTION)
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

    def test_a_pipeline_is_written_and_read(self, tiny_reader):
        from haystack import Pipeline

        from haystack_integrations.components.rankers.fastreader import FastreaderRanker

        pipeline = Pipeline()
        pipeline.add_component("ranker", FastreaderRanker("a", top_k=2, method="qg", reader=tiny_reader))
        again = Pipeline.loads(pipeline.dumps()).get_component("ranker")
        assert isinstance(again, FastreaderRanker)
        assert (again.model, again.top_k, again.method, again.reader) == ("a", 2, "qg", None)


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


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("dspy", "dspy"),
        ("langchain", "langchain_core"),
        ("llama_index", "llama_index.core"),
        ("lm_eval", "lm_eval"),
        ("pyterrier", "pyterrier"),
        ("rerankers", "rerankers"),
    ],
)
def test_a_missing_library_names_its_extra(name, library):
    code = f"import sys; sys.modules[{library!r}] = None; import fastreader.integrations.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode and f"pip install 'fastreader[{name.replace('_', '-')}]'" in done.stderr


def test_integrations_are_not_imported_by_the_package():
    code = "import sys, fastreader as fr; fr.rerank; print([m for m in sys.modules if 'integrations' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
