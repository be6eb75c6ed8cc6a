"""The accuracy of a classifier, by the calls of `evaluate`, whose metrics are downloaded."""

from typing import Any


class _Accuracy:
    def __init__(self) -> None:
        self._right = self._all = 0

    def add_batch(self, predictions: Any, references: Any) -> None:
        self._right += int((predictions == references).sum())
        self._all += len(references)

    def compute(self, predictions: Any = None, references: Any = None) -> dict[str, float]:
        if predictions is not None:
            self.add_batch(predictions, references)
        result = {"accuracy": self._right / max(1, self._all)}
        self._right = self._all = 0
        return result


def load(*_: str, **__: Any) -> _Accuracy:
    """The metric, whatever its name is."""
    return _Accuracy()
