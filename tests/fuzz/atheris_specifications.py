"""Texts that name orderings or retrievers: an InputError, or orderings of all the passages."""

from __future__ import annotations

from atheris_runner import Target, run

MODULES = ("fastreader.permutations", "fastreader.eor.spec")
EXAMPLES = (
    b"\x03cyclic",
    b"\x05random:7",
    b"\x04latin:2",
    b"\x03prefix_sharing:3",
    b"\x02SE@RR@5&Wiki@5@CP",
    b"\x00PK",
)


def make() -> Target:
    from fastreader.eor.spec import parse
    from fastreader.errors import InputError
    from fastreader.permutations import resolve

    def target(data: bytes) -> None:
        n = data[0] % 7 + 1 if data else 1
        text = data[1:].decode(errors="replace")
        try:
            orders = resolve(text, n).permutations
        except InputError:
            pass
        else:
            assert {tuple(sorted(order)) for order in orders.tolist()} == {tuple(range(n))}, text
        try:
            node = parse(text)
        except InputError:
            return
        assert str(parse(str(node))) == str(node), text

    return target


if __name__ == "__main__":
    run(MODULES, make)
