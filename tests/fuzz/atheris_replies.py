"""A model's replies: any text gives candidates, a label or an order, and never an exception."""

from __future__ import annotations

from atheris_runner import Target, run

MODULES = ("fastreader.sure.replies", "fastreader.moi.baselines.listwise")
EXAMPLES = (
    b"\x02(a) Ada, (b) Bea",
    b"\x031. x\n2. y\n3. z",
    b"\x04[2] > [1] > [4]",
    b"\x02True",
    b"\x02Summary 1",
    b"\x02[" + b"9" * 5000 + b"]",
)


def make() -> Target:
    from fastreader.moi.baselines.listwise import parse_permutation
    from fastreader.sure.replies import parse_candidates, parse_label, short_answer

    def target(data: bytes) -> None:
        n = data[0] % 6 + 1 if data else 1
        reply = data[1:].decode(errors="replace")
        found = parse_candidates(reply, n)
        assert len(found.candidates) <= n and all(c.strip() for c in found.candidates), reply
        label = parse_label(reply, ["True", "False", "Summary 1"])
        assert label is None or 0 <= label < 3
        assert isinstance(short_answer(reply), str)
        order = parse_permutation(reply, n).complete(n)
        assert sorted(order) == list(range(n)), reply

    return target


if __name__ == "__main__":
    run(MODULES, make)
