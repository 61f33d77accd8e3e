import pytest
from eor_cases import CountingReader

from fastreader.data import Passage
from fastreader.eor import Answers, Document, Retrieval, Texts, answer, is_answer, is_refusal
from fastreader.errors import InputError


def retrieval(*documents):
    return Retrieval("Which one?", list(documents), ["this"], "q1")


def test_one_generation_equal_prompts_once():
    reader = CountingReader()
    same = [Passage("The Nile.")]
    rows = answer(
        reader,
        [
            retrieval(Document("A", same), Document("B", same), Document("ReFree"), Document("C", failure="gone")),
            retrieval(Document("A", [Passage("other")]), Document("B", same), Document("ReFree"), Document("C", same)),
        ],
        keep_documents=True,
    )
    assert reader.generations == [3]
    assert rows[0].texts == ["Nile", "Nile", "Danube", None] and rows[0].failures == {"C": "gone"}
    assert rows[0].right == ["this"] and rows[0].id == "q1"
    assert rows[1].documents[1].passages == same


def test_fields_and_order_are_the_papers():
    reader = CountingReader()
    answer(reader, [retrieval(Document("A", [Passage("one", title="T"), Passage("two")]), Document("ReFree"))])
    first, second = reader.prompts
    assert first.index("true") < first.index("T\none") < first.index("two") < first.index("Which one?")
    assert "paragraphs" not in second and second.endswith("Which one?")


def test_texts_can_be_replaced():
    reader = CountingReader()
    texts = Texts(read_lead="L|", passage_without_title="[{text}]", read_question="Q: {question}", answer_lead="A:")
    answer(reader, [retrieval(Document("A", [Passage("one")]))], texts=texts)
    assert reader.prompts == ["L|[one]Q: Which one?A:"]


@pytest.mark.parametrize(
    "change",
    [{"read_question": "none"}, {"passage": "{text} {oops}"}, {"write": "{question!r}"}, {"write": "{"}, {"write": 3}],
)
def test_texts_are_checked(change):
    with pytest.raises(InputError, match=f"Texts.{next(iter(change))}"):
        Texts(**change)


def test_the_first_line_is_the_answer():
    reader = CountingReader(write=lambda prompt, i: "\n  Nile \nand more")
    assert answer(reader, [retrieval(Document("A"))])[0].texts == ["Nile"]


def test_nothing_to_ask():
    reader = CountingReader()
    assert answer(reader, []) == []
    assert answer(reader, [retrieval(Document("A", failure="x"), Document("B", failure="y"))])[0].texts == [None, None]
    assert reader.generations == []
    with pytest.raises(InputError, match="max_new_tokens"):
        answer(reader, [], max_new_tokens=0)


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.",
        "I do not have that information",
        "Unknown",
        "N/A",
        "none.",
        "The passage does not mention it.",
        "It is not specified in the text",
        "There is no information about this",
        "I'm sorry, but",
        "not mentioned",
        "I’m unable to answer",
    ],
)
def test_refusals(text):
    assert is_refusal(text) and not is_answer(text)


@pytest.mark.parametrize(
    "text", ["The Unknown Soldier", "Knowing", "Nile", "No", "Yes", "not guilty", "Nonesuch Palace", "I, Robot"]
)
def test_no_refusals(text):
    assert not is_refusal(text) and is_answer(text)


@pytest.mark.parametrize("text", [None, "", "  ", "The", "...", "a an the"])
def test_empty_answers(text):
    assert not is_answer(text)


def test_answers_there_and_back():
    row = Answers(
        "q?",
        ["A", "B"],
        ["x", None],
        {"B": "gone"},
        [Document("A", [Passage("p", "t", "1")]), Document("B")],
        ["x"],
        "7",
    )
    assert Answers.from_dict(row.to_dict()) == row
    assert row.select(["B"]).texts == [None] and row.select(["A"]).failures == {}
    with pytest.raises(InputError, match="'C'"):
        row.select(["C"])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"question": "q"},
        {"question": "q", "predictions": {}},
        {"question": "q", "predictions": {"A": 5}},
        {"predictions": {"A": "x"}},
        {"question": "q", "predictions": {"A": "x"}, "answers": "x"},
        {"question": "q", "predictions": {"A": "x"}, "documents": [{"passages": []}]},
    ],
)
def test_answers_from_what_is_none(values):
    with pytest.raises(InputError, match="Answers"):
        Answers.from_dict(values)


def test_answers_that_do_not_fit():
    with pytest.raises(InputError, match="one text a retriever"):
        Answers("q", ["A"], ["x", "y"])
    with pytest.raises(InputError, match="each retriever once"):
        Answers("q", ["A", "A"], ["x", "y"])
