"""What a step of the engine changes: the parameters of the model, and those that the optimizer holds."""


def watch(record):
    import engine

    step, updates = engine.Engine.step, [0]

    def stepped(self):
        live = list(self.module.parameters())
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = [[p.detach().clone() for p in parameters] for parameters in (live, held)]
        norm = step(self)
        updates[0] += 1
        live_moved, held_moved = (
            sum(not p.detach().equal(old) for p, old in zip(parameters, olds, strict=True))
            for parameters, olds in zip((live, held), before, strict=True)
        )
        record(step=updates[0], live=len(live), live_moved=live_moved, held_moved=held_moved)
        return norm

    engine.Engine.step = stepped


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["held_moved"] and not seen["live_moved"]), None)
