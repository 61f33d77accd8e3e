"""One row for each public callable: arguments with which it succeeds. The fuzz tests replace them one or two at a time.

A row is a function of the `World` that returns keyword arguments, or (object, keyword arguments) for a method. Rows of
callables that need what tests do not have (a model to download) say with which error their base call ends.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers.engine_server import Engine, in_process
from helpers.support import byte_tokenizer, tiny_llama

import fastreader as fr
from fastreader import eor, errors, moi, noise, statistics, sure
from fastreader.core.options import StepOptions
from fastreader.eor.similarity.base import Pair
from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.relevance import RelevanceScheme
from fastreader.moi import baselines, distill
from fastreader.reader.programs.readers import Readers
from fastreader.reader.relevance_head import RelevanceHead
from fastreader.study import RunFolder, Study
from fastreader.study.dry_reader import DryReader
from fastreader.sure import variants
from fastreader.sure.task import Task

QUESTION = "Which river is in Cairo?"
TEXTS = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot."]
OUTCOMES = {"a": {1: 1.0, 2: 0.0, 3: 1.0}, "b": {1: 0.0, 2: 0.0, 3: 1.0}}
A, B = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]


def encode(texts: Any) -> np.ndarray:
    """Encode sentences by counting letters."""
    return np.array([[text.count("e") + 1.0, len(text) + 1.0] for text in texts], dtype=np.float32)


class Rate:
    """A cross-encoder that prefers short passages."""

    def predict(self, pairs: list, **_: Any) -> np.ndarray:
        return np.array([-float(len(pair[1])) for pair in pairs])


def reranker():
    """A reader that scores a query with a document by two tokens."""
    reader = fr.Reader.load((tiny_llama(), byte_tokenizer()), check="off")
    reader.local_model.relevance = RelevanceHead(RelevanceScheme(rows=(5, 6)))
    return reader


@dataclass
class World:
    """Small objects of every kind, made once. Rows copy what calls change."""

    folder: Path
    reader: Any = None
    passages: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = fr.Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")
        self.passages = [
            fr.Passage(text, f"Title {i}", str(i), 3.0 - i, is_gold=i == 0, has_answer=i == 0)
            for i, text in enumerate(TEXTS)
        ]
        self.pool = [fr.Passage(f"{i} plus {i} is {2 * i}.", f"Sums {i}", f"s{i}") for i in range(9)]
        self.example = fr.Example(QUESTION, self.passages, ["Nile"], ["the Nile", "the Seine"], "q")
        self.other = fr.Example(
            "Where is the Seine?", [fr.Passage("It is in Paris.", "Seine", "s", 1.0)], ["Paris"], id="p"
        )
        self.session = self.reader.session("Answer")
        self.reranker = reranker().session(cache_scored=True)
        self.transport = in_process(Engine(self.reader, "vllm"))
        self.several = fr.ReaderPool([self.reader])
        self.server = fr.ServerReader("http://engine", "tiny", byte_tokenizer(chat=True), transport=self.transport)
        self.scores = fr.score_permutations(self.reader, self.example)
        self.more = [fr.score_permutations(self.reader, f"Why {i}?", self.passages, ["a", "b"]) for i in range(5)]
        self.bias = moi.calibrate(self.more, resamples=20)
        self.signed = dataclasses.replace(self.bias, sign="query_likelihood")
        self.utilities = moi.debias(self.scores, self.bias)
        self.observations = moi.observe(self.scores)
        self.whole = dataclasses.replace(self.observations, qg=[-3.0, -2.0, -4.0])
        self.unlabelled = [fr.Example(f"Why {i}?", self.passages) for i in range(20)]
        self.reranked = fr.rerank(self.reader, self.example)
        self.conflicts = fr.conflicts(self.reader, QUESTION, self.passages, ["Nile", "Seine"])
        self.attribution = fr.attribute(self.reader, QUESTION, self.passages, "Nile")
        self.sufficiency = fr.sufficient(self.reader, QUESTION, self.passages)
        self.ranked = moi.rerank(self.reader, QUESTION, self.passages)
        self.probe = moi.probe(self.reader, [self.example], [0])
        self.materials = noise.gather(self.example, random=noise.DistractorPool(self.pool), random_count=1)
        self.noise_answers = noise.ask(
            self.reader, [self.materials], ["gold", "closed_book", "random:1:near"], max_new_tokens=2
        )[0]
        self.summary = noise.summarise([self.noise_answers], resamples=20)
        self.attention = noise.answer_attention(self.reader, self.materials, {"gold": "Nile"})
        self.votes = [
            eor.Answers(QUESTION, ["r", "s", "t"], ["Nile", "the Nile", "Seine"], right=["Nile"]),
            eor.Answers("Where is the Seine?", ["r", "s", "t"], ["Rome", "Paris", "Paris"], right=["Paris"]),
        ]
        self.voter = eor.Voter(starts=1, max_evaluations=20).fit(self.votes, [[1, 1, 0], [0, 1, 1]])
        self.vote = self.voter.vote(self.votes[0])
        self.retrieval = eor.Retrieval(QUESTION, [eor.Document("r", self.passages)], ["Nile"], "q")
        self.retrievers = eor.Retrievers(["R@1"], {"R": lambda question: self.passages})
        self.lesson = distill.make_lessons([self.example], [self.scores])[0]
        self.student = distill.Student(tiny_llama(), byte_tokenizer(chat=True), "tiny", distill.LoraSettings(rank=1))
        self.evaluation = distill.compare([np.zeros(2)], [np.ones(2)])
        self.sure = sure.answer(self.reader, QUESTION, self.passages, max_summary_tokens=2, max_candidate_tokens=2)
        self.comparison = statistics.compare(OUTCOMES, "a", resamples=20)
        self.tree = fr.PrefixTree.build([([5, 6], [7, 8])])
        self.gold_places = moi.analyses.gold_places(self.reader, [self.example])
        self.polarity = moi.analyses.polarity(self.reader, [self.example], {"a": [[0, 1, 2]]})[0]
        self.asked_sure = sure.ask(self.reader, QUESTION, self.passages, method="base", max_answer_tokens=2)
        self.task = Task(
            QUESTION, self.passages, sure.Settings(max_answer_tokens=2), Readers(self.reader, None, ("answer",))
        )
        self.write()
        self.study = Study.of(self.study_values())

    def write(self) -> None:
        """Write one file of each format."""
        fr.save_examples([self.example], self.path("examples.jsonl"))
        self.path("passages.jsonl").write_text('{"id": "1", "text": "The Nile."}\n')
        self.path("questions.jsonl").write_text('{"id": "q", "question": "Why?", "answers": ["so"]}\n')
        self.path("queries.jsonl").write_text('{"_id": "q", "text": "Why?"}\n')
        self.path("corpus.jsonl").write_text('{"_id": "d", "text": "So."}\n')
        self.path("run.trec").write_text("q Q0 d 1 2.5 x\n")
        self.path("qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
        self.path("template.json").write_text(json.dumps({"separator": " "}))
        self.path("texts.json").write_text("{}")
        self.scores.save(self.path("scores.json"))
        moi.Pool().save(self.path("pool.json"))
        self.conflicts.save(self.path("conflicts.json"))
        self.attribution.save(self.path("attribution.json"))
        self.sufficiency.save(self.path("sufficiency.json"))
        self.bias.save(self.path("bias.json"))
        fr.Arranger({3: [0.8, -0.3, -0.5]}).save(self.path("arranger.json"))
        self.voter.save(self.path("voter.json"))
        self.path("study.json").write_text(json.dumps(self.study_values()))
        eor.Idf(2, {"a": 1}).save(self.path("idf.json"))
        eor.build_index(self.passages, self.path("index"))

    def path(self, name: str) -> Path:
        """A path in the folder that calls may write to."""
        return self.folder / name

    def saved_reader(self) -> Path:
        """A folder with a model and its tokenizer."""
        folder = self.path("reader")
        if not folder.exists():
            tiny_llama().save_pretrained(folder)
            byte_tokenizer(chat=True).save_pretrained(folder)
        return folder

    def dry_reader(self, name: str) -> DryReader:
        """A reader without weights."""
        return DryReader(self.reader.encoder, {"name": name})

    def asked(self) -> dict[str, Any]:
        """A reader, a question and its passages."""
        return {"reader": self.reader, "question": QUESTION, "passages": list(self.passages)}

    def fresh_folder(self) -> Path:
        """A folder that no other call writes to."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def begun(self) -> RunFolder:
        """The folder of a study that has begun."""
        run = RunFolder(self.fresh_folder())
        run.begin(self.study, False)
        return run

    def study_values(self) -> dict[str, Any]:
        """A study of one question."""
        return {"data": str(self.path("examples.jsonl")), "readers": ["tiny"], "methods": ["base"]}


