"""What scikit-learn asks of an estimator, without needing scikit-learn."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

from fastreader.errors import InputError


class Estimator:
    """Parameters by name: the constructor stores its arguments as they are, under their names.

    Attributes:
        forgets: parameters that what was learned belongs to; setting one of them forgets it.
        learned: names of what `fit` leaves.
    """

    forgets: ClassVar[frozenset[str]] = frozenset()
    learned: ClassVar[tuple[str, ...]] = ()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Replace arguments of the constructor.

        What a fit learned is forgotten when an argument that it belongs to is set, to whichever value.

        Raises:
            InputError: an argument that is none.
        """
        known = self.get_params()
        if unknown := sorted(set(params) - set(known)):
            kind = type(self).__name__
            raise InputError(f"set_params: unknown parameter {unknown[0]!r}; a {kind} has {', '.join(known)}")
        for name, value in params.items():
            setattr(self, name, value)
        if self.forgets & params.keys():
            for name in self.learned:
                self.__dict__.pop(name, None)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True, two_d_labels=True, multi_output=True),
            input_tags=InputTags(two_d_array=False, string=True, allow_nan=True),
            no_validation=True,
        )
