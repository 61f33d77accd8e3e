"""Formats of data sets: what goes in comes out, and what cannot be read ends in a sentence that names it."""

import json
import os
from pathlib import Path

import pytest
from helpers.support import LONG_FORMS
from helpers.support import write_data as write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastreader as fr
from fastreader.data import SkippedRows, load_passages, load_questions
from fastreader.data.formats import parse_row
from fastreader.data.write import dpr_row
from fastreader.errors import InputError

FOLDER = Path(os.environ.get("FASTREADER_FORMATS", "formats"))  # one row of each format, not shipped


def columns(objects):
    return {key: [item[key] for item in objects] for key in objects[0]} if objects else {}


def titled(passages, **keys):
    return [{name: getattr(p, of) for name, of in keys.items()} for p in passages]


def listed(passages, **more):
    return titled(passages, id="id", title="title", text="text", **more)


def hotpot(e, form):
    facts = [[p.title, 0] for p in e.passages if p.is_gold]
    if form == "hub":
        facts = columns([{"title": title, "sent_id": index} for title, index in facts])
        context = columns([{"title": p.title, "sentences": [p.text]} for p in e.passages])
        return {
            "id": e.id,
            "question": e.question,
            "answer": e.answers[0],
            "supporting_facts": facts,
            "context": context,
        }
    context = [[p.title, [p.text]] for p in e.passages]
    if form == "texts":
        context, facts = json.dumps(context), json.dumps(facts)
    return {"_id": e.id, "question": e.question, "answer": e.answers[0], "supporting_facts": facts, "context": context}


def questions_page(e, form):
    """A page of Natural Questions whose paragraphs are the passages, followed by the answers."""
    tokens, candidates = [], []
    for p in e.passages:
        start = len(tokens)
        tokens += ["<P>", *p.text.split(" "), "</P>"]
        candidates.append({"start_token": start, "end_token": len(tokens), "top_level": True})
    short = []
    for answer in e.answers:
        short.append({"start_token": len(tokens), "end_token": len(tokens) + len(answer.split(" "))})
        tokens += answer.split(" ")
    gold = [c for c, p in zip(candidates, e.passages, strict=True) if p.is_gold] or [
        {"start_token": -1, "end_token": -1}
    ]
    long = [{k: v for k, v in c.items() if k != "top_level"} for c in gold]
    notes = [{"long_answer": c, "short_answers": [], "yes_no_answer": "NONE"} for c in long]
    notes[0]["short_answers"] = short
    if form != "hub":
        page = {"document_text": " ".join(tokens), "example_id": e.id, "question_text": e.question}
        if form == "published":
            of_page = [{"token": t, "html_token": t[:1] == "<", "start_byte": 0, "end_byte": 1} for t in tokens]
            page = {"document_tokens": of_page, "document_html": "<P>", "example_id": e.id, "question_text": e.question}
            page["question_tokens"] = e.question.split(" ")
        return {**page, "long_answer_candidates": candidates, "annotations": notes}
    notes = [{**note, "short_answers": columns(note["short_answers"]), "yes_no_answer": -1} for note in notes]
    document = {"title": "", "tokens": columns([{"token": t, "is_html": t[:1] == "<"} for t in tokens])}
    about = {"id": e.id, "question": {"text": e.question}, "document": document}
    return {**about, "long_answer_candidates": columns(candidates), "annotations": columns(notes)}


