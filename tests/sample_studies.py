"""Made-up results of `traincheck sdc study`, for the tests of tables, pages and readers."""

from __future__ import annotations

from typing import Any

from traincheck.sdc.study.rank_merge import merged

FAULT = "bitflip@forward:layers.1.attention,bit=20"
KINDS = {"embedding": "embedding", "layers.1.attention": "attention", "head": "head"}


def _row(elements: int, different: int, **names: str) -> dict[str, Any]:
    share = different / elements
    size = 0.125 if different else 0.0
    counts = {"elements": elements, "different": different, "rated": different, "not_finite": 0}
    return {**names, **counts, "frequency": share, "severity": size / 2, "worst": size}


def _tables(direction: str, hit: tuple[str, ...]) -> dict[str, Any]:
    rows = {name: 12 if name in hit else 0 for name in KINDS}
    return {
        "by_kind": [_row(600, count, kind=KINDS[name], direction=direction) for name, count in rows.items()],
        "by_module": [_row(600, count, module=name, direction=direction) for name, count in rows.items()],
    }


def levels(steps: int = 8, hit: bool = True) -> dict[str, Any]:
    """Return the results of one worker on each level; in the second half, a fault strikes if it is `hit`."""
    strokes = [{"fault": FAULT, "times": steps // 2 if hit else 0}]
    struck = [hit and step > steps // 2 for step in range(1, steps + 1)]
    losses = [{"step": step, "loss": 4 - step / steps} for step in range(1, steps + 1)]

    def series(of_step: Any) -> list[dict[str, Any]]:
        return [
            {**entry, "suspect_loss": entry["loss"] + 0.001 * odd, **of_step(odd, entry["step"])}
            for entry, odd in zip(losses, struck, strict=True)
        ]

    def level(of_step: Any, tables: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"steps": steps, "injected": strokes, **more, **tables, "series": series(of_step)}

    everywhere = tuple(KINDS) if hit else ()
    noise = 0.25 if hit else 0.0
    return {
        "submodule": level(
            lambda odd, step: {"forward": 0.001 * odd, "backward": 0.0, "gradient": 0.0, "update": 0.0},
            _tables("forward", ("layers.1.attention",) if hit else ()),
        ),
        "step": level(
            lambda odd, step: {
                "noise_to_signal": 10.0**-step if odd else 0.0,
                "worst_noise_to_signal": noise * odd,
                "worst_parameter": "head.weight",
                "gradient": 1.0 * odd,
                "update": 0.5 * odd,
            },
            _tables("gradient", everywhere),
            worst_noise_to_signal=noise,
            worst_noise_to_signal_of_a_parameter=noise,
        ),
        "period": level(
            lambda odd, step: {"parameter_distance": 0.1 * odd, "relative_distance": 0.001 * step * odd},
            {"by_kind": [], "by_module": []},
            evaluation={"trusted": 3.0, "suspect": 3.001 if hit else 3.0},
        ),
    }


def study(ranks: int = 1, hit: bool = True, steps: int = 8, **changed: Any) -> dict[str, Any]:
    """The data of a study, in which only the last of several ranks is hit."""
    of_ranks = [levels(steps, hit and rank == ranks - 1) for rank in range(ranks)]
    worker = {"host": "monday", "torch": "2.0", "device": "cpu", "name": "a processor"}
    return {
        "format": "traincheck-sdc-study",
        "version": 1,
        "workload": "decoder-tiny",
        "steps": steps,
        "seed": 0,
        "device": "cpu",
        "threads": 1,
        "faults": [FAULT],
        "tensor_parallel": ranks,
        "interrupted": False,
        "workers": {"trusted": worker, "suspect": {**worker, "host": "tuesday"}},
        "levels": merged(of_ranks),
        **changed,
    }
