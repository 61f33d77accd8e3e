import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.eor import PAPER
from fastreader.eor.spec import ChunkRerank, Compress, Concat, Fuse, Source, SpecError, Top, expand, parse, walk
from fastreader.errors import InputError


@pytest.mark.parametrize("name", [*PAPER, "ReFree", "PK@CP", "HB", "BM25-80.v2_x@3&PK"])
def test_round_trip_as_text(name):
    assert str(parse(name)) == name


def test_precedence_of_the_papers_example():
    assert parse("SE@RR@5&Wiki@5@CP") == Compress(Concat((Top(ChunkRerank(Source("SE")), 5), Top(Source("Wiki"), 5))))


names = st.sampled_from(["SE", "Wiki", "PK", "HB", "x", "BM25-80", "a.b_c", "RR", "CP"])
sources = st.lists(names.map(Source), min_size=1, max_size=3).map(
    lambda own: own[0] if len(own) == 1 else Fuse(tuple(own))
)
parts = st.builds(
    lambda source, rerank, k: Top(s, k) if (s := ChunkRerank(source) if rerank else source) and k else s,
    sources,
    st.booleans(),
    st.integers(0, 30),
)
specs = st.builds(
    lambda found, compress: (
        Compress(node) if (node := found[0] if len(found) == 1 else Concat(tuple(found))) and compress else node
    ),
    st.lists(parts, min_size=1, max_size=4),
    st.booleans(),
)


@given(specs)
def test_every_expression_of_the_grammar_survives_printing_and_parsing(node):
    assert parse(str(node)) == node


@given(st.text("SEWikiRRCP@&+105 ", max_size=14))
def test_text_round_trips_or_the_error_points_inside(text):
    try:
        node = parse(text)
    except SpecError as error:
        assert 0 <= error.position <= len(text)
        shown = str(error).splitlines()
        assert shown[-1].index("^") - 2 == error.position
    else:
        assert str(node) == text


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("SE@", 3),
        ("SE@@5", 3),
        ("SE@0", 3),
        ("SE@05", 3),
        ("SE@5@RR", 4),
        ("SE@5@6", 4),
        ("SE@RR@RR", 5),
        ("SE@CP@5", 5),
        ("SE@CP&Wiki", 5),
        ("SE&", 3),
        ("&SE", 0),
        ("SE @5", 2),
        ("SE@5x", 4),
        ("SE@rr", 3),
        ("5", 0),
        ("ReFree@5", 6),
        ("ReFree&SE", 6),
        ("SE&ReFree", 3),
        ("ReFree@CP", 6),
        ("ReFree+SE", 6),
        ("SE+ReFree", 3),
        ("SE+", 3),
        ("SE@5+Wiki", 4),
    ],
)
def test_the_error_points_at_the_character(text, position):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.position == position
    assert repr(text) in str(caught.value)


def test_specification_must_be_text():
    with pytest.raises(InputError, match="specification: expected text, got 5"):
        parse(5)


def test_expanded_aliases_print_with_parentheses():
    hybrid = {"HB": parse("SE&PK&Wiki@20")}
    node = expand(parse("HB@RR@10"), hybrid)
    assert str(node) == "(SE&PK&Wiki@20)@RR@10"
    assert [str(n) for n in walk(node)][-1] == str(node)


def test_recursive_alias_raises():
    with pytest.raises(InputError, match="A -> B -> A"):
        expand(parse("A@5"), {"A": parse("B"), "B": parse("A&SE")})