# Each makes a row of an example, and names what the format has of answers and passages.
FORMATS = {
    "dpr": (
        lambda e: {
            "id": e.id,
            "question": e.question,
            "answers": e.answers,
            "ctxs": listed(e.passages, isgold="is_gold"),
        },
        "ids golds titles",
    ),
    "flashrag": (
        lambda e: {
            "id": e.id,
            "question": e.question,
            "golden_answers": e.answers,
            "output": {"retrieval_result": [{"id": p.id, "contents": f"{p.title}\n{p.text}"} for p in e.passages]},
        },
        "ids titles",
    ),
    "rank_llm": (
        lambda e: {
            "query": {"text": e.question, "qid": e.id},
            "answers": e.answers,
            "candidates": [{"docid": p.id, "doc": {"title": p.title, "text": p.text}} for p in e.passages],
        },
        "ids titles",
    ),
    "rerank": (
        lambda e: {
            "id": e.id,
            "question": e.question,
            "answers": e.answers,
            "results": [{"passage": row, "relevance": 0.5} for row in listed(e.passages, is_gold="is_gold")],
        },
        "ids golds titles",
    ),
    "msmarco": (
        lambda e: {
            "query": e.question,
            "query_id": e.id,
            "answers": e.answers,
            "passages": columns(titled(e.passages, is_selected="is_gold", passage_text="text")),
        },
        "golds",
    ),
    "msmarco objects": (
        lambda e: {
            "query": e.question,
            "query_id": e.id,
            "answers": e.answers,
            "passages": titled(e.passages, is_selected="is_gold", passage_text="text"),
        },
        "golds",
    ),
    "hotpot": (lambda e: hotpot(e, "published"), "titles one"),
    "2wiki hub": (lambda e: hotpot(e, "texts"), "titles one"),
    "hotpot hub": (lambda e: hotpot(e, "hub"), "titles one"),
    "musique": (
        lambda e: {
            "id": e.id,
            "question": e.question,
            "answer": e.answers[0],
            "answer_aliases": e.answers[1:],
            "paragraphs": titled(e.passages, idx="id", title="title", paragraph_text="text", is_supporting="is_gold"),
        },
        "ids golds titles",
    ),
    "crag": (
        lambda e: {
            "interaction_id": e.id,
            "query": e.question,
            "answer": e.answers[0],
            "alt_ans": e.answers[1:],
            "search_results": [
                {**row, "page_result": "<html>"}
                for row in titled(e.passages, page_url="id", page_name="title", page_snippet="text")
            ],
        },
        "ids titles",
    ),
    "rgb": (
        lambda e: {
            "id": e.id,
            "query": e.question,
            "answer": e.answers,
            "positive": [p.text for p in e.passages if p.is_gold],
            "negative": [p.text for p in e.passages if not p.is_gold],
        },
        "golds by_gold",
    ),
    "sure": (
        lambda e: {"id": e.id, "question": e.question, "answers": e.answers, "contexts": listed(e.passages)},
        "ids titles",
    ),
    "pyserini": (
        lambda e: {
            "0": {
                "id": e.id,
                "question": e.question,
                "answers": e.answers,
                "contexts": [
                    {"docid": p.id, "score": "2", "text": f'"{p.title}"\n{p.text}' if p.title else p.text}
                    for p in e.passages
                ],
            }
        },
        "ids titles",
    ),
    "ragas": (
        lambda e: {
            "user_input": e.question,
            "reference": e.answers[0],
            "retrieved_contexts": [p.text for p in e.passages],
        },
        "one no_id",
    ),
    "ragas before": (
        lambda e: {
            "question": e.question,
            "ground_truth": e.answers[0],
            "answer": "written",
            "contexts": [p.text for p in e.passages],
        },
        "one no_id",
    ),
    "bergen": (
        lambda e: {"question": e.question, "answers": e.answers, "documents": [p.text for p in e.passages]},
        "no_id",
    ),
    "dpr training": (
        lambda e: {
            "question": e.question,
            "id": e.id,
            "answers": e.answers,
            "positive_ctxs": titled([p for p in e.passages if p.is_gold], passage_id="id", title="title", text="text"),
            "hard_negative_ctxs": titled(
                [p for p in e.passages if not p.is_gold], passage_id="id", title="title", text="text"
            ),
        },
        "ids golds titles by_gold",
    ),
    "alce": (
        lambda e: {
            "sample_id": e.id,
            "question": e.question,
            "answer": "a long answer",
            "qa_pairs": [{"short_answers": [a]} for a in e.answers],
            "docs": listed(e.passages),
        },
        "ids titles",
    ),
    "qampari": (
        lambda e: {"id": e.id, "question": e.question, "answers": [[a] for a in e.answers], "docs": listed(e.passages)},
        "ids titles",
    ),
    "eli5": (
        lambda e: {
            "id": e.id,
            "question": e.question,
            "answer": e.answers[0],
            "claims": ["c"],
            "docs": listed(e.passages),
        },
        "ids titles one",
    ),
    "asqa": (
        lambda e: {"dev": {e.id: {"ambiguous_question": e.question, "qa_pairs": [{"short_answers": e.answers}]}}},
        "none",
    ),
    "gold": (
        lambda e: {
            "example_id": e.id,
            "question": e.question,
            "answers": e.answers,
            "text": e.passages[0].text,
            "idx_gold_in_corpus": e.passages[0].id,
        },
        "ids first",
    ),
    "kilt": (
        lambda e: {
            "id": e.id,
            "input": e.question,
            "output": [{"answer": a, "provenance": [{"title": "T"}]} for a in e.answers],
        },
        "none",
    ),
    "squad": (
        lambda e: {
            "id": e.id,
            "title": e.passages[0].title,
            "question": e.question,
            "context": e.passages[0].text,
            "answers": {"text": e.answers, "answer_start": [0] * len(e.answers)},
        },
        "titles first",
    ),
    "squad published": (
        lambda e: {
            "data": [
                {
                    "title": e.passages[0].title,
                    "paragraphs": [
                        {
                            "context": e.passages[0].text,
                            "qas": [
                                {
                                    "id": e.id,
                                    "question": e.question,
                                    "answers": [{"text": a, "answer_start": 0} for a in e.answers],
                                }
                            ],
                        }
                    ],
                }
            ]
        },
        "titles first",
    ),
    "trivia hub": (
        lambda e: {
            "question": e.question,
            "question_id": e.id,
            "answer": {"value": e.answers[0], "aliases": e.answers},
            "entity_pages": columns(titled(e.passages, title="title", wiki_context="text")),
            "search_results": {},
        },
        "titles",
    ),
    "trivia": (
        lambda e: {
            "Data": [
                {
                    "Question": e.question,
                    "QuestionId": e.id,
                    "Answer": {"Value": e.answers[0], "Aliases": e.answers},
                    "EntityPages": [{"Title": "T", "Filename": "f"}],
                    "SearchResults": titled(e.passages, Title="title", Description="text"),
                }
            ]
        },
        "titles",
    ),
    "nq": (lambda e: questions_page(e, "simplified"), "golds words distinct"),
    "nq published": (lambda e: questions_page(e, "published"), "golds words distinct"),
    "nq hub": (lambda e: questions_page(e, "hub"), "golds words distinct"),
    "genread": (lambda e: {"question": e.question, "answer": e.answers}, "none no_id"),
    "webq": (lambda e: {"question": e.question, "answers": e.answers, "id": e.id}, "none"),
    "popqa": (lambda e: {"id": e.id, "question": e.question, "possible_answers": json.dumps(e.answers)}, "none"),
    "flashrag without": (lambda e: {"id": e.id, "question": e.question, "golden_answers": e.answers}, "none"),
}

