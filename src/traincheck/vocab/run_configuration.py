"""The configuration of a training process: what it computes with, apart from the program's own code."""

from __future__ import annotations

import msgspec


class RunConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a process in its first training step. Each part maps a name to a value.

    `settings` are global settings of torch and the device; a release of torch may not know all of them. `packages` are
    the versions of imported packages, and `environment` the variables that numerical libraries read.
    """

    settings: dict[str, str] = {}
    packages: dict[str, str] = {}
    environment: dict[str, str] = {}
