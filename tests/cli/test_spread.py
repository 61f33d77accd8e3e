"""Options that commands share: what Typer sees of the dataclasses, and how many options a command has besides."""

import inspect
from dataclasses import dataclass, is_dataclass
from typing import Annotated, ClassVar, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from fastreader.cli import commands
from fastreader.cli.options import spread

MOST = 14  # options of a command besides shared groups


@dataclass(frozen=True)
class Paint:
    """A group of options."""

    panel: ClassVar[str] = "Paint"
    colour: Annotated[str, typer.Option("--colour", "-c", help="What it looks like.")] = "red"
    coats: Annotated[int, typer.Option(help="How many.", min=1)] = 2


@spread
def house(*, name: Annotated[str, typer.Argument()], floors: Annotated[int, typer.Option()] = 1, paint: Paint) -> None:
    """Build."""
    typer.echo(f"{name} {floors} {paint.colour} {paint.coats}")


@pytest.fixture
def app():
    application = typer.Typer()
    application.command()(house)
    return application


def test_fields_are_options_and_come_back_as_a_dataclass(app):
    runner = CliRunner()
    assert runner.invoke(app, ["villa"]).output == "villa 1 red 2\n"
    assert runner.invoke(app, ["villa", "-c", "blue", "--coats", "3", "--floors", "2"]).output == "villa 2 blue 3\n"
    assert runner.invoke(app, ["villa", "--coats", "0"]).exit_code == 2
    shown = runner.invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert "─ Paint ─" in shown and "What it looks like." in shown
    assert shown.index("--floors") < shown.index("─ Paint ─") < shown.index("--colour")


@pytest.mark.parametrize("command", commands.app.registered_commands, ids=lambda command: command.callback.__name__)
def test_a_command_has_few_options_beside_shared_groups(command):
    function = inspect.unwrap(command.callback)
    hints = get_type_hints(function)
    own = [name for name in inspect.signature(function).parameters if not is_dataclass(hints[name])]
    assert len(own) <= MOST, own