text = st.text(min_size=1, max_size=8).filter(lambda t: t.strip() and t.lstrip()[0] != "[" and t != "<unk>")
words = st.lists(st.text("abcxyz", min_size=1, max_size=4), min_size=1, max_size=3).map(" ".join)


@st.composite
def examples(draw, name):
    kind = FORMATS[name][1]
    plain = words if "words" in kind or "trivia" in name else text
    title = st.just("") if "titles" not in kind else st.text("abcxyz ", min_size=1, max_size=5).filter(str.strip)
    passages = draw(
        st.lists(st.builds(fr.Passage, text=plain, title=title, id=text, is_gold=st.booleans()), min_size=1, max_size=3)
    )
    answers = draw(st.lists(plain, min_size=1, max_size=1 if "one" in kind else 3, unique=True))
    return fr.Example(draw(plain), passages, answers, id=draw(text))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.long(keep=10)
def test_what_goes_in_comes_out(tmp_path, name):
    make, kind = FORMATS[name]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100 if LONG_FORMS else 10)
    @given(examples(name))
    def holds(example):
        path = write(tmp_path / "a.json", json.dumps(make(example)))
        [found] = fr.load_examples(path)
        assert (found.question, found.answers) == (example.question, example.answers)
        assert found.id == (None if "no_id" in kind else example.id)
        assert found.metadata.get("answer") in (None, "a long answer", "written")
        wanted = [] if "none" in kind else example.passages[:1] if "first" in kind else example.passages
        if "by_gold" in kind:
            wanted = sorted(wanted, key=lambda p: not p.is_gold)
        assert [p.text for p in found.passages] == [p.text for p in wanted]
        if "titles" in kind:
            assert [p.title for p in found.passages] == [p.title for p in wanted]
        if "ids" in kind:
            assert [p.id for p in found.passages] == [p.id for p in wanted]
        if "golds" in kind:
            assert [p.is_gold for p in found.passages] == [p.is_gold for p in wanted]
        [asked] = load_questions(path)
        assert (asked.question, asked.answers, asked.id) == (found.question, found.answers, found.id)
        assert parse_row(dpr_row(found)) == found

    holds()


