"""Options that several commands share, said once: fields of a dataclass become options of a command."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of the dataclasses among its parameters.

    Typer reads a command's options from its signature, so the result has a signature in which every field is a
    parameter. Called with these, it builds the dataclasses and calls the command. `--help` shows the fields of a
    dataclass in a panel, which the class names as `panel`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        command(**built, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(kind: Any) -> list[inspect.Parameter]:
    """Return a keyword parameter for each field of a dataclass, in its panel."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        plain, option = get_args(hints[field.name])
        option = copy.copy(option)
        option.rich_help_panel = option.rich_help_panel or kind.panel
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = Annotated[plain, option]  # type: ignore[valid-type]
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return found
