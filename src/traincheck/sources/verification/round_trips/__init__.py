"""Round trips: does the state in a checkpoint determine what the model computes, and how the optimizer goes on?

`unsaved_state` finds state that a checkpoint leaves out. `model_outputs` and `optimizer_updates` show whether a
difference matters.
"""
