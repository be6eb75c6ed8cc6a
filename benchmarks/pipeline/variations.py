"""For each example, three clean runs and four changes that a user may make, as arguments or as edits."""

from __future__ import annotations

from typing import NamedTuple


class Variation(NamedTuple):
    """A variation of a run: arguments of the script, and replacements in its text."""

    args: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()


def given(*args: str) -> Variation:
    """A variation by arguments."""
    return Variation(args)


def edited(*edits: tuple[str, str]) -> Variation:
    """A variation by edits."""
    return Variation((), edits)


FIRST, SECOND, THIRD = "first", "second", "third"
BATCH, RATE, WIDTH, OPTIMIZER = "batch size", "learning rate", "width", "optimizer"

VARIATIONS: dict[str, dict[str, Variation]] = {
    "digits_cnn": {
        FIRST: given("--epochs", "3"),
        SECOND: given("--epochs", "4", "--seed", "1"),
        THIRD: given("--epochs", "5", "--seed", "2"),
        BATCH: given("--epochs", "4", "--batch-size", "48"),
        RATE: given("--epochs", "4", "--lr", "0.01"),
        WIDTH: edited(("32, 3", "24, 3"), ("Conv2d(32,", "Conv2d(24,"), ("BatchNorm2d(32)", "BatchNorm2d(24)")),
        OPTIMIZER: edited(
            (
                "optim.SGD(model.parameters(), lr=args.lr, momentum=0.9,",
                "optim.AdamW(model.parameters(), lr=args.lr / 10,",
            )
        ),
    },
    "small_gpt": {
        FIRST: edited(("max_iters = 80", "max_iters = 40")),
        SECOND: edited(("max_iters = 80", "max_iters = 60"), ("seed(1337)", "seed(1)")),
        THIRD: edited(("max_iters = 80", "max_iters = 50"), ("seed(1337)", "seed(2)")),
        BATCH: edited(("max_iters = 80", "max_iters = 40"), ("batch_size = 8", "batch_size = 6")),
        RATE: edited(("max_iters = 80", "max_iters = 40"), ("learning_rate = 2e-3", "learning_rate = 1e-3")),
        WIDTH: edited(("max_iters = 80", "max_iters = 40"), ("n_embd = 128", "n_embd = 96")),
        OPTIMIZER: edited(("max_iters = 80", "max_iters = 40"), ("torch.optim.AdamW(", "torch.optim.NAdam(")),
    },
    "lstm_tbptt": {
        FIRST: given("--epochs", "2"),
        SECOND: given("--epochs", "3", "--seed", "1"),
        THIRD: given("--epochs", "2", "--seed", "2"),
        BATCH: given("--epochs", "2", "--batch_size", "12"),
        RATE: given("--epochs", "2", "--lr", "2e-3"),
        WIDTH: given("--epochs", "2", "--nhid", "96"),
        OPTIMIZER: Variation(("--epochs", "2"), (("torch.optim.Adam(", "torch.optim.RMSprop("),)),
    },
    "vae": {
        FIRST: given("--epochs", "3"),
        SECOND: given("--epochs", "4", "--seed", "1"),
        THIRD: given("--epochs", "5", "--seed", "2"),
        BATCH: given("--epochs", "3", "--batch-size", "64"),
        RATE: given("--epochs", "3", "--lr", "1e-3"),
        WIDTH: Variation(("--epochs", "3"), (("256", "192"),)),
        OPTIMIZER: Variation(("--epochs", "3"), (("optim.Adam(", "optim.RMSprop("),)),
    },
    "gan": {
        FIRST: edited(("EPOCHS = 5", "EPOCHS = 3")),
        SECOND: edited(("EPOCHS = 5", "EPOCHS = 4"), ("SEED = 0", "SEED = 1")),
        THIRD: edited(("SEED = 0", "SEED = 2")),
        BATCH: edited(("BATCH = 128", "BATCH = 96")),
        RATE: edited(("LR = 1e-3", "LR = 5e-4")),
        WIDTH: edited(("HIDDEN = 256", "HIDDEN = 192")),
        OPTIMIZER: edited(("torch.optim.Adam(", "torch.optim.AdamW(")),
    },
    "finetune_frozen": {
        FIRST: given("--epochs", "4"),
        SECOND: given("--epochs", "5", "--seed", "1"),
        THIRD: given("--epochs", "4", "--pretrain-epochs", "2", "--seed", "2"),
        BATCH: given("--batch-size", "32"),
        RATE: given("--lr", "1e-2"),
        WIDTH: edited(("Conv2d(64, 128", "Conv2d(64, 96"), ("BatchNorm2d(128)", "BatchNorm2d(96)"), ("= 128", "= 96")),
        OPTIMIZER: edited(("torch.optim.Adam(", "torch.optim.NAdam(")),
    },
    "grad_accum_bf16": {
        FIRST: given("--epochs", "4"),
        SECOND: given("--epochs", "5", "--seed", "1"),
        THIRD: given("--epochs", "6", "--seed", "2"),
        BATCH: given("--epochs", "4", "--micro-batch-size", "24"),
        RATE: given("--epochs", "4", "--max-lr", "2e-3"),
        WIDTH: edited(("dim=96", "dim=64")),
        OPTIMIZER: edited(("torch.optim.AdamW(", "torch.optim.NAdam(")),
    },
    "reinforce": {
        FIRST: given("--episodes", "30"),
        SECOND: given("--episodes", "40", "--seed", "1"),
        THIRD: given("--episodes", "50", "--seed", "2"),
        BATCH: given("--episodes", "30", "--max-steps", "60"),
        RATE: given("--episodes", "30", "--lr", "2e-3"),
        WIDTH: Variation(
            ("--episodes", "30"), (("Linear(4, 64)", "Linear(4, 48)"), ("Linear(64, 2)", "Linear(48, 2)"))
        ),
        OPTIMIZER: Variation(
            ("--episodes", "30"),
            (
                (
                    "optim.RMSprop(policy.parameters(), lr=args.lr, alpha=0.9)",
                    "optim.Adam(policy.parameters(), lr=args.lr)",
                ),
            ),
        ),
    },
    "augmented_workers": {
        FIRST: given("--epochs", "4"),
        SECOND: given("--epochs", "6", "--seed", "1"),
        THIRD: given("--epochs", "4", "--seed", "2"),
        BATCH: given("--batch-size", "40"),
        RATE: given("--lr", "0.3"),
        WIDTH: given("--width", "12"),
        OPTIMIZER: edited(
            (
                "SGD(self.model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)",
                "AdamW(self.model.parameters(), lr=args.lr / 100)",
            ),
        ),
    },
    "hf_trainer": {
        FIRST: given("--epochs", "2"),
        SECOND: given("--epochs", "3", "--seed", "1"),
        THIRD: given("--epochs", "2", "--seed", "2"),
        BATCH: given("--epochs", "2", "--batch-size", "24"),
        RATE: given("--epochs", "2", "--lr", "1e-3"),
        WIDTH: Variation(("--epochs", "2"), (("hidden_size=64", "hidden_size=48"),)),
        OPTIMIZER: Variation(
            ("--epochs", "2"), (('lr_scheduler_type="linear",', 'lr_scheduler_type="linear", optim="adagrad",'),)
        ),
    },
}