def one(tmp_path, row, name="a.json"):
    [found] = fr.load_examples(write(tmp_path / name, row if isinstance(row, str) else json.dumps(row)))
    return found


def test_annotations_become_flags(tmp_path):
    facts = [["T", 1], ["T", 0]]
    row = {"_id": "1", "question": "q", "answer": "a", "context": [["T", ["One.", "Two."]], ["U", ["x", " y"]]]}
    found = one(tmp_path, {**row, "supporting_facts": facts, "level": "hard"})
    assert found.passages == [fr.Passage("One. Two.", "T", is_gold=True), fr.Passage("x y", "U", is_gold=False)]
    assert found.metadata == {"supporting_facts": facts, "level": "hard"}
    for unknown in ({}, {"supporting_facts": []}, {"supporting_facts": {"title": [], "sent_id": []}}):  # to test on
        assert [p.is_gold for p in one(tmp_path, row | unknown).passages] == [None, None]
    alce = {"question": "q", "answer": "long", "qa_pairs": [{"short_answers": ["a", "b"]}, {"short_answers": ["c"]}]}
    found = one(tmp_path, {**alce, "docs": [{"text": "t", "answers_found": [0, 1]}, {"text": "u"}]})
    assert found.answers == ["a", "b", "c"] and found.metadata["answer"] == "long"
    assert [p.has_answer for p in found.passages] == [True, None]
    assert [pair["short_answers"] for pair in found.metadata["qa_pairs"]] == [["a", "b"], ["c"]]
    grouped = one(tmp_path, {"question": "q", "answers": [["a", "b"], ["c"]], "docs": []})
    assert grouped.answers == ["a", "b", "c"] and grouped.metadata == {"answer_groups": [["a", "b"], ["c"]]}
    squad = {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}, "is_impossible": True}
    assert one(tmp_path, squad) == fr.Example("q", [fr.Passage("c", is_gold=True)], metadata={"is_impossible": True})
    assert one(tmp_path, squad).passages[0].has_answer is None


@pytest.mark.parametrize(
    "row",
    [
        {"query": "q", "passages": [{"passage_text": "t"}], "answer": ["a"]},
        {"question": "q", "context": [["T", ["t"]]], "answers": ["a"]},
        {"question": "q", "paragraphs": [{"paragraph_text": "t"}], "golden_answers": ["a"]},
        {"query": "q", "search_results": [{"page_snippet": "t"}], "answers": ["a"]},
        {"question": "q", "context": "t", "answer": "a"},
        {"query": "q", "positive": ["t"], "ground_truth": "a"},
    ],
)
def test_right_answers_may_have_the_key_of_another_data_set(tmp_path, row):
    found = one(tmp_path, row)
    assert (found.answers, [p.text for p in found.passages], found.metadata) == (["a"], ["t"], {})


