"""`import traincheck` offers exactly its documented names."""

from __future__ import annotations

import types

import traincheck

NOT_OURS = {"annotations", "TYPE_CHECKING", "Any"}


def test_all_is_sorted_and_has_no_name_twice() -> None:
    assert list(traincheck.__all__) == sorted(set(traincheck.__all__))


def test_every_name_is_there_and_explained() -> None:
    for name in traincheck.__all__:
        value = getattr(traincheck, name)
        assert isinstance(value, str) or value.__doc__, f"traincheck.{name} has no docstring"


def test_every_public_name_is_listed() -> None:
    public = {
        name
        for name, value in vars(traincheck).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public - NOT_OURS <= set(traincheck.__all__)


def test_extension_points_load() -> None:
    from traincheck import plugins
    from traincheck.diagnoses.catalogue import catalogue

    for group, shipped in plugins.GROUPS.items():
        assert set(plugins.load(group)) >= set(shipped)
    assert len(catalogue()) > 50  # diagnoses that ship are found by their folders; only those of packages are plugins
