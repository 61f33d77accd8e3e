"""Stems: one form for the forms of an English word, so that a passage that says "sank" is about what "sinks"."""

from __future__ import annotations

import re

# A verb or noun, then its irregular forms, without those that have its stem anyway.
_IRREGULAR = """
arise arose arisen|bear bore born|become became|begin began begun|bend bent|bind bound|bite bit bitten|blow blew blown
break broke broken|breed bred|bring brought|build built|buy bought|catch caught|child children|choose chose chosen
come came|creep crept|deal dealt|dig dug|do did done does|draw drew drawn|drink drank drunk|drive drove driven
eat ate eaten|fall fell|feed fed|feel felt|fight fought|find found|flee fled|fly flew flown|foot feet
forbid forbade|forget forgot|freeze froze frozen|get got gotten|give gave|go went gone|grow grew grown|hang hung
hear heard|hide hid hidden|hold held|keep kept|know knew known|lay laid|lead led|leave left|lend lent
life lives|light lit|lose lost|make made|man men|mean meant|meet met|mouse mice|pay paid|person people|ride rode ridden
ring rang rung|rise rose risen|run ran|say said|see saw seen|seek sought|sell sold|send sent|shake shook shaken
shine shone|shoot shot|show shown|shrink shrank shrunk|sing sang sung|sink sank sunk|sit sat|slay slew slain
sleep slept|slide slid|speak spoke spoken|spend spent|spin spun|stand stood|steal stole stolen|stick stuck
strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung|take took taken|teach taught|tear tore torn
think thought|throw threw thrown|tooth teeth|understand understood|wake woke woken|wear wore worn|wife wives
win won|woman women|write wrote written
"""
_BASE = {form: base for base, *forms in map(str.split, re.split(r"[|\n]", _IRREGULAR.strip())) for form in forms}
# They are in passages of every topic, above all with all their forms.
LIGHT = frozenset(("com", "do", "find", "get", "giv", "go", "mak", "sai", "tak"))
_KEPT = {"s": "siu", "ed": "e", "ing": ""}  # before the last letters of "bus" and "need", which are part of the word
_VOWELS = frozenset("aeiouy")
_LETTERS = 5  # of a stem: most other endings come later


def stem(word: str) -> str:
    """Return a form that the inflected forms of an English word share, and most of its derived ones.

    An irregular form becomes its base. Then a plural's or past form's ending is cut off, the word is cut to five
    letters, and a silent e or the second of two equal letters is dropped from its end.

    Args:
        word: in lower case, without accents. A word with a digit is its own stem.

    >>> stem("sank") == stem("sinking") == stem("sinks"), stem("cities") == stem("city"), stem("winner") == stem("won")
    (True, True, True)
    """
    if not word.isalpha():
        return word
    word = _BASE.get(word, word)
    for ending, kept in _KEPT.items():
        rest = word.removesuffix(ending)
        if rest != word and not _VOWELS.isdisjoint(rest) and rest[-1] not in kept:
            word = rest
    word = word[:_LETTERS]
    word = word.removesuffix("e") or word
    if word[-2:-1] == word[-1]:
        word = word[:-1]
    return f"{word[:-1]}i" if word.endswith("y") else word