Row = Callable[[World], Any]


def fields_of(record: Any) -> dict[str, Any]:
    """Return the arguments that construct a dataclass again."""
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.init}


CHAT = {"system": "Be brief.", "chat": True, "chat_options": {}}
LOGLIKELIHOOD = {
    "token_logprobs": False,
    "special_tokens": False,
    "on_overflow": "error",
    "max_batch_tokens": 500,
    "progress": False,
}
SCORE = {
    "seed": 0,
    "prune": 2,
    "prune_mass": None,
    "template": None,
    "question_only": False,
    "score_passages": False,
    "closed_book": False,
    "query_likelihood": False,
    "token_logprobs": False,
    "on_overflow": "error",
    "max_batch_tokens": 500,
}
GENERATE = {
    "max_new_tokens": 2,
    "n": 1,
    "temperature": 0.0,
    "top_k": None,
    "top_p": None,
    "repetition_penalty": 1.5,
    "seed": 0,
    "stop": ["\n"],
    "stop_token_ids": [1],
    **LOGLIKELIHOOD,
}
RERANK = {
    "order": "matched",
    "max_passages": 3,
    "permutations": "cyclic",
    "prune": None,
    "prune_mass": None,
    "template": None,
    "stopping": None,
    "seed": 0,
    "on_overflow": "error",
    "max_batch_tokens": 500,
    "pool": None,
    "kind": None,
}

