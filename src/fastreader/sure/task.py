"""Task: one question with its passages, the settings, and the readers that serve the stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.readers import Readers
from fastreader.sure.settings import Settings

STAGES = ("candidates", "summaries", "validity", "ranking", "answers", "reasoning", "selection", "verification")


@dataclass
class Task:
    """What a program works on.

    Attributes:
        question, passages: of one example.
        settings: all settings.
        readers: by stage.
        answers: the right answers, where known; the oracle alone looks at them.
        notes: what a user should know about this answer; programs add to it.
    """

    question: str
    passages: list[Passage]
    settings: Settings
    readers: Readers
    answers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def prompt(self, stage: str, pieces: Sequence[str], *, lead: str = "") -> TextOrTokens:
        """The prompt of `pieces` for the stage's reader."""
        t = self.settings.template
        return self.readers.of(stage).prompt(
            pieces, lead=lead, system=t.system, chat=t.chat, chat_options=t.chat_options
        )

    def label(self, stage: str, text: str, *, end: bool = False) -> TextOrTokens:
        """`text` as an answer of the stage's reader, to be scored; with `end` as all of the answer."""
        t = self.settings.template
        return self.readers.of(stage).continuation(
            text, end=end, system=t.system, chat=t.chat, chat_options=t.chat_options
        )

    def passage_pieces(self) -> list[str]:
        """One piece for each passage."""
        return self.settings.template.passages(self.passages)

    def fitting(
        self, stage: str, build: Callable[[list[Passage]], list[TextOrTokens]], new_tokens: int
    ) -> list[TextOrTokens]:
        """Prompts over the passages, over fewer of them where they would be too long and the settings allow it.

        Args:
            stage: whose reader will read them.
            build: makes the prompts from passages.
            new_tokens: room each one needs behind it.

        Returns:
            The prompts. Without on_overflow="drop_passages", or where no reading of the reader's context or no
            number of passages helps, all passages are in them and a call may raise ContextOverflowError.
        """
        prompts = build(self.passages)
        limit = getattr(self.readers.of(stage), "max_length", None)
        if self.settings.on_overflow != "drop_passages" or limit is None:
            return prompts
        for count in range(len(self.passages), -1, -1):
            shorter = build(self.passages[:count])
            if all(isinstance(p, str) or len(p) + new_tokens <= limit for p in shorter):
                if count < len(self.passages):
                    left_out = len(self.passages) - count
                    self.notes.append(
                        f"{stage}: the last {left_out} of {len(self.passages)} passages were left out; with "
                        f"{new_tokens} new tokens they are more than the context of {limit} tokens"
                    )
                return shorter
        return prompts
