"""PromptWriter: texts to the token ids of prompts and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import expect, located, require
from fastreader.reader.prompts.encoder import ChatFrame, Seam, TextEncoder


@checked
class PromptWriter:
    """The part of a `Reader` that encodes prompts and answers, piece by piece.

    Attributes:
        encoder: the tokenizer, by pieces.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def prompt(
        self,
        pieces: Sequence[str],
        *,
        lead: str = "",
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of the prompt that consists of `pieces`, up to where the model's answer starts.

        Each piece is tokenised alone, so prompts that begin with equal pieces share those tokens. Special tokens
        written out in a piece stay plain text. With a chat template, the pieces are one user message, whose ends join
        the template's text: a message of one piece has the tokens that `apply_chat_template` gives.

        Args:
            pieces: the message's parts in order; a piece owns the white space at its edges.
            lead: text that the model's answer starts with.
            system: system message of the chat; None uses the chat template's default.
            chat: whether to use the chat template; None uses it if the model has one.
            chat_options: further variables for the chat template.

        Raises:
            InputError: if `pieces` has no text, or `chat` is True and the model has no chat template.
            UnsupportedModelError: if the chat template cannot be used, see `TextEncoder.chat_frame`.
        """
        frame = self._frame(system, chat, chat_options, own_lead=bool(lead))
        tokens = self._start(pieces, frame, whole=True)
        with located("lead"):
            return tokens + self.encoder.piece(lead, first=frame is not None and frame.fresh)

    def prefix(
        self,
        pieces: Sequence[str],
        *,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids that every `prompt` shares whose pieces are `pieces` and more, for `session`.

        Args:
            pieces, system, chat, chat_options: see `prompt`.

        Raises:
            InputError: as `prompt`.
            UnsupportedModelError: as `prompt`.
        """
        return self._start(pieces, self._frame(system, chat, chat_options, own_lead=True))

    def _start(self, pieces: Sequence[str], frame: ChatFrame | None, *, whole: bool = False) -> list[int]:
        """Return the token ids of pieces at the start of a message, or of a `whole` message up to its answer."""
        encoder = self.encoder
        expect(any(pieces), "pieces", "a list of texts, not all empty", pieces)
        with located("pieces"):
            if frame is None:
                tokens = encoder.start(pieces[0])
                return [*tokens, *chain.from_iterable(encoder.pieces(pieces[1:]))] or [encoder.prefix_token()]
            *others, last = filter(None, pieces)
            tokens, seam = [], frame.opening
            if others:
                tokens = encoder.closed(seam, others[0])
                tokens += chain.from_iterable(encoder.pieces(others[1:]))
                seam = Seam(fresh=False)
            seam = encoder.follow(seam, last)
            return tokens + encoder.closed(seam, frame.between if whole else "", trusted=True)

    def continuation(
        self,
        text: str,
        *,
        end: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of `text` as the model's answer, to be scored after a `prompt` of the same arguments.

        Args:
            text: the answer; it is stripped, and a space precedes it if the model writes one (always without a chat
                template).
            end: whether to add the chat template's end of turn, or a line break without a chat.
            system, chat, chat_options: see `prompt`.

        Raises:
            InputError: as `prompt`; or if `text` has no token.
            UnsupportedModelError: as `prompt`.
        """
        frame = self._frame(system, chat, chat_options, own_lead=True)
        space, after = (" ", "\n") if frame is None else (frame.space, frame.after)
        fresh = frame is not None and frame.fresh
        tokens = self.encoder.piece(space + text.strip(), first=fresh) if text.strip() else []
        require(bool(tokens), f"text: {text!r} has no token")
        return tokens + (self.encoder.piece(after, trusted=True) if end else [])

    def _frame(
        self, system: str | None, chat: bool | None, options: Mapping[str, Any] | None, *, own_lead: bool
    ) -> ChatFrame | None:
        if chat is False:
            return None
        frame = self.encoder.chat_frame(system, dict(options or {}), own_lead=own_lead)
        require(frame is not None or not chat, "chat: True, but the model's tokenizer has no chat template")
        return frame
