"""A small GPT-2 under the Trainer of transformers: the workload `hf_trainer`."""

import tempfile

import torch
from timing import Clock
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Ticks(TrainerCallback):
    def __init__(self, clock):
        self.clock = clock

    def on_step_end(self, args, state, control, **kwargs):
        self.clock.tick()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        tokens = torch.randint(256, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=3, n_head=4)
clock = Clock()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=clock.steps(64),
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), callbacks=[Ticks(clock)]).train()
clock.write_times()
