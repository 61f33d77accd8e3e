"""Task: one question with its passages, the settings, and the readers that serve the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.data import Passage
from fastreader.data.fingerprints import guarding
from fastreader.errors import InputError
from fastreader.sure.settings import Settings

STAGES = ("candidates", "summaries", "validity", "ranking", "answers", "reasoning", "selection", "verification")


class Readers:
    """A reader for every stage: one for all, others for stages of their own.

    Args:
        default: serves all stages that are not in `stages`.
        stages: other readers by stage: "candidates", "summaries", "validity", "ranking" of SuRe; of the variants
            "answers", "reasoning", "selection", "verification" too.

    Raises:
        InputError: a stage there is not, or a reader that is none.
    """

    def __init__(self, default: ReaderProtocol, stages: Mapping[str, ReaderProtocol] | None = None) -> None:
        self.default = default
        self.stages = dict(stages or {})
        if unknown := sorted(set(self.stages) - set(STAGES)):
            raise InputError(f"readers: unknown stages {', '.join(unknown)}; there are: {', '.join(STAGES)}")
        for name, reader in [("reader", default), *((f"readers[{s!r}]", r) for s, r in self.stages.items())]:
            if not isinstance(reader, ReaderProtocol):
                raise InputError(f"{name}: expected a reader, got {type(reader).__name__}")

    def of(self, stage: str) -> ReaderProtocol:
        """The reader that serves `stage`."""
        return self.stages.get(stage, self.default)

    def describe(self) -> dict[str, dict[str, str]]:
        """What serves which stage; the default under "all"."""
        return {"all": self.default.describe()} | {stage: r.describe() for stage, r in self.stages.items()}

    def guarding(self) -> dict[str, dict[str, str]]:
        """Of `describe` what a run may not change when it goes on."""
        return {stage: guarding(about) for stage, about in self.describe().items()}


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


def make_passages(passages: Iterable[Passage | str]) -> list[Passage]:
    """Passages, from passages or plain texts.

    Raises:
        InputError: something else is among them.
    """
    if isinstance(passages, (str, Passage)) or not isinstance(passages, Iterable):
        raise InputError(f"passages: expected a list, got {type(passages).__name__}")
    out = []
    for index, passage in enumerate(passages):
        if not isinstance(passage, (str, Passage)):
            raise InputError(f"passages[{index}]: expected a Passage or text, got {type(passage).__name__}")
        out.append(Passage(passage) if isinstance(passage, str) else passage)
    return out


def make_question(question: str) -> str:
    """The question, checked.

    Raises:
        InputError: no text, or nothing in it.
    """
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"question: expected text, got {question!r}")
    return question.strip()
