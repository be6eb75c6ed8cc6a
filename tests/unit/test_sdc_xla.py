"""The built-in decoder as XLA executes it: the same training as torch's, struck by the same faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import pytest
import torch

from traincheck.errors import BadOption, MissingExtra
from traincheck.options import OPTIONS
from traincheck.sdc.doctor import advice
from traincheck.sdc.environment import require_jax
from traincheck.sdc.faults.fault import Fault, parse_fault
from traincheck.sdc.faults.inject import Hit
from traincheck.sdc.fingerprint_log import Entry, first_difference
from traincheck.sdc.frameworks import FRAMEWORKS, check_executable, framework_of
from traincheck.sdc.recording import record_submodules
from traincheck.sdc.workload.decoder import Decoder, DecoderWorkload
from traincheck.sdc.workload.sizes import SIZES
from traincheck.sdc.workload.training import TorchTraining, Training
from traincheck.sdc.workload.workload import load_workload, submodules_of
from traincheck.sdc.xla.arrays import as_array, as_tensor
from traincheck.sdc.xla.decoder import submodules
from traincheck.sdc.xla.settings import make_xla_deterministic, variables
from traincheck.sdc.xla.training import XlaTraining, XlaWorkload

CPU = torch.device("cpu")


def drawn(dtype: str = "fp32") -> DecoderWorkload:
    """The smallest decoder."""
    made = load_workload(f"decoder-tiny-{dtype}", 0, CPU)
    assert isinstance(made, DecoderWorkload)
    return made


@pytest.fixture(scope="module")
def compiled() -> XlaWorkload:
    """Compiles its programs once for all tests."""
    return XlaWorkload(drawn())


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX computes fp64."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def trained(
    training: Training, steps: int = 3, faults: Sequence[Fault] = ()
) -> tuple[list[torch.Tensor], list[list[Hit]]]:
    """Losses, gradients of the last step and parameters after it; and what the faults hit."""
    computed: list[torch.Tensor] = []
    with training.faulty(faults) as injected:
        for step in range(1, steps + 1):
            computed.append(training.forward(training.batch(step)).detach())
            training.backward()
            if step == steps:
                training.gradients(lambda name, value: computed.append(value.clone()))
            training.update()
    return [*computed, *(value.detach() for _, value in training.parameters())], [
        injection.hits for injection in injected
    ]


def same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(first, second, strict=True))


def test_the_same_weights_give_the_same_losses_gradients_and_updates_as_in_torch(compiled: XlaWorkload) -> None:
    of_torch, of_xla = TorchTraining(drawn()), compiled.begin()
    first, second = trained(of_torch)[0], trained(of_xla)[0]
    assert len(first) == len(second) == 3 + 2 * len(list(of_torch.parameters()))
    for left, right in zip(first, second, strict=True):
        # By their norms: Adam makes steps of one size of gradients that are hardly more than their rounding.
        assert left.dtype == right.dtype and left.shape == right.shape
        assert float((left - right).norm()) <= 1e-4 * float(left.norm())
    assert of_torch.evaluate() == pytest.approx(of_xla.evaluate(), rel=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp64", 1e-7), ("bf16", 1e-2)])
def test_other_dtypes_agree_too(dtype: str, tolerance: float, wide: None) -> None:
    in_torch, in_jax = TorchTraining(drawn(dtype)), XlaWorkload(drawn(dtype)).begin()
    losses = [float(training.forward(training.batch(1)).detach()) for training in (in_torch, in_jax)]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


@pytest.mark.parametrize("size", ["tiny", "8b"])
def test_submodules_and_parameters_are_those_of_torch(size: str) -> None:
    with torch.device("meta"):
        model = Decoder(SIZES[size])
    parts = submodules(SIZES[size])
    whole = {f"{name}.{inner}" for name, submodule in parts.items() for inner in submodule.parameters}
    assert whole == {name for name, _ in model.named_parameters()}
    assert {name: submodule.kind for name, submodule in parts.items()} == submodules_of(drawn(), model)
    assert all(type(model.get_submodule(name)).__name__ == submodule.label for name, submodule in parts.items())


def test_two_trainings_compute_the_same_bits_and_a_fault_that_never_strikes_changes_none(compiled: XlaWorkload) -> None:
    plain = trained(compiled.begin())[0]
    never = [Fault(site=site, chance=0.0) for site in ("forward", "backward", "gradient", "optimizer")]
    computed, hits = trained(compiled.begin(), faults=never)
    assert same(plain, computed) and hits == [[], [], [], []]


KINDS = [
    Fault("bitflip", bit=20),
    Fault("stuck", bit="sign"),
    Fault("intermittent", bit="mantissa", nonfinite=0.0),  # a NaN in a result equals no other
    Fault("intermittent", bit="mantissa", nonfinite=0.0, stride=3),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda fault: fault.text)
@pytest.mark.parametrize("site", ["forward", "backward", "gradient", "optimizer"])
def test_each_fault_hits_the_same_elements_as_in_torch(compiled: XlaWorkload, site: str, kind: Fault) -> None:
    pattern = "layers.*weight" if site in ("gradient", "optimizer") else "*.attention"
    fault = Fault(**{**vars(kind), "site": site, "pattern": pattern, "elements": 5, "chance": 0.4, "seed": 3})
    assert parse_fault(fault.text) == fault
    computed, (hits,) = trained(compiled.begin(), faults=[fault])
    again, (hits_again,) = trained(compiled.begin(), faults=[fault])
    assert hits and hits == hits_again and same(computed, again)
    assert not same(computed, trained(compiled.begin())[0])
    of_torch = trained(TorchTraining(drawn()), faults=[fault])[1][0]
    assert sorted(hits) == sorted(of_torch)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_faulty_values_can_be_read_and_replaced(compiled: XlaWorkload, direction: str) -> None:
    def seen_in(training: XlaTraining, other: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = {}

        def seen(name: str, way: str, value: torch.Tensor) -> torch.Tensor | None:
            if way != direction:
                return None
            values[name] = value
            return None if other is None else other[name]

        with training.watched(seen):
            training.forward(training.batch(1))
            training.backward()
        return values

    right = seen_in(compiled.begin())
    assert next(iter(right)) == ("embedding" if direction == "forward" else "head")
    training = compiled.begin()
    fault = Fault("intermittent", direction, "layers.1.attention", elements=9, stride=4, zeros=1, nonfinite=0, chance=1)
    with training.faulty([fault]):
        wrong = seen_in(training, right)
    places = (wrong["layers.1.attention"] == 0).flatten().nonzero().flatten().tolist()
    assert places == list(range(places[0], places[0] + 36, 4))
    # What was replaced reaches nobody else.
    assert [name for name in right if not torch.equal(right[name], wrong[name])] == ["layers.1.attention"]


def test_classes_are_patterns_too_and_none_that_matches_is_reported(compiled: XlaWorkload) -> None:
    training = compiled.begin()
    _, (hits,) = trained(training, 1, [Fault(pattern="RMSNorm")])
    assert len(hits) == 5 and all("norm" in hit.name for hit in hits)
    for fault, names in ((Fault(pattern="nowhere"), "module"), (Fault(site="gradient", pattern="head"), "parameter")):
        with pytest.raises(BadOption, match=f"one that matches a {names} of the model"), training.faulty([fault]):
            pass
    with training.faulty([Fault(rank=1)]) as (injected,):
        training.forward(training.batch(1))
    assert injected.times == 0  # this process is of rank 0


def test_a_recording_names_the_first_submodule_that_differs(compiled: XlaWorkload) -> None:
    def recorded(faults: Sequence[Fault]) -> list[Entry]:
        entries: list[Entry] = []
        training = compiled.begin()
        with training.faulty(faults):
            record_submodules(training, 2, entries.append)
        return entries

    right = recorded(())
    assert len(right) == 1 + 2 * (1 + 11 + 1 + 10 + 21 + 21)
    assert first_difference(right, recorded(())) is None
    for fault, sentence in (
        (Fault(pattern="layers.1.feed_forward", first=2), "output in layers.1.feed_forward, forward, step 2"),
        (Fault(site="backward", pattern="*.attention"), "gradient of input 0 in layers.1.attention, backward, step 1"),
        (Fault(site="optimizer", pattern="head.weight"), "parameter in head.weight, optimizer, step 1"),
    ):
        parted = first_difference(right, recorded([fault]))
        assert parted is not None and parted.first is not None and parted.first.sentence == sentence
        assert "XLA_FLAGS" in advice(parted, (), "xla")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_go_to_jax_and_back_bit_by_bit(dtype: torch.dtype) -> None:
    value = torch.tensor([[1.5, -0.0], [float("inf"), float("nan")]], dtype=dtype)
    back = as_tensor(as_array(value))
    word = torch.int32 if dtype == torch.float32 else torch.int16
    assert back.dtype == dtype and torch.equal(back.view(word), value.view(word))
    value.zero_()
    assert back[0, 0] == 1.5
    assert as_array(torch.arange(3)).dtype == "int32"


def test_user_settings_stay() -> None:
    assert variables(1, "cpu", {}) == {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    assert variables(2, "cpu", {}) == {"NPROC": "2"}
    given = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=false --xla_dump_to=x"}
    assert variables(2, "cuda", given)["XLA_FLAGS"] == given["XLA_FLAGS"]
    assert variables(2, "cuda", {})["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    ("device", "part"), [("warp", "Unknown backend"), ("cpu:9", "one of the 1"), ("cpu:one", "the name of a device")]
)
def test_a_device_that_jax_has_not_got(device: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPROC", "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # to be put back
    monkeypatch.setattr(
        "traincheck.sdc.xla.settings.make_deterministic", lambda seed, threads: {"seeds of random, numpy and torch": ""}
    )
    with pytest.raises(BadOption, match="--device was given") as error:
        make_xla_deterministic(0, 1, device, wide=False)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("workload", "fault", "part"),
    [
        ("mine.py:workload", None, "--workload was given 'mine.py:workload'; expected with --framework xla a built-in"),
        ("decoder-tiny", Fault(site="communication"), "one of forward, backward, gradient, optimizer"),
    ],
)
def test_xla_refuses_torch_only_options(workload: str, fault: Fault | None, part: str) -> None:
    check_executable("torch", workload, [fault] if fault else [])
    with pytest.raises(BadOption) as error:
        check_executable("xla", workload, [fault] if fault else [])
    assert part in str(error.value)


def test_a_model_that_is_split_is_torchs() -> None:
    check_executable("torch", "decoder-tiny", (), 2)
    with pytest.raises(BadOption, match="--tensor-parallel was given 2; expected 1 with --framework xla"):
        check_executable("xla", "decoder-tiny", (), 2)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs the package 'jax'.*pip install 'traincheck\[xla\]'"):
        require_jax("this")
    with pytest.raises(BadOption, match="--framework was given 'tensorflow'; expected one of torch, xla"):
        framework_of("tensorflow", "this")
    assert OPTIONS["framework"].choices == FRAMEWORKS
