"""A public kit for tests: of your own training (`verify_step`), and of relations, sources and sinks that you write."""

from __future__ import annotations

from traincheck.testing.verification import verify_step

__all__ = ["verify_step"]
