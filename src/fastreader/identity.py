"""What of a reader a run may not change when it goes on."""

from __future__ import annotations

from collections.abc import Mapping


def guarding(reader: Mapping[str, str]) -> dict[str, str]:
    """Of `Reader.describe` what names the model and its arithmetic: name, revision, dtype and precision.

    Device and path of the forward change results by rounding alone: a run may go on on another machine. They belong
    into the rows.
    """
    return {name: reader[name] for name in ("name", "revision", "dtype", "precision") if name in reader}
