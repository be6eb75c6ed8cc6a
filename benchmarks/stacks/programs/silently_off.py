"""A loop with Accelerate, LoRA and a filtered dataset. --case NAME misspells one request, which then does nothing."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny import digest, make_model, make_tokenizer, sentences
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, get_scheduler

REQUESTS = {
    "targets": (["q_proj", "v_proj", "up_proj"], ["q_proj", "value_proj", "up_proj"]),
    "layers": ([0, 1], [1, 2]),
    "excluded": (["layers.1.mlp.up_proj"], ["layer.1.mlp.up_proj"]),
    "frozen": ("base_model.model.model.layers.0.self_attn", "model.layers.0.self_attn"),
    "undecayed": ("lora_B", "lora_b"),
    "schedule": ("constant_with_warmup", "constant"),
    "dropout": ("attention_dropout", "attn_dropout"),
    "filter": ("captain", "Captain"),
    "clipping": (False, True),
}
"""By case, the request as it was meant, and the one that matches nothing or changes nothing."""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", choices=("none", *REQUESTS), default="none")
    args = parser.parse_args()
    set_seed(args.seed)
    asked = {name: wrong if name == args.case else right for name, (right, wrong) in REQUESTS.items()}

    tokenizer = make_tokenizer()
    texts = Dataset.from_dict({"text": sentences(220, args.seed)})
    texts = texts.filter(lambda row: asked["filter"] not in row["text"]).select(range(160))
    data = texts.map(lambda row: tokenizer(f"<s> {row['text']} </s>"), remove_columns=["text"])
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)

    model = make_model(tokenizer, **{asked["dropout"]: 0.1})
    adapters = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=asked["targets"],
        layers_to_transform=asked["layers"],
        exclude_modules=asked["excluded"],
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapters)
    for name, parameter in model.named_parameters():
        if name.startswith(asked["frozen"]):
            parameter.requires_grad_(False)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [value for name, value in trained if asked["undecayed"] not in name], "weight_decay": 0.1},
        {"params": [value for name, value in trained if asked["undecayed"] in name], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    schedule = get_scheduler(asked["schedule"], optimizer, num_warmup_steps=8, num_training_steps=40)

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    parameters = iter([value for _, value in trained]) if asked["clipping"] else [value for _, value in trained]
    for epoch in range(2):
        model.train()
        total = 0.0
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.item()
        accelerator.print(f"epoch {epoch} loss {total / len(loader):.6f} rate {schedule.get_last_lr()[0]:.6f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
