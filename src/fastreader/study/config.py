"""Study: the questions, readers and methods of a study, as read from a TOML, YAML or JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from fastreader.core.checked import checked
from fastreader.core.checks import located, rejecting, require
from fastreader.data.fingerprints import digest
from fastreader.data.named import is_named
from fastreader.errors import InputError
from fastreader.study.files import absolute, read_study
from fastreader.study.published import Published

IN_ROWS = ("em", "f1", "contained")
"""The metrics that every row holds; the others are measures."""
Count = Annotated[int, Field(ge=1)]
SERVER = "server:"
"""What the name of a reader of an engine begins with."""


class _Table(BaseModel):
    """A table that accepts only the keys it names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Methods that answer otherwise than in earlier versions, so that rows of those are not mixed with new ones.
REVISIONS = {"moi:paper": "sign", "order:moi-paper": "sign"}


class MethodConfig(BaseModel):
    """One method of a study, whose further keys are the method's options.

    Attributes:
        method: a name of the registry, such as "moi", "sure:ranking" or "noise:random:4:near".
        name: its name in results and report; `method` by default.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    method: str
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """`name`, or `method` if there is no name."""
        return self.name or self.method

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options."""
        return dict(self.model_extra or {})

    def digest(self) -> str:
        """Return 16 hexadecimal digits that distinguish methods and their options."""
        values = {"method": self.method, "options": self.options}
        return digest(values | ({"revision": REVISIONS[self.method]} if self.method in REVISIONS else {}))


class ModelConfig(_Table):
    """How a reader that a study names is loaded.

    Attributes:
        model: what `Reader.load` loads, or "server:URL" for one that an engine serves (`fr.ServerReader`).
        device, dtype, precision: arguments of `Reader.load`; None takes the study's.
        adapter: folder or hub id of a PEFT adapter; None loads none.
        quantised: "nf4" or "int8" rounds the weights as bitsandbytes does while they are read; None does not.
        served: of an engine, the model's name there; None takes the only one.
        tokenizer: of an engine, name or folder of the tokenizer; None takes the model's name.
        max_length: of an engine, longest input in tokens; None asks the engine.
    """

    model: Annotated[str, Field(min_length=1)]
    device: str | None = None
    dtype: str | None = None
    precision: str | None = None
    adapter: str | None = None
    quantised: Literal["nf4", "int8"] | None = None
    served: str | None = None
    tokenizer: str | None = None
    max_length: Count | None = None

    @property
    def url(self) -> str | None:
        """Address of the engine, or None for a reader that is loaded here."""
        return self.model.removeprefix(SERVER) if self.model.startswith(SERVER) else None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        local = ("device", "dtype", "precision", "adapter", "quantised")
        remote = ("served", "tokenizer", "max_length")
        unused = [name for name in (remote if self.url is None else local) if getattr(self, name) is not None]
        if unused:
            kind = "a reader that is loaded here" if self.url is None else "a reader of an engine"
            raise ValueError(f"{', '.join(unused)}: not for {kind}")
        if self.quantised and (self.adapter or self.dtype):
            raise ValueError("quantised: not together with adapter or dtype")
        return self


class NoiseConfig(_Table):
    """The passages of noise layouts.

    Attributes:
        random: a file of passages to draw from (of more than 100,000, a sample of 100,000), "others" (passages of the
            study's other questions) or "words" (random words from the study's passages).
        hard_count: number of hard distractors per question; 0 for as many as the largest layout needs.
        max_new_tokens: at most this many tokens of a reply.
        stop: texts that end a reply.
        repetition_penalty: see `Reader.generate`; 1 for none.
        attention: also record the attention of the answers' tokens for this many questions (the attention heat map).
        attention_layouts: record it for these layouts only; by default for all layouts with passages.
        template: some attributes of `noise.NoiseTemplate`; in a study's file also a .toml or .json file of these.
    """

    random: str = "others"
    hard_count: Annotated[int, Field(ge=0)] = 0
    max_new_tokens: Count = 15
    stop: tuple[str, ...] = ()
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    attention: Annotated[int, Field(ge=0)] = 0
    attention_layouts: tuple[str, ...] = ()
    template: dict[str, Any] = {}


