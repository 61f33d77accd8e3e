"""A small world of questions and passages for the tests of the noise layouts."""

from __future__ import annotations

from fastreader.data import Example, Passage

GOLD = Passage(
    "The Falcon was won from Lando Calrissian in a game of sabacc.", "Millennium Falcon", "g", 9.0, is_gold=True
)
FIRST = Passage("Solo flew the Falcon with Chewbacca.", "Han Solo", "d1", 8.0, is_gold=False)
OTHER = Passage("Calrissian, Lando: see LANDO CALRISSIAN.", "Index of names", "r1", 7.0, is_gold=False)
SECOND = Passage("The ship was a model of 1.2 metres.", "Millennium Falcon", "d2", 6.0, is_gold=False)


def example(**changes) -> Example:
    values = {
        "question": "who owned the millennium falcon before han solo",
        "passages": [FIRST, GOLD, OTHER, SECOND],
        "answers": ["Lando Calrissian"],
        "id": "q1",
    }
    return Example(**{**values, **changes})


def pool(size: int = 30) -> list[Passage]:
    return [Passage(f"Fact {i} is that {i} plus {i} is {2 * i}.", f"Sums {i}", str(i)) for i in range(size)]
