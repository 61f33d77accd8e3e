"""Study: what a study asks whom, as read from a TOML or YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, ValidationError, model_validator

from fastreader.errors import InputError
from fastreader.study.files import absolute, read_values
from fastreader.study.tables import EorConfig, MethodConfig, NoiseConfig, Strict

__all__ = ["EorConfig", "Measure", "MethodConfig", "NoiseConfig", "Study"]

Measure = Literal["em", "f1", "contained"]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, int)) else value


class Study(Strict):
    """A study.

    Attributes:
        data: questions with passages, in any format `load_examples` reads.
        methods: what is compared, at least one, each of its own name.
        name: of the study.
        readers: as `Reader.load` takes them ("reader" is the same).
        device, dtype, precision: as `Reader.load` takes them.
        limit: only the first so many questions.
        passages: N, the first so many passages of each question.
        seeds: methods that draw run once for each of them, the others for the first.
        max_new_tokens: of an answer, where the method does not say.
        group: questions worked on together; more are packed better and need more memory. Results do not depend on it.
        max_batch_tokens: tokens computed in one pass at most; None: from free memory.
        measure: what the report compares methods by.
        baseline: method that others are held against; by default "base" where there is one, else the first.
        primary: method whose contrast with the baseline was chosen beforehand; None for none. A run keeps it, and
            with it measure and baseline.
        template: file with the prompt's texts, for base, closed book and MoI.
        noise, eor: what is common to these families.
        sure: settings of SuRe, by name.
        moi: options of all MoI methods, by name.
    """

    data: str
    methods: Annotated[tuple[MethodConfig, ...], Field(min_length=1)]
    name: str = ""
    readers: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = ("smollm2-135m",)
    device: str = "auto"
    dtype: str = "auto"
    precision: str = "fast"
    limit: Annotated[int | None, Field(ge=1)] = None
    passages: Annotated[int, Field(ge=1)] = 10
    seeds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_listed), Field(min_length=1)] = (0,)
    max_new_tokens: Annotated[int, Field(ge=1)] = 32
    group: Annotated[int, Field(ge=1)] = 8
    max_batch_tokens: Annotated[int | None, Field(ge=1)] = None
    measure: Measure = "contained"
    baseline: str | None = None
    primary: str | None = None
    template: str | None = None
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
                raise ValueError(f"{role} {label!r} is none of the methods {', '.join(labels)}")
        for values in ("readers", "seeds"):
            given = getattr(self, values)
            if len(set(given)) < len(given):
                raise ValueError(f"{values} must be different, got {', '.join(map(str, given))}")
        if self.reference == self.primary:
            raise ValueError(f"primary {self.primary!r} is the baseline; it cannot be held against itself")
        return self

    @property
    def reference(self) -> str:
        """The baseline, by default "base" where there is one, else the first method."""
        labels = [method.label for method in self.methods]
        return self.baseline or ("base" if "base" in labels else labels[0])

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "study", folder: str | os.PathLike[str] = ".") -> Study:
        """A study from its values.

        Args:
            values: by attribute.
            where: named in errors.
            folder: what relative paths are relative to.

        Raises:
            InputError: naming `where` and the key: an unknown key or method, a value that cannot be, two methods of
                one name, a file that does not exist (but `data`, which is looked for when the study is run).
        """
        try:
            return cls.model_validate(absolute(values, Path(folder)))
        except ValidationError as error:
            problems = "; ".join(_problem(e) for e in error.errors())
            raise InputError(f"{where}: {problems}") from None
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], **overrides: Any) -> Study:
        """Read a study from a .toml, .yaml, .yml or .json file; paths in it are relative to it.

        Args:
            path: the file.
            **overrides: values in place of the file's, paths in them relative to the working directory; None is
                passed over, and a table's keys go into the file's table. With other methods, the file's baseline and
                primary hold only where they are among them.

        Raises:
            InputError: no such file, not of its format, or as `of`; also where `data` does not exist.
        """
        file = Path(path)
        given = absolute({key: value for key, value in overrides.items() if value is not None}, Path())
        values = read_values(file)
        try:
            given, values = _plural(given), _plural(values)
        except ValueError as error:
            raise InputError(f"{file}: {error}") from None
        if "methods" in given:
            labels = [MethodConfig.model_validate(method).label for method in given["methods"]]
            values = {k: v for k, v in values.items() if k not in ("baseline", "primary") or v in labels}
        for key, value in given.items():
            table = isinstance(value, dict) and isinstance(values.get(key), dict)
            values = {**values, key: {**values[key], **value} if table else value}
        study = cls.of(values, str(file), file.parent)
        if not Path(study.data).is_file():
            raise InputError(f"{file}: data: {study.data}: no such file")
        return study

    @classmethod
    def stored(cls, values: Mapping[str, Any], where: str) -> Study:
        """A study as a run folder keeps it, to be looked at: its files and what its methods load may be gone.

        Raises:
            InputError: naming `where`, where the values are none of a study.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InputError(f"{where}: {'; '.join(_problem(e) for e in error.errors())}") from None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """What results depend on besides the methods: all but names, limits and what is looked at afterwards."""
        free = {"methods", "name", "limit", "group", "max_batch_tokens", "measure", "baseline", "primary"}
        values = {k: v for k, v in self.to_dict().items() if k not in free}
        values["noise"] = {k: v for k, v in values["noise"].items() if not k.startswith("attention")}
        return values


def _plural(values: dict[str, Any]) -> dict[str, Any]:
    """With "readers" for "reader" and "seeds" for "seed"."""
    for one, many in (("reader", "readers"), ("seed", "seeds")):
        if one in values:
            if many in values:
                raise ValueError(f"{one} and {many} are the same; give one of them")
            values = {**{k: v for k, v in values.items() if k != one}, many: values[one]}
    return values


def _problem(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key"
    return f"{place}: {message}" if place else message