def test_questions_of_triviaqa_to_test_on_have_no_answers(tmp_path):
    pages = {"entity_pages": {"title": ["T"], "wiki_context": ["w"]}, "search_results": {}}
    hub = {"question": "q", "question_id": "q1", **pages, "answer": {"value": "<unk>", "aliases": []}}
    published = {"Question": "q", "QuestionId": "q1", "EntityPages": [{"Title": "T", "WikiContext": "w"}]}
    for row in (hub, published):
        found = one(tmp_path, row)
        assert (found.answers, found.id, found.passages) == ([], "q1", [fr.Passage("w", "T")])


@pytest.mark.parametrize("key", ["contents", "text"])
def test_titles_of_wikipedia_are_without_their_quotes(tmp_path, key):
    """As pyserini and FlashRAG write them, so that a retrieved passage equals the one in a corpus."""
    (row,) = load_passages(write(tmp_path / "c.jsonl", json.dumps({"id": "1", "contents": '"Aaron"\nA prophet.'})))
    assert (row.title, row.text) == ("Aaron", "A prophet.")
    retrieved = {"contexts": [{"docid": "1", "text": '"Aaron"\nA prophet.'}]}
    flash = {"output": {"retrieval_result": [{"id": "1", "contents": '"Aaron"\nA prophet.'}]}}
    (found,) = one(tmp_path, {"question": "q", **(retrieved if key == "text" else flash)}).passages
    assert (found.title, found.text) == (row.title, row.text)


def test_pairs_of_asqa_may_be_columns(tmp_path):
    pairs = {"question": ["r", "s"], "short_answers": [["a", "b"], ["c"]]}
    found = one(tmp_path, {"ambiguous_question": "q", "qa_pairs": pairs})
    assert found.answers == ["a", "b", "c"] and found.metadata["qa_pairs"][1] == {
        "question": "s",
        "short_answers": ["c"],
    }


def test_a_claim_of_fever_has_its_labels_as_candidates(tmp_path):
    labels = ["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"]
    row = {"id": 1, "claim": "c", "label": "REFUTES", "verifiable": "VERIFIABLE", "evidence": [[[1, 2, "Page", 0]]]}
    found = one(tmp_path, row)
    assert (found.question, found.answers, found.candidates, found.id) == ("c", ["REFUTES"], labels, "1")
    assert found.metadata["evidence"] == row["evidence"] and found.passages == []
    unlabelled = one(tmp_path, {"id": 1, "claim": "c", "ctxs": [{"title": "T", "text": "x"}]})
    assert unlabelled.answers == [] and unlabelled.passages == [fr.Passage("x", "T")]


def test_natural_questions_as_published(tmp_path):
    """Its keys are all there, and the words of the HTML are not."""
    words = ["<P>", "Where", "?", "Rome", "</P>", "<Ul>", "x", "</Ul>"]
    span = {"start_byte": 0, "end_byte": 9}
    nowhere = {"start_token": -1, "end_token": -1, "start_byte": -1, "end_byte": -1}
    row = {
        "annotations": [
            {
                "annotation_id": 1,
                "long_answer": {"candidate_index": 0, "start_token": 0, "end_token": 5, **span},
                "short_answers": [{"start_token": 3, "end_token": 4, **span}],
                "yes_no_answer": "NONE",
            },
            {
                "annotation_id": 2,
                "long_answer": {"candidate_index": -1, **nowhere},
                "short_answers": [],
                "yes_no_answer": "NONE",
            },
        ],
        "document_html": "<html>",
        "document_title": "Rome",
        "document_tokens": [{"token": t, "html_token": t[0] == "<", **span} for t in words],
        "document_url": "https://example.org/rome",
        "example_id": 5225754983651766092,
        "long_answer_candidates": [
            {"start_token": 0, "end_token": 5, "top_level": True, **span},
            {"start_token": 5, "end_token": 8, "top_level": True, **span},
        ],
        "question_text": "where",
        "question_tokens": ["where"],
    }
    found = one(tmp_path, row)
    texts = [fr.Passage("Where ? Rome", "Rome", "0", is_gold=True), fr.Passage("x", "Rome", "1", is_gold=False)]
    about = {"document_url": "https://example.org/rome"}
    assert found == fr.Example("where", texts, ["Rome"], id="5225754983651766092", metadata=about)
    row["document_tokens"] = words
    with pytest.raises(InputError, match="document_tokens"):
        one(tmp_path, row)