ROWS: dict[str, Row] = {
    "Session": lambda w: {
        "local_model": w.reader.local_model,
        "max_bytes": None,
        "cache_scored": False,
        "passages": None,
    },
    "Session.continuation": lambda w: (w.session, {"text": "Nile", "end": True, **CHAT}),
    "Session.generate": lambda w: (w.session, {"prompts": ["Answer"], **GENERATE}),
    "Session.generate_steps": lambda w: (
        w.session,
        {"prompts": ["Answer"], "options": StepOptions(max_new_tokens=2, progress=False)},
    ),
    "Session.loglikelihood": lambda w: (w.session, {"requests": [("Answer", " Nile")], **LOGLIKELIHOOD}),
    "Session.plan": lambda w: (w.session, {"sequences": [([5], [6])], "max_batch_tokens": 50, "new_tokens": 0}),
    "Session.prefill": lambda w: (
        w.reader.session("A"),
        {"prefixes": ("B",), "special_tokens": True, "max_batch_tokens": 50, **CHAT},
    ),
    "Session.prefix": lambda w: (w.session, {"pieces": ["a", "b"], **CHAT}),
    "Session.prompt": lambda w: (w.session, {"pieces": ["a", "b"], "lead": "", **CHAT}),
    "Session.score": lambda w: (
        w.session,
        {"sequences": [([5], [6])], "max_batch_tokens": 50, "trees": None, "top_tokens": 2},
    ),
    "Session.session": lambda w: (w.session, {"prefixes": ("B",), "max_bytes": None, "cache_scored": False, **CHAT}),
    "Session.relevance_scores": lambda w: (
        w.reranker,
        {"pairs": [("a", "b")], "instruction": None, "on_overflow": "truncate", "max_batch_tokens": 50},
    ),
    "ReaderPool": lambda w: {"readers": [w.reader]},
    "ReaderPool.generate": lambda w: (w.several, {"prompts": ["Answer"], **GENERATE}),
    "ReaderPool.load": lambda w: {"model": w.saved_reader(), "devices": ["cpu"]},
    "ReaderPool.loglikelihood": lambda w: (w.several, {"requests": [("Answer", " Nile")], **LOGLIKELIHOOD}),
    "ReaderPool.plan": lambda w: (w.several, {"sequences": [([5], [6])], "max_batch_tokens": 50, "new_tokens": 0}),
    "ReaderPool.score": lambda w: (w.several, {"sequences": [([5], [6])], "max_batch_tokens": 50, "trees": None}),
    "ServerReader": lambda w: {
        "url": "http://engine",
        "model": "tiny",
        "tokenizer": byte_tokenizer(),
        "engine": "vllm",
        "max_length": 512,
        "api_key": "key",
        "concurrency": 2,
        "timeout": 5.0,
        "retries": 0,
        "transport": w.transport,
    },
    "ServerReader.generate": lambda w: (w.server, {"prompts": ["Answer"], **GENERATE}),
    "ServerReader.plan": lambda w: (w.server, {"sequences": [([5], [6])], "max_batch_tokens": 50, "new_tokens": 0}),
    "ServerReader.score": lambda w: (w.server, {"sequences": [([5], [6])], "max_batch_tokens": 50, "trees": None}),
    "Example": lambda w: fields_of(w.example),
    "Passage": lambda w: fields_of(w.passages[0]),
    "PermutationScores.consensus": lambda w: (w.scores, {"by": "sum"}),
    "PermutationScores.from_dict": lambda w: {"values": w.scores.to_dict()},
    "PermutationScores.normalised": lambda w: (w.scores, {"by": "sum"}),
    "PermutationScores.plot": lambda w: (w.scores, {"path": w.path("plot.png")}),
    "PermutationScores.probabilities": lambda w: (w.scores, {"by": "sum"}),
    "PrefixTree.build": lambda w: {"sequences": [([5], [6])]},
    "PrefixTree.path": lambda w: (w.tree, {"index": 1}),
    "Reader": lambda w: {
        "loaded": load(LoadOptions((tiny_llama(), byte_tokenizer()), "cpu", "float32", "exact")),
        "check": "quick",
    },
    "Reader.load": lambda w: {
        "model": (tiny_llama(), byte_tokenizer()),
        "device": "cpu",
        "dtype": "float32",
        "precision": "exact",
        "products": "auto",
        "check": "quick",
        "trust_remote_code": False,
        "deterministic": False,
        "adapter": None,
        "device_map": None,
    },
    "Reader.session": lambda w: (
        w.reader,
        {
            "prefixes": ("B",),
            "max_bytes": None,
            "cache_scored": False,
            "special_tokens": True,
            "max_batch_tokens": 50,
            **CHAT,
        },
    ),
    "Reader.with_cache": lambda w: (w.reader, {"cache": fr.PassageCache()}),
    "PassageCache": lambda w: {
        "max_bytes": 1 << 20,
        "folder": w.path("passages"),
        "max_folder_bytes": 1 << 20,
        "stored": "int8",
    },
    "cache_passages": lambda w: {
        "reader": w.reader,
        "passages": ["A b.", "C d."],
        "cache": fr.PassageCache(),
        "template": fr.Template(),
        "max_batch_tokens": 50,
        "progress": False,
    },
    "passages_cost": lambda w: {
        "reader": w.reader,
        "passages": ["A b.", "C d."],
        "cache": fr.PassageCache(),
        "template": fr.Template(),
    },
    "Template": lambda w: fields_of(fr.Template()),
    "Template.from_dict": lambda w: {"values": {"separator": " "}},
    "Template.load": lambda w: {"path": w.path("template.json")},
    "load_examples": lambda w: {"path": w.path("examples.jsonl"), "limit": 1, "skip_errors": False},
    "permutation_cost": lambda w: {
        **w.asked(),
        "candidates": ["the Nile"],
        "permutations": "cyclic",
        "cache": fr.PassageCache(),
        **SCORE,
    },
    "rerank": lambda w: {
        **w.asked(),
        "method": "query_likelihood",
        "top_n": 2,
        "instruction": None,
        "template": None,
        "bias": None,
        "uncalibrated": False,
        "seed": 0,
        "on_overflow": "truncate",
        "max_batch_tokens": 500,
        "progress": False,
        "cache": fr.PassageCache(),
    },
    "classify": lambda w: {
        "reader": w.reader,
        "prompts": ["Is it long?"],
        "labels": ["yes", "no"],
        "end": False,
        "neutral": ["N/A"],
        "system": None,
        "chat": None,
        "max_batch_tokens": 500,
    },
    "fuse": lambda w: {"rankings": [["a", "b"], ["b"]], "k": 60.0, "weights": [1.0, 2.0], "top_n": 2},
    "sensitivity": lambda w: {
        **w.asked(),
        "candidates": ["Nile", "Rhine"],
        "permutations": "random",
        "seed": 1,
        "template": None,
        "max_new_tokens": 2,
        "max_batch_tokens": 500,
    },
    "attribute": lambda w: {
        **w.asked(),
        "answer": "Nile",
        "way": "sampled",
        "orders": 2,
        "subsets": 3,
        "pairs": True,
        "penalty": 0.1,
        "seed": 1,
        "template": None,
        "on_overflow": "truncate",
        "max_new_tokens": 2,
        "max_batch_tokens": 500,
        "cache": fr.PassageCache(),
    },
    "Attribution.plot": lambda w: (w.attribution, {"path": w.path("attribution.png")}),
    "Attribution.from_dict": lambda w: {"values": w.attribution.to_dict()},
    "conflicts": lambda w: {
        **w.asked(),
        "candidates": ["Nile", "Seine"],
        "aliases": {"Nile": ["River of Egypt"]},
        "template": None,
        "max_batch_tokens": 500,
        "cache": fr.PassageCache(),
    },
    "sufficient": lambda w: {**w.asked(), "template": None, "on_overflow": "truncate", "max_batch_tokens": 500},
    "Sufficiency.from_dict": lambda w: {"values": w.sufficiency.to_dict()},
    "Conflicts.from_dict": lambda w: {"values": w.conflicts.to_dict()},
    "save_examples": lambda w: {
        "examples": [w.example],
        "path": w.path("out.jsonl"),
        "format": "dpr",
        "tag": "fastreader",
    },
    "save_trec_run": lambda w: {"rankings": [w.reranked], "path": w.path("out.trec"), "tag": "fastreader"},
    "score_permutations": lambda w: {
        **w.asked(),
        "candidates": ["the Nile"],
        "permutations": "cyclic",
        **SCORE,
        "progress": False,
        "on_error": None,
        "cache": fr.PassageCache(),
    },
    "data.iter_examples": lambda w: {"path": w.path("examples.jsonl"), "limit": 1, "on_error": None},
    "data.iter_passages": lambda w: {"path": w.path("passages.jsonl")},
    "data.load_beir": lambda w: {
        "corpus": w.path("corpus.jsonl"),
        "queries": w.path("queries.jsonl"),
        "run": w.path("run.trec"),
        "qrels": w.path("qrels.tsv"),
        "top_k": 1,
        "limit": 1,
    },
    "data.load_passages": lambda w: {"path": w.path("passages.jsonl")},
    "data.load_qrels": lambda w: {"path": w.path("qrels.tsv")},
    "data.load_questions": lambda w: {"path": w.path("questions.jsonl"), "limit": 1},
    "data.sample_passages": lambda w: {"path": w.path("passages.jsonl"), "count": 2, "seed": 3},
    "eor.Answers": lambda w: fields_of(w.votes[0]),
    "eor.Answers.from_dict": lambda w: {"values": w.votes[0].to_dict()},
    "eor.Answers.select": lambda w: (w.votes[0], {"retrievers": ["r"]}),
    "eor.BM25": lambda w: {"passages": w.passages, "depth": 2, "language": "english"},
    "eor.BM25.load": lambda w: {"folder": w.path("index"), "depth": 2},
    "eor.Cosine": lambda w: {"encoder": encode},
    "eor.Dense": lambda w: {"encoder": encode, "passages": w.passages, "depth": 2, "vectors": None},
    "eor.Document": lambda w: {"retriever": "r", "passages": w.passages, "failure": None, "notes": []},
    "eor.Exact": lambda w: {"match": "contains"},
    "eor.Exact.tables": lambda w: (eor.Exact(), {"questions": ["q"], "texts": [["a", "b"]]}),
    "eor.F1.tables": lambda w: (eor.F1(), {"questions": ["q"], "texts": [["a", "b"]]}),
    "eor.Function": lambda w: {"name": "f", "function": lambda a, b: 1.0, "symmetric": True},
    "eor.Idf": lambda w: {"documents": 2, "counts": {"a": 1}},
    "eor.Idf.from_dict": lambda w: {"values": {"documents": 2, "counts": {"a": 1}}},
    "eor.Idf.weight": lambda w: (eor.Idf(2, {"a": 1}), {"token": "a"}),
    "eor.Limits": lambda w: fields_of(eor.Limits()),
    "eor.NliTexts": lambda w: fields_of(eor.NliTexts()),
    "eor.NliTexts.logprobs": lambda w: (
        eor.NliTexts(),
        {"reader": w.reader, "pairs": [Pair("q", "a", "b")]},
    ),
    "eor.QuestionLikelihood": lambda w: {"reader": w.reader, "texts": None},
    "eor.QuestionLikelihood.score_many": lambda w: (
        eor.QuestionLikelihood(w.reader),
        {"questions": ["q"], "passages": [w.passages]},
    ),
    "eor.ReaderNli": lambda w: {"reader": w.reader, "texts": None},
    "eor.ReaderNli.tables": lambda w: (eor.ReaderNli(w.reader), {"questions": ["q"], "texts": [["a", "b"]]}),
    "eor.Retrieval": lambda w: {"question": QUESTION, "documents": [], "right": [], "id": None},
    "eor.Retrievers": lambda w: {
        "specs": ["R@1"],
        "sources": {"R": lambda question: w.passages},
        "reader": w.reader,
        "scorer": None,
        "limits": None,
        "texts": None,
        "aliases": None,
        "on_error": "record",
        "max_new_tokens": 2,
    },
    "eor.Retrievers.retrieve": lambda w: (w.retrievers, {"questions": [QUESTION]}),
    "eor.Texts": lambda w: fields_of(eor.Texts()),
    "eor.Texts.of": lambda w: (eor.Texts(), {"passage": w.passages[0]}),
    "eor.Texts.reading": lambda w: (eor.Texts(), {"question": QUESTION, "passages": w.passages}),
    "eor.Vote.from_dict": lambda w: {"values": w.vote.to_dict()},
    "eor.Voter.fit": lambda w: (eor.Voter(starts=1, max_evaluations=9), {"X": w.votes, "y": [[1, 1, 0], [0, 1, 1]]}),
    "eor.Voter.from_dict": lambda w: {"values": w.voter.to_dict(), "similarities": None, "accept": None},
    "eor.Voter.get_params": lambda w: (w.voter, {"deep": True}),
    "eor.Voter.load": lambda w: {"path": w.path("voter.json"), "similarities": None, "accept": None},
    "eor.Voter.predict": lambda w: (w.voter, {"X": w.votes}),
    "eor.Voter.save": lambda w: (w.voter, {"path": w.path("out.json")}),
    "eor.Voter.score": lambda w: (w.voter, {"X": w.votes, "y": [[1, 1, 0], [0, 1, 1]]}),
    "eor.Voter.vote": lambda w: (w.voter, {"answers": w.votes[0]}),
    "eor.Voter.winners": lambda w: (w.voter, {"X": w.votes}),
    "eor.Voter.accept": lambda w: (w.voter, {"text": "Nile"}),
    "eor.answer": lambda w: {
        "reader": w.reader,
        "retrievals": [w.retrieval],
        "texts": None,
        "max_new_tokens": 2,
        "keep_documents": False,
    },
    "eor.as_source": lambda w: {"found": lambda question: w.passages},
    "eor.build_index": lambda w: {
        "corpus": w.passages,
        "folder": Path(tempfile.mkdtemp(dir=w.folder)) / "index",
        "language": "english",
        "replace": False,
    },
    "eor.correctness": lambda w: {"answers": w.votes, "measure": "em"},
    "eor.is_answer": lambda w: {"text": "Nile"},
    "eor.is_refusal": lambda w: {"text": "Nile"},
    "eor.PrecomputedHits": lambda w: {"path": [w.example], "depth": 2},
    "eor.load_texts": lambda w: {"found": w.path("texts.json")},
    "eor.open_source": lambda w: {"path": w.path("passages.jsonl"), "depth": 2},
    "eor.parse": lambda w: {"text": "R@1"},
    "eor.similarity.resolve": lambda w: {"found": "f1", "reader": None},
    "eor.similarity.tensor": lambda w: {
        "similarities": [eor.Exact()],
        "questions": ["q"],
        "texts": [["a", None]],
        "usable": np.array([[True, False]]),
    },
    "moi.Observations": lambda w: fields_of(w.observations),
    "moi.PositionBias": lambda w: fields_of(w.bias),
    "moi.PositionBias.from_dict": lambda w: {"values": w.bias.to_dict()},
    "moi.PositionBias.plot": lambda w: (w.bias, {"path": w.path("plot.png")}),
    "moi.Probe": lambda w: fields_of(w.probe),
    "moi.Probe.from_dict": lambda w: {"values": w.probe.to_dict()},
    "moi.Stopping": lambda w: {"p_best": 0.9, "same_order": 2, "most": None},
    "moi.Stopping.settled": lambda w: (moi.Stopping(), {"history": [w.utilities]}),
    "moi.Utilities.order": lambda w: (w.utilities, {"kind": "matched"}),
    "arrange": lambda w: {
        "passages": list(w.passages),
        "bias": fr.Arranger({3: [0.8, -0.3, -0.5]}),
        "scores": [1.0, 2.0, 3.0],
    },
    "Arranger": lambda w: {"biases": {3: [0.8, -0.3, -0.5]}, "reader": {}, "template": ""},
    "Arranger.bias": lambda w: (fr.Arranger({3: [0.8, -0.3, -0.5]}), {"n": 4}),
    "Arranger.for_reader": lambda w: {"reader": "smollm2-135m", "template": None},
    "Arranger.from_dict": lambda w: {"values": fr.Arranger({3: [0.8, -0.3, -0.5]}).to_dict()},
    "Arranger.load": lambda w: {"path": w.path("arranger.json")},
    "Arranger.of": lambda w: {"biases": [dataclasses.replace(w.signed, flat=False, identified=True)]},
    "Arranger.order": lambda w: (fr.Arranger({3: [0.8, -0.3, -0.5]}), {"scores": [1.0, 2.0, 3.0]}),
    "Arranger.save": lambda w: (fr.Arranger({3: [0.8, -0.3, -0.5]}), {"path": w.path("arranger-out.json")}),
    "moi.answer": lambda w: {
        **w.asked(),
        "bias": w.bias,
        "scorer": None,
        "candidates": None,
        "max_new_tokens": 2,
        "max_passages": 3,
    },
    "moi.marginal_answer": lambda w: {
        **w.asked(),
        "permutations": "cyclic",
        "seed": 0,
        "template": None,
        "max_new_tokens": 2,
        "max_batch_tokens": 500,
    },
    "moi.calibrate": lambda w: {
        "scores": w.more,
        "kind": "question",
        "per_token": False,
        "candidate": None,
        "contrast": None,
        "gold": None,
        "confidence_level": 0.95,
        "resamples": 20,
        "starts": 2,
        "folds": 2,
        "seed": 0,
    },
    "moi.Pool": lambda w: {"most": 30},
    "moi.Pool.add": lambda w: (moi.Pool(), {"observed": w.whole}),
    "moi.Pool.bias": lambda w: (moi.Pool(), {"reader": {"name": "r"}, "template": "t", "passages": 3}),
    "moi.Pool.count": lambda w: (moi.Pool(), {"reader": {"name": "r"}, "template": "t", "passages": 3}),
    "moi.Pool.state": lambda w: (moi.Pool(), {"reader": {"name": "r"}, "template": "t", "passages": 3}),
    "moi.Pool.load": lambda w: {"path": w.path("pool.json")},
    "moi.Pool.save": lambda w: (moi.Pool(), {"path": w.path("pool-out.json")}),
    "moi.calibrate_reader": lambda w: {
        "reader": w.reader,
        "questions": w.unlabelled,
        "num_passages": 3,
        "template": None,
        "most": 20,
        "output": None,
        "keep": False,
        "seed": 0,
        "max_batch_tokens": 500,
        "progress": False,
    },
    "moi.calibration_cost": lambda w: {
        "reader": w.reader,
        "questions": w.unlabelled,
        "num_passages": 3,
        "template": None,
        "most": 20,
        "seed": 0,
        "max_batch_tokens": 500,
    },
    "moi.debias": lambda w: {
        "scores": w.scores,
        "bias": w.bias,
        "method": "calibrated",
        "confidence_level": 0.95,
        "solver": "auto",
        "starts": 2,
        "seed": 0,
        "candidate": None,
    },
    "moi.observe": lambda w: {
        "scores": w.scores,
        "kind": "question",
        "per_token": False,
        "candidate": None,
        "passages": None,
    },
    "moi.plan": lambda w: {**w.asked(), "bias": w.bias, **RERANK},
    "moi.probe": lambda w: {
        "reader": w.reader,
        "examples": [w.example],
        "gold": [0],
        "template": None,
        "max_batch_tokens": 500,
        "progress": False,
    },
    "moi.rerank": lambda w: {**w.asked(), "bias": w.bias, **RERANK},
    "moi.analyses.GoldPlaces.by_place": lambda w: (w.gold_places, {"measure": "nats"}),
    "moi.analyses.Polarity.loss": lambda w: (w.polarity, {"measure": "nats"}),
    "moi.analyses.first_token_distances": lambda w: {
        **w.asked(),
        "permutations": [[0, 1, 2], [2, 1, 0]],
        "template": None,
        "max_batch_tokens": 500,
    },
    "moi.analyses.gold_places": lambda w: {"reader": w.reader, "examples": [w.example]},
    "moi.analyses.gold_ranks": lambda w: {"orders": [[0, 1]], "gold": [0]},
    "moi.analyses.mean_bias": lambda w: {"scores": [w.scores], "starts": 2, "seed": 0},
    "moi.analyses.partition_means": lambda w: {
        "distances": np.array([[0.0, 1.0], [1.0, 0.0]]),
        "permutations": [[0, 1, 2], [0, 2, 1]],
    },
    "moi.analyses.polarity": lambda w: {
        "reader": w.reader,
        "examples": [w.example],
        "orders": {"a": [[0, 1, 2]]},
    },
    "moi.baselines.FirstTokenPrompt": lambda w: fields_of(baselines.FirstTokenPrompt()),
    "moi.baselines.ListwisePrompt": lambda w: fields_of(baselines.ListwisePrompt()),
    "moi.baselines.Method": lambda w: fields_of(next(iter(baselines.METHODS.values()))),
    "moi.baselines.Ordering": lambda w: fields_of(baselines.retriever(**w.asked())),
    "moi.baselines.PairwisePrompt": lambda w: fields_of(baselines.PairwisePrompt()),
    "moi.baselines.backwards": lambda w: w.asked(),
    "moi.baselines.bayes_saliency": lambda w: {**w.asked(), "template": None, "max_batch_tokens": 500},
    "moi.baselines.bayes_saliency_plus": lambda w: {**w.asked(), "template": None, "max_batch_tokens": 500},
    "moi.baselines.best_at_the_ends": lambda w: w.asked(),
    "moi.baselines.cross_encoder": lambda w: {**w.asked(), "model": Rate(), "batch": 2},
    "moi.baselines.gold_of": lambda w: {"passages": w.passages, "marks": ("is_gold",)},
    "moi.baselines.first_token": lambda w: {
        **w.asked(),
        "orders": 2,
        "window": 2,
        "step": 1,
        "seed": 0,
        "prompt": None,
        "max_batch_tokens": 500,
    },
    "moi.baselines.listwise": lambda w: {
        **w.asked(),
        "prompt": None,
        "window": 2,
        "step": 1,
        "max_new_tokens": 2,
        "max_batch_tokens": 500,
    },
    "moi.baselines.long_context_reorder": lambda w: w.asked(),
    "moi.baselines.long_llm_lingua": lambda w: {**w.asked(), "template": None, "max_batch_tokens": 500},
    "moi.baselines.moi_paper": lambda w: {
        **w.asked(),
        "sign": "query_likelihood",
        "permutations": "random",
        "prune": None,
        "prune_mass": None,
        "order": "matched",
        "bias": None,
        "seed": 1,
        "template": None,
        "max_batch_tokens": 500,
    },
    "moi.baselines.oracle": lambda w: {**w.asked(), "bias": None, "place": 1},
    "moi.baselines.pairwise": lambda w: {
        **w.asked(),
        "prompt": None,
        "aggregate": "wins",
        "max_batch_tokens": 500,
    },
    "moi.baselines.permutation_self_consistency": lambda w: {
        **w.asked(),
        "count": 2,
        "aggregate": "kemeny",
        "seed": 0,
        "prompt": None,
        "max_new_tokens": 2,
        "max_batch_tokens": 500,
    },
    "moi.baselines.qg": lambda w: {**w.asked(), "template": None, "max_batch_tokens": 500},
    "moi.baselines.random": lambda w: {**w.asked(), "seed": 0},
    "moi.baselines.retriever": lambda w: w.asked(),
    "moi.baselines.score_matched": lambda w: {"scores": [3.0, 2.0, 1.0], "bias": w.signed},
    "moi.baselines.self_consistency": lambda w: {
        **w.asked(),
        "count": 2,
        "seed": 0,
        "template": None,
        "max_new_tokens": 2,
        "stop": ["\n"],
    },
    "moi.distill.DistillSettings": lambda w: fields_of(distill.DistillSettings()),
    "moi.distill.DistillSettings.learning_rate_at": lambda w: (distill.DistillSettings(), {"step": 1, "steps": 4}),
    "moi.distill.Lesson": lambda w: fields_of(w.lesson),
    "moi.distill.LoraSettings": lambda w: fields_of(distill.LoraSettings()),
    "moi.distill.Student": lambda w: {
        "model": tiny_llama(),
        "tokenizer": byte_tokenizer(),
        "name": "tiny",
        "lora": distill.LoraSettings(rank=1),
    },
    "moi.distill.Student.export": lambda w: (w.student, {"folder": w.path("export")}),
    "moi.distill.Student.load": lambda w: {
        "model": (tiny_llama(), byte_tokenizer()),
        "device": "cpu",
        "dtype": "float32",
        "lora": None,
    },
    "moi.distill.Student.loglikelihood": lambda w: (w.student, {"sequences": [([5], [6])]}),
    "moi.distill.Student.save_adapter": lambda w: (w.student, {"folder": w.path("adapter")}),
    "moi.distill.Student.set_adapter": lambda w: (w.student, {"weights": w.student.adapter()}),
    "moi.distill.Student.pair_logprobs": lambda w: (w.student, {"tree": w.tree}),
    "moi.distill.Student.train": lambda w: (w.student, {"on": True, "gradient_checkpointing": False}),
    "moi.distill.compare": lambda w: {
        "teacher": [np.zeros(2)],
        "student": [np.ones(2)],
        "temperature": 1.0,
        "direction": "forward",
    },
    "moi.distill.distill": lambda w: {
        "student": w.student,
        "lessons": [w.lesson],
        "output": w.fresh_folder(),
        "settings": distill.DistillSettings(epochs=1),
        "template": None,
        "held_out": (),
        "resume": False,
        "max_steps": 1,
        "progress": False,
    },
    "moi.distill.evaluate": lambda w: {
        "student": w.student,
        "lessons": [w.lesson],
        "settings": distill.DistillSettings(),
        "template": None,
    },
    "moi.distill.make_lessons": lambda w: {
        "examples": [w.example],
        "scores": [w.scores],
        "observation": "question",
    },
    "moi.distill.read_teacher": lambda w: {"path": w.path("nowhere")},
    "noise.AnswerAttention.from_dict": lambda w: {"values": w.attention["gold"].to_dict()},
    "noise.Layout": lambda w: fields_of(noise.layout(w.materials, "gold")),
    "noise.LayoutSpec": lambda w: fields_of(noise.LayoutSpec.parse("random:1:near")),
    "noise.LayoutSpec.parse": lambda w: {"name": "random:1:near"},
    "noise.Materials": lambda w: fields_of(w.materials),
    "noise.NoiseAnswers.from_dict": lambda w: {"id": "q", "row": w.noise_answers.to_dict()},
    "noise.NoiseTemplate": lambda w: fields_of(noise.NoiseTemplate()),
    "noise.NoiseTemplate.pieces": lambda w: (noise.NoiseTemplate(), {"question": QUESTION, "passages": w.passages}),
    "noise.NoiseTemplate.refused": lambda w: (noise.NoiseTemplate(), {"reply": "NO-RES"}),
    "noise.DistractorPool": lambda w: {"passages": w.pool, "seed": 0},
    "noise.DistractorPool.draw": lambda w: (
        noise.DistractorPool(w.pool),
        {"count": 1, "key": "q", "accept": lambda passage: True},
    ),
    "noise.RandomWords": lambda w: {"vocabulary": ["a", "b"], "length": 3, "seed": 0},
    "noise.RandomWords.draw": lambda w: (
        noise.RandomWords(["a"], 2),
        {"count": 1, "key": "q", "accept": lambda passage: True},
    ),
    "noise.RandomWords.of": lambda w: {"passages": w.passages, "length": 3, "seed": 0},
    "noise.answer_attention": lambda w: {
        "reader": w.reader,
        "materials": w.materials,
        "answers": {"gold": "Nile"},
        "template": None,
        "max_batch_tokens": 900,
    },
    "noise.distracting_effects": lambda w: {**w.asked(), "template": None, "max_batch_tokens": 500},
    "noise.ask": lambda w: {
        "reader": w.reader,
        "materials": [w.materials],
        "layouts": ["gold"],
        "template": None,
        "max_new_tokens": 2,
        "stop": ["\n"],
        "repetition_penalty": 1.5,
        "distraction": True,
        "context": None,
        "max_batch_tokens": 900,
        "progress": False,
    },
    "noise.ask_cost": lambda w: {
        "reader": w.reader,
        "materials": [w.materials],
        "layouts": ["gold"],
        "template": None,
        "max_new_tokens": 2,
        "context": None,
    },
    "noise.baseline_of": lambda w: {"layout": "random:1:near"},
    "noise.by_title": lambda w: {"passages": w.passages},
    "noise.gather": lambda w: {
        "example": w.example,
        "random": noise.DistractorPool(w.pool),
        "random_count": 1,
        "titles": None,
        "others": [w.other],
        "hard_count": 1,
        "seed": 0,
    },
    "noise.has_answer": lambda w: {"passage": w.passages[0], "answers": ["Nile"]},
    "noise.label": lambda w: {"example": w.example},
    "noise.layout": lambda w: {"materials": w.materials, "spec": "gold", "fits": lambda passages: True},
    "noise.markdown": lambda w: {"summary": w.summary},
    "noise.mean_entropies": lambda w: {"attentions": [w.attention], "normalised": True},
    "noise.mean_share": lambda w: {"attentions": [w.attention["gold"]]},
    "noise.oracle_grid": lambda w: {"noise": ["random"], "counts": [1], "positions": ["near"]},
    "noise.place": lambda w: {"gold": w.passages[0], "others": w.passages[1:], "position": "far"},
    "noise.plot_accuracy": lambda w: {"summary": w.summary, "path": w.path("plot.png")},
    "noise.plot_entropy": lambda w: {"attentions": {"gold": [w.attention["gold"]]}, "path": w.path("plot.png")},
    "noise.plot_heat_map": lambda w: {
        "shares": {"gold": np.ones((2, 1))},
        "kinds": {"gold": ["gold"]},
        "path": w.path("plot.png"),
    },
    "noise.realistic_grid": lambda w: {"retrieved": [1], "random": [1]},
    "noise.summarise": lambda w: {
        "results": [w.noise_answers],
        "primary": None,
        "confidence_level": 0.95,
        "resamples": 20,
        "seed": 0,
    },
    "noise.swap_answer": lambda w: {"passage": w.passages[0], "answers": ["Nile"], "replacement": "Seine"},
    "noise.swapped_passages": lambda w: {
        "passage": w.passages[0],
        "question": QUESTION,
        "answers": ["Nile"],
        "others": [w.other],
        "key": "q",
        "seed": 0,
    },
    "permutations.Design": lambda w: {"permutations": [[0, 1]], "n": 2, "name": "mine", "made": {}},
    "permutations.cyclic": lambda w: {"n": 4},
    "permutations.cyclic_reversed": lambda w: {"n": 4},
    "permutations.explicit": lambda w: {"array": [[0, 1], [1, 0]], "n": 2},
    "permutations.identity": lambda w: {"n": 4},
    "permutations.latin": lambda w: {"n": 4, "squares": 1, "seed": 0},
    "permutations.model_rank": lambda w: {"design": fr.permutations.cyclic(3), "seed": 0},
    "permutations.prefix_sharing": lambda w: {"n": 4, "count": 4, "seed": 0},
    "permutations.pruned": lambda w: {"design": fr.permutations.cyclic(3), "length": 2},
    "permutations.random": lambda w: {"n": 4, "count": 4, "seed": 0},
    "permutations.resolve": lambda w: {"spec": "cyclic", "n": 4, "seed": 0},
    "permutations.variable_length": lambda w: {"scores": [2.0, 1.0], "share": 0.9, "temperature": 1.0},
    "statistics.ConformalSets.fit": lambda w: {
        "probabilities": [[0.5, 0.5], [0.9, 0.1]],
        "right": [0, 1],
        "confidence_level": 0.5,
    },
    "statistics.ConformalSets.set_of": lambda w: (
        statistics.ConformalSets.fit([[0.5, 0.5]], [0], 0.5),
        {"probabilities": [0.2, 0.8]},
    ),
    "statistics.RiskCoverage.at": lambda w: (statistics.risk_coverage(A, B), {"coverage": 0.5}),
    "statistics.auroc": lambda w: {
        "confidence": A,
        "right": B,
        "clusters": None,
        "confidence_level": 0.95,
        "resamples": 20,
        "seed": 0,
    },
    "statistics.coverage": lambda w: {"sets": [[0], [1]], "right": [0, None]},
    "statistics.expected_calibration_error": lambda w: {"confidence": A, "right": B, "bins": 5},
    "statistics.risk_coverage": lambda w: {"confidence": A, "right": B},
    "statistics.bootstrap": lambda w: {
        "values": A,
        "clusters": [1, 1, 2, 2],
        "confidence_level": 0.95,
        "resamples": 20,
        "seed": 0,
    },
    "statistics.cohens_d": lambda w: {"a": A, "b": B},
    "statistics.compare": lambda w: {
        "outcomes": OUTCOMES,
        "baselines": "a",
        "clusters": None,
        "primary": None,
        "confidence_level": 0.95,
        "resamples": 20,
        "seed": 0,
    },
    "statistics.discordant_odds_ratio": lambda w: {"a": A, "b": B, "confidence_level": 0.95},
    "statistics.holm": lambda w: {"p_values": [0.1, 0.2]},
    "statistics.mcnemar": lambda w: {"a": A, "b": B},
    "statistics.minimum_detectable_effect": lambda w: {
        "a": A,
        "b": B,
        "power": 0.8,
        "confidence_level": 0.95,
        "clusters": None,
    },
    "statistics.paired_bootstrap": lambda w: {"a": A, "b": B, "resamples": 20, "confidence_level": 0.95, "seed": 0},
    "statistics.risk_difference": lambda w: {"a": A, "b": B},
    "statistics.sign_flip": lambda w: {"a": A, "b": B, "clusters": None, "resamples": 20, "seed": 0},
    "statistics.wilcoxon": lambda w: {"a": A, "b": B},
    "statistics.wilson": lambda w: {"successes": 2, "n": 4, "confidence_level": 0.95},
    "study.RunFolder": lambda w: {"path": w.path("run")},
    "study.RunFolder.begin": lambda w: (RunFolder(w.fresh_folder()), {"study": w.study, "resume": False}),
    "study.RunFolder.check_reader": lambda w: (w.begun(), {"study": w.study, "name": "tiny", "about": {}}),
    "study.RunFolder.file": lambda w: (w.begun(), {"name": "x.json"}),
    "study.RunFolder.keep": lambda w: (w.begun(), {"study": w.study, "examples": [w.example]}),
    "study.RunFolder.read_json": lambda w: (w.begun(), {"name": "study.json"}),
    "study.RunFolder.write_json": lambda w: (w.begun(), {"name": "x.json", "value": {"a": 1}}),
    "study.Study.load": lambda w: {"path": w.path("study.json"), "limit": 1},
    "study.Study.of": lambda w: {"values": w.study_values(), "where": "study", "folder": w.folder},
    "study.Study.stored": lambda w: {"values": w.study.to_dict(), "where": "study"},
    "study.dry_run": lambda w: {"study": w.study, "load": w.dry_reader, "questions": [w.example]},
    "study.run_study": lambda w: {
        "study": w.study,
        "folder": w.fresh_folder(),
        "resume": False,
        "progress": False,
        "load": lambda name: w.reader,
        "elsewhere": None,
        "questions": [w.example],
    },
    "sure.MethodResult.from_dict": lambda w: {"values": w.asked_sure.to_dict()},
    "sure.Settings": lambda w: fields_of(sure.Settings()),
    "sure.SureTemplate": lambda w: fields_of(sure.SureTemplate()),
    "sure.SureTemplate.passages": lambda w: (sure.SureTemplate(), {"passages": w.passages}),
    "sure.SureResult.from_dict": lambda w: {"values": sure.answer(**w.asked(), k=2, **SURE).to_dict()},
    "sure.VariantTemplate": lambda w: fields_of(sure.VariantTemplate()),
    "sure.answer": lambda w: {**w.asked(), "k": 2, **SURE},
    "sure.answer_many": lambda w: {
        "reader": w.reader,
        "examples": [w.example],
        "method": "base",
        "readers": None,
        "settings": None,
        "batch_size": 2,
        "output": None,
        "resume": False,
        "progress": False,
        "on_error": None,
        "max_answer_tokens": 2,
    },
    "sure.ask": lambda w: {
        **w.asked(),
        "method": "base",
        "answers": ["Nile"],
        "readers": None,
        "settings": None,
        "max_answer_tokens": 2,
    },
    "sure.parse_candidates": lambda w: {"reply": "(a) Nile (b) Seine", "k": 2, "longest": 20},
    "sure.variants.Variant": lambda w: fields_of(variants.find_method("base")),
    "sure.variants.Variant.limited": lambda w: (variants.find_method("base"), {"count": 1}),
    "sure.variants.Variant.run": lambda w: (variants.find_method("base"), {"task": w.task}),
    "sure.variants.find_method": lambda w: {"name": "base"},
    "sure.variants.rerank_passages": lambda w: {"text": "Nile", "passages": w.passages, "settings": None},
}
SURE = {"max_summary_tokens": 2, "max_candidate_tokens": 2, "mode": "loglikelihood", "seed": 0, "words": 3}

# Base calls that end with an error, because what they need is not here.
ENDS_WITH = {"moi.distill.read_teacher": errors.InputError}
# Left out: these load a model from outside before they look at their arguments, or take any name.
WITHOUT = {"eor.BertScore", "eor.BertScore.idf_of", "eor.BertScore.score", "eor.BertScore.tables"}
WITHOUT |= {"eor.BertScore.token_vectors", "eor.CrossEncoderNli", "eor.Voter.set_params"}
