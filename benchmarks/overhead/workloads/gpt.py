"""A GPT of one million parameters: the workload `gpt`."""

from gpt_model import Sizes, train
from timing import Clock

clock = Clock()
train(Sizes(width=144, layers=4, heads=4), batch=16, steps=clock.steps(64), clock=clock)
