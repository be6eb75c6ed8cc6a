"""What a run has to show to become a reference for later runs of the same program."""

from __future__ import annotations

from traincheck.relations.consistent.bands import BANDS
from traincheck.relations.consistent.call_order import ORDER
from traincheck.relations.consistent.computation import DESCRIPTIONS
from traincheck.relations.consistent.configuration import SETTINGS
from traincheck.relations.consistent.descriptions import DESCRIBED
from traincheck.relations.consistent.pass_ends import PASSES
from traincheck.relations.consistent.ranks.seeds import SEEDS
from traincheck.relations.consistent.whole_runs import RUNS

REFERENCE = SETTINGS | DESCRIPTIONS | DESCRIBED | ORDER | PASSES | RUNS | SEEDS | BANDS
"""The demand of a checked run, in addition to that of its rules. It leaves out the contents of batches: to read them in
each step costs too much if no rule is about them."""