def test_natural_questions_keep_paragraphs_and_yes(tmp_path):
    long = {"start_token": 4, "end_token": 8}
    row = {
        "question_text": "q",
        "document_text": "<P> a b </P> <P> <B> c </P> <Td> d </Td>",
        "long_answer_candidates": [
            {"start_token": 0, "end_token": 4, "top_level": True},
            {**long, "top_level": False},
            {"start_token": 8, "end_token": 11, "top_level": False},
        ],
        "annotations": [{"long_answer": long, "short_answers": [], "yes_no_answer": "YES"}],
    }
    found = one(tmp_path, row)
    assert found.passages == [fr.Passage("a b", id="0", is_gold=False), fr.Passage("c", id="1", is_gold=True)]
    assert found.answers == ["yes"] and found.metadata == {}


def test_rows_inside_others_are_found(tmp_path):
    marco = {"query": {"0": "q", "7": "r"}, "passages": {"0": [{"passage_text": "t"}], "7": []}}
    answers = {"answers": {"0": ["a"], "7": ["b"]}, "query_id": {"0": 5, "7": 6}}
    first, second = fr.load_examples(write(tmp_path / "a.json", json.dumps(marco | answers)))
    assert (first.question, first.answers, first.id, second.id) == ("q", ["a"], "5", "6")
    keyed = {
        "4": {"question": "q", "answers": ["a"], "contexts": []},
        "5": {"question": "r", "answers": ["b"], "contexts": []},
    }
    path = write(tmp_path / "b.json", json.dumps(keyed, indent=1))
    assert [e.id for e in fr.load_examples(path)] == ["4", "5"]
    split = {"train": {"4": keyed["4"]}, "dev": {"5": keyed["5"]}}
    found = fr.load_examples(write(tmp_path / "c.json", json.dumps(split)))
    assert [(e.id, e.metadata) for e in found] == [("4", {"split": "train"}), ("5", {"split": "dev"})]
    keyed["5"]["contexts"] = [{"docid": 1}]
    path.write_text(json.dumps(keyed))
    with pytest.raises(InputError, match=r"b\.json, line 1, item '5': contexts\[0\]: missing key 'text'"):
        fr.load_examples(path)
    with pytest.warns(SkippedRows, match="skipped 1 row"):
        assert [e.id for e in fr.load_examples(path, skip_errors=True)] == ["4"]


def test_tables_of_questions(tmp_path):
    header = "id\tsubj\tquestion\tpossible_answers\ts_pop\n"
    popqa = header + '4\tX\t"what ""is"" X?"\t"[""a b"", ""c""]"\t\n\n5\tY\tq\t"[""d""]"\t3\n'
    first, second = fr.load_examples(write(tmp_path / "p.tsv", popqa))
    assert first == fr.Example('what "is" X?', [], ["a b", "c"], id="4", metadata={"subj": "X"})
    assert (second.answers, second.metadata["s_pop"]) == (["d"], "3")
    assert load_questions(tmp_path / "p.tsv")[1].answers == ["d"]
    dpr = fr.load_examples(write(tmp_path / "d.tsv", 'who is it\t[\'a\', "b\'s"]\nwhere\t["c"]\n'))
    assert [(e.question, e.answers) for e in dpr] == [("who is it", ["a", "b's"]), ("where", ["c"])]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no folder of published rows; FASTREADER_FORMATS names one")
def test_published_rows():
    files = sorted(FOLDER.iterdir())
    assert files
    for path in files:
        [row] = path.read_text(encoding="utf-8").splitlines()
        [found] = fr.load_examples(path)
        lacks = {"fever", "flashrag_noret", "genread"}
        assert bool(found.passages) == (path.stem not in lacks), path
        assert found.question and found.answers, path
        values = json.dumps([found.question, found.answers, [[p.title, p.text, p.id] for p in found.passages]])
        for value in ("Paris is", '"T"', '"x"', "gold text", '"s1 s2"'):
            assert value not in row or value in values, (path, value)
