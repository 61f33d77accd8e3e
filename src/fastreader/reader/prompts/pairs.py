"""PairWriter: the prompt of a query and a document, as a reranker's tokenizer or chat template writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastreader.core.checks import require
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.reader.prompts.chat_template import render_chat
from fastreader.reader.prompts.encoder import Seam, TextEncoder

_FIELDS = ("instruction", "query", "document")
_MARK = "fastreader\u241e{}\u241e"  # replaces a text while the template is rendered
_FIND = re.compile("( ?)" + _MARK.format("(instruction|query|document)") + "( ?)")


class PairWriter:
    """Writes prompts of pairs, in which special tokens written out in a text stay plain text.

    Args:
        encoder: the tokenizer.
        template: variables of the chat template; None joins the texts as the tokenizer joins a pair.
        structured: whether the template takes a message's content as a list of parts.

    Raises:
        UnsupportedModelError: if the tokenizer joins pairs in a way that depends on the texts.
    """

    def __init__(self, encoder: TextEncoder, template: Mapping[str, Any] | None, structured: bool) -> None:
        self.encoder = encoder
        self._template = template
        self._structured = structured
        self._parts: dict[bool, list[tuple[str, bool]]] = {}
        if template is None:
            self._around = encoder.around_pair()

    def prompt(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            InputError: if there is an instruction, and the template has no place for one.
            UnsupportedModelError: if the chat template does not hold query and document once each.
        """
        if self._template is None:
            before, between, after = self._around
            first, second = (self.encoder.follow(Seam(), text) for text in ((instruction or "") + query, document))
            return [*before, *self.encoder.closed(first), *between, *self.encoder.closed(second), *after]
        texts, seam = {"instruction": instruction or "", "query": query, "document": document}, Seam()
        for text, trusted in self._rendered(instruction is not None):
            if trusted:
                seam = self.encoder.follow(seam, text, trusted=True)
            else:
                name, _, how = text.partition(":")
                seam = self.encoder.follow(seam, texts[name].strip() if how else texts[name])
        return self.encoder.closed(seam)

    def _rendered(self, instructed: bool) -> list[tuple[str, bool]]:
        """Return the template's own texts, which are trusted, and between them the names of the texts to insert.

        A name ends in ":stripped" if the template removes white space around the text.
        """
        if instructed not in self._parts:
            self._parts[instructed] = self._split(_FIELDS if instructed else _FIELDS[1:])
        return self._parts[instructed]

    def _split(self, names: Sequence[str]) -> list[tuple[str, bool]]:
        messages = []
        for name in names:
            content: Any = f" {_MARK.format(name)} "
            content = [{"type": "text", "text": content}] if self._structured else content
            messages.append({"role": "system" if name == "instruction" else name, "content": content})
        variables = dict(self._template or {})
        generation = bool(variables.pop("add_generation_prompt", False))
        try:
            text = render_chat(self.encoder.tokenizer, messages, variables, generation=generation)
        except InputError as error:
            raise UnsupportedModelError(
                f"the reranker's chat template cannot be applied to the roles {', '.join(m['role'] for m in messages)} "
                f"({error})"
            ) from error
        parts, place, counts = [], 0, dict.fromkeys(names, 0)
        for found in _FIND.finditer(text):
            name, spaces = found.group(2), (found.group(1), found.group(3))
            counts[name] = counts.get(name, 0) + 1
            if len(set(spaces)) > 1:
                raise UnsupportedModelError(f"the reranker's chat template changes the {name}")
            parts += [(text[place : found.start()], True), (name if spaces[0] else f"{name}:stripped", False)]
            place = found.end()
        for name, count in counts.items():
            placeless = "instruction: expected None, since the reranker's chat template has no place for one"
            require(name != "instruction" or count > 0, placeless)
            if count != 1:
                raise UnsupportedModelError(
                    f"the reranker's chat template holds the {name} {count} times, expected once"
                )
        return [*parts, (text[place:], True)]
