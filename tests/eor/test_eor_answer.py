import pytest
from eor_cases import CountingReader
from helpers.support import byte_tokenizer, tiny_llama

from fastreader.data import Passage
from fastreader.eor import SHORT, Answers, Document, Retrieval, Texts, answer, is_answer, is_refusal, load_texts
from fastreader.eor.answer import first_line, write_lines
from fastreader.errors import InputError
from fastreader.reader.reader import Reader


def retrieval(*documents):
    return Retrieval("Which one?", list(documents), ["this"], "q1")


def test_equal_prompts_are_generated_once():
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


def test_fields_and_order_follow_the_paper():
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


def test_texts_by_name_and_from_a_file(tmp_path):
    assert load_texts("default") == Texts() and load_texts("short") is SHORT
    reader = CountingReader()
    answer(reader, [retrieval(Document("A", [Passage("one")]), Document("ReFree"))], texts=SHORT)
    assert all(prompt.endswith("Question: Which one?\nAnswer:") for prompt in reader.prompts)
    file = tmp_path / "texts.json"
    file.write_text('{"answer_lead": "A:"}')
    assert load_texts(file) == Texts(answer_lead="A:")
    for text, expected in (
        ("{", "not JSON"),
        ("[]", "object"),
        ('{"oops": "x"}', "keys"),
        ('{"write": "x"}', "write"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=expected):
            load_texts(file)
    with pytest.raises(InputError, match=r"default, short or a \.toml or \.json file, got 'longer'"):
        load_texts("longer")


@pytest.mark.parametrize("written", ["\n  Nile \nand more", "\nNile", " \n\nNile\n", "Nile\nand more"])
def test_answer_is_the_first_line(written):
    reader = CountingReader(write=lambda prompt, i: written)
    assert answer(reader, [retrieval(Document("A"))])[0].texts == ["Nile"]


def test_only_texts_with_an_empty_first_line_are_generated_again():
    def write(prompt, sample):
        return "\nNile" if "one" in prompt and sample == 1 else f"Danube {sample}\nmore"

    reader = CountingReader(write=write)
    lines = write_lines(reader, ["one", "two", "three"], max_new_tokens=8, n=3)
    assert lines == [["Danube 0", "Nile", "Danube 2"], *[[f"Danube {i}" for i in range(3)]] * 2]
    assert reader.generations == [3, 1]
    assert write_lines(reader, [], max_new_tokens=8) == [] and reader.generations == [3, 1]


def test_sample_with_an_empty_first_line_is_reproduced():
    reader = Reader.load((tiny_llama(), byte_tokenizer()))
    options = {"max_new_tokens": 3, "n": 500, "temperature": 3.0, "seed": 1}
    (whole,) = reader.generate(["a"], **options)
    assert any(g.text.startswith("\n") for g in whole) and not all(g.text.startswith("\n") for g in whole)
    assert write_lines(reader, ["a"], **options) == [[first_line(g.text) for g in whole]]


def test_an_empty_text_stays_empty():
    reader = CountingReader(write=lambda prompt, i: " \n \n")
    assert answer(reader, [retrieval(Document("A"))])[0].texts == [""]


def test_no_prompts():
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
        "I cannot find the answer",
        "We can't determine this.",
        "I don't really know",
        "I couldn't find it",
        "I am not able to say",
        "I have no information about it",
        "I do not have an answer",
        "No answer",
        "No information available",
    ],
)
def test_refusals(text):
    assert is_refusal(text) and not is_answer(text)


@pytest.mark.parametrize(
    "text",
    [
        "The Unknown Soldier",
        "Knowing",
        "Nile",
        "No",
        "Yes",
        "not guilty",
        "Nonesuch Palace",
        "I, Robot",
        "I Don't Want to Miss a Thing",
        "(I Can't Get No) Satisfaction",
        "We Don't Talk Anymore",
        "I Have No Mouth, and I Must Scream",
        "No information theory",
        "No Answer Records",
        "We Can't Stop",
        "I Can't Make You Love Me",
        "We Have No Bananas",
        "We Don't Have to Take Our Clothes Off",
    ],
)
def test_no_refusals(text):
    assert not is_refusal(text) and is_answer(text)


@pytest.mark.parametrize("text", [None, "", "  ", "The", "...", "a an the"])
def test_empty_answers(text):
    assert not is_answer(text)


def test_answers_round_trip():
    row = Answers(
        "q?",
        ["A", "B"],
        ["x", None],
        {"B": "gone"},
        [Document("A", [Passage("p", "t", "1")]), Document("B", notes=["x"])],
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
def test_malformed_answers_raise(values):
    with pytest.raises(InputError, match="Answers"):
        Answers.from_dict(values)


def test_inconsistent_answers_raise():
    with pytest.raises(InputError, match="one for each of 1 retrievers, got 2"):
        Answers("q", ["A"], ["x", "y"])
    with pytest.raises(InputError, match="each retriever once"):
        Answers("q", ["A", "A"], ["x", "y"])