class EorConfig(_Table):
    """The ensemble's retrievers.

    Attributes:
        retrievers: specifications; the source "R" returns the question's own passages. None for a default ensemble.
        sources: further sources by name: a corpus or an index to search by BM25, or hits (`eor.open_source`).
        depth: at most this many passages from a source.
        limits: lengths in words, by the attributes of `eor.Limits`; a `document` of 0 sets no limit.
        similarities: of the voters, unless a method names its own.
        voter: a voter that `Voter.save` wrote, for methods without options of voting; in a study's file its path.
        texts: of the prompts, unless a method has its own: "default", "short" (with examples of short answers, for
            small models), or some attributes of `eor.Texts`; in a study's file also a .toml or .json file.
        fit: also learn weights from all questions of the study; they are shown, and no method votes with them.
    """

    retrievers: tuple[str, ...] | None = None
    sources: dict[str, str] = {}
    depth: Count = 20
    limits: dict[str, Any] = {}
    similarities: tuple[str, ...] = ("exact", "f1")
    voter: dict[str, Any] | None = None
    texts: str | dict[str, str] = "default"
    fit: bool = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, int)) else value


class Study(_Table):
    """A study.

    Attributes:
        data: questions with passages, in any format that `load_examples` reads, or the name of a data set.
        methods: the methods to compare, at least one, each under its own name.
        name: of the study.
        readers: what `Reader.load` loads, "server:URL" for a reader of an engine, or names in `models`; "reader" is a
            synonym. Wherever a method or a measure names a reader, it may be any of these.
        models: readers with separate settings, by name: an adapter, another dtype, an engine's tokenizer.
        device, dtype, precision: arguments of `Reader.load`.
        limit: use at most this many questions.
        passages: N, at most this many passages of each question.
        seeds: methods that draw run once per seed, the others with the first; "seed" is a synonym.
        candidates: answers that the reader chooses from, by their log-likelihood, instead of writing: a list, or
            "rows" for each question's own (FEVER's labels). Only for methods that fill `template`, except marginal.
        max_new_tokens: at most this many tokens of an answer, unless the method sets its own limit, as SuRe
            (`sure.max_answer_tokens`) and noise (`noise.max_new_tokens`) do.
        batch_size: number of questions that run together; more pack better and need more memory. Results do not
            depend on it.
        max_batch_tokens: at most this many tokens are computed in one pass; None derives it from free memory.
        metric: the metric that the report compares methods by: "em", "f1", "contained", or one of the measures.
        measures: further measures of the answers, by name: "rouge_l", "words", "short_answers", "gold_read",
            "gold_cited", "citation_precision", "citation_recall", and by a model "equivalent:bem:MODEL",
            "llm_accuracy:READER", "crag:READER" (see the guide). They may be added to a run that has answers.
        judges: texts of the prompts of measures by a reader, by judgement: "equivalent", "preferred" and "citation"
            have the attributes of `eor.similarity.NliTexts`, "grade" the attributes of `JudgeTexts`; in a study's file
            also a .toml or .json file of these.
        conflicts: also compare the passages of each question over the answers that the methods gave (`moi.conflicts`);
            may be switched on for a run that has answers.
        attribution: attribute the answers to each of this many questions, the first ones, to their passages
            (`fastreader.attribute`); 0 attributes none. May be raised for a run that has answers.
        baseline: the method that others are compared with; "base" by default, or else the first method.
        primary: the method whose contrast with the baseline is stated beforehand, or None. A run with results keeps
            it, and its metric and baseline.
        template: file with the prompt's texts, for base, closed book and MoI.
        data_set, retriever: names of what `data` holds and of what found its passages. They only decide which
            `published` figures are comparable.
        published: figures of papers. The report shows those next to its own whose reader, data set and retriever are
            the study's.
        differs: sentences on how the study differs from the paper, which its table repeats.
        noise, eor: settings that all methods of these families share.
        sure: settings of SuRe, by name; its `template` and `variant_template` as tables or files, as for noise.
        moi: options of all MoI methods, by name.
    """

    data: str
    methods: Annotated[tuple[MethodConfig, ...], Field(min_length=1)]
    name: str = ""
    readers: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("smollm2-135m",)
    models: dict[str, ModelConfig] = {}
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    limit: Count | None = None
    passages: Count = 10
    seeds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_listed), Field(min_length=1)] = (0,)
    candidates: Literal["rows"] | tuple[str, ...] = ()
    max_new_tokens: Count = 32
    batch_size: Count = 8
    max_batch_tokens: Count | None = None
    metric: str = "contained"
    measures: tuple[str, ...] = ()
    judges: dict[str, dict[str, Any]] = {}
    conflicts: bool = False
    attribution: NonNegativeInt = 0
    baseline: str | None = None
    primary: str | None = None
    template: str | None = None
    data_set: str = ""
    retriever: str = ""
    published: tuple[Published, ...] = ()
    differs: tuple[str, ...] = ()
    noise: NoiseConfig = NoiseConfig()
    eor: EorConfig = EorConfig()
    sure: dict[str, Any] = Field(default_factory=dict)
    moi: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _synonyms(cls, value: Any) -> Any:
        return _plural(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _names(self) -> Self:
        labels = [method.label for method in self.methods]
        if repeated := sorted({label for label in labels if labels.count(label) > 1}):
            raise ValueError(f"two methods are named {repeated[0]!r}; give one of them another name")
        for role in ("baseline", "primary"):
            label = getattr(self, role)
            if label is not None and label not in labels:
                raise ValueError(f"{role} {label!r} is not one of the methods {', '.join(labels)}")
        for key in ("readers", "seeds"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key} must be different, got {', '.join(map(str, values))}")
        if self.reference == self.primary:
            raise ValueError(f"primary {self.primary!r} is the baseline; it cannot be compared with itself")
        return self

    @property
    def reference(self) -> str:
        """The baseline: "base" by default, or else the first method."""
        labels = [method.label for method in self.methods]
        return self.baseline or ("base" if "base" in labels else labels[0])

    @property
    def measured(self) -> tuple[str, ...]:
        """The measures, with the metric if it is one."""
        more = () if self.metric in (*IN_ROWS, *self.measures) else (self.metric,)
        return *more, *self.measures

    @classmethod
    @checked
    def of(cls, values: Mapping[str, Any], where: str = "study", folder: str | os.PathLike[str] = ".") -> Study:
        """Create a study from its values.

        Args:
            values: by attribute.
            where: the origin of the values, for errors.
            folder: resolves relative paths.

        Raises:
            InputError: naming `where` and the key, if a key is unknown, a value is invalid, two methods have the same
                name, or a file does not exist (except `data`, which is looked for when the study runs).
        """
        try:
            return cls.stored(absolute(values, Path(folder)), where)
        except InputError as error:
            lead = f"{where}: "
            raise InputError(lead + str(error).removeprefix(lead)) from error

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str], **overrides: Any) -> Study:
        """Read a study from a .toml, .yaml, .yml or .json file, with paths relative to the file.

        Args:
            path: the file.
            **overrides: values that replace the file's; their paths are relative to the working directory. None is
                ignored, and the keys of a table are merged into the file's table. If `methods` are given, the file's
                baseline and primary count only if they are among them.

        Raises:
            InputError: if the file cannot be read, `data` does not exist, or `of` rejects the values.
        """
        file = Path(path)
        given = absolute({key: value for key, value in overrides.items() if value is not None}, Path())
        values = read_study(file)
        with located(str(file)):
            given, values = _plural(given), _plural(values)
        if "methods" in given:
            labels = [MethodConfig.model_validate(method).label for method in given["methods"]]
            values = {k: v for k, v in values.items() if k not in ("baseline", "primary") or v in labels}
        for key, value in given.items():
            table = isinstance(value, dict) and isinstance(values.get(key), dict)
            values = {**values, key: {**values[key], **value} if table else value}
        study = cls.of(values, str(file), file.parent)
        require(is_named(study.data) or Path(study.data).is_file(), f"{file}: data: {study.data}: no such file")
        return study

    @classmethod
    @checked
    def stored(cls, values: Mapping[str, Any], where: str) -> Study:
        """Create a study from the values in a run folder, whose files need not exist any more.

        Raises:
            InputError: naming `where`, if the values do not describe a study.
        """
        try:
            with rejecting(f"{where}: expected valid Unicode", UnicodeError):  # half a pair of surrogates
                return cls.model_validate(values)
        except ValidationError as error:
            raise InputError(f"{where}: {'; '.join(_problem(e) for e in error.errors())}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return what results depend on apart from the methods, without names, limits and settings of the report."""
        free = {
            "methods",
            "name",
            "limit",
            "batch_size",
            "max_batch_tokens",
            "metric",
            "measures",
            "judges",
            "conflicts",
            "attribution",
            "baseline",
            "primary",
            "data_set",
            "retriever",
            "published",
            "differs",
        }
        values = {k: v for k, v in self.to_dict().items() if k not in free}
        values["noise"] = {k: v for k, v in values["noise"].items() if not k.startswith("attention")}
        return values


def model_of(study: Study, name: str) -> ModelConfig:
    """Return how the reader of a name is loaded in a study."""
    return study.models.get(name) or ModelConfig(model=name)


def _plural(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with "readers" for "reader" and "seeds" for "seed"."""
    for one, many in (("reader", "readers"), ("seed", "seeds")):
        if one in values:
            require(many not in values, f"{one} and {many} are synonyms; give only one of them")
            values = {**{k: v for k, v in values.items() if k != one}, many: values[one]}
    return values


def _problem(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    unknown = error["type"] == "extra_forbidden"
    message = "unknown key" if unknown else str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
