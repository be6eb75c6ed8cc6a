"""A GPT of 20 million parameters: the workload `gpt_20m`."""

from gpt_model import Sizes, train
from timing import Clock

clock = Clock()
train(Sizes(width=512, layers=6, heads=8, vocabulary=1024), batch=4, steps=clock.steps(64), clock=clock)
