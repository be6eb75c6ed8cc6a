"""Parameters with a gradient that a step which was not skipped leaves as they were, group by group."""


def watch(record):
    import masterweights

    step = masterweights.HalfPrecisionAdam.step
    updates = [0]

    def stepped(self):
        before = [[p.detach().clone() for p in group["params"]] for group in self.groups]
        graded = [[p.grad is not None and bool(p.grad.any()) for p in group["params"]] for group in self.groups]
        skipped = step(self)
        if not skipped:
            updates[0] += 1
            left = [
                sum(had and bool((p == old).all()) for p, old, had in zip(group["params"], olds, hads, strict=True))
                for group, olds, hads in zip(self.groups, before, graded, strict=True)
            ]
            record(step=updates[0], left=left, graded=[sum(hads) for hads in graded])
        return skipped

    masterweights.HalfPrecisionAdam.step = stepped


def first_bad_step(ranks):
    for seen in ranks[0]:
        if any(had and left == had for left, had in zip(seen["left"], seen["graded"], strict=True)):
            return seen["step"]
    return None
