"""Small language models with random weights, their tokenizer and their texts, for the programs in this folder."""

import hashlib
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SUBJECTS = [
    "the cat",
    "a dog",
    "my teacher",
    "our neighbour",
    "the old captain",
    "one sparrow",
    "a quiet child",
    "the engineer",
]
VERBS = [
    "sees",
    "likes",
    "paints",
    "follows",
    "repairs",
    "forgets",
    "carries",
    "describes",
]
OBJECTS = [
    "the river",
    "a red house",
    "two letters",
    "the broken clock",
    "every question",
    "a small boat",
    "the answer",
]
TAILS = [
    "",
    "today",
    "in the morning",
    "without a word",
    "behind the station",
    "because of the rain",
    "again and again",
]
CHAT = (
    "{% for message in messages %}{{ '<s> ' + message['role'] + ' ' + message['content'] + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant ' }}{% endif %}"
)


def sentences(count, seed):
    """Sentences of four to twelve words."""
    draw = random.Random(seed)
    parts = (SUBJECTS, VERBS, OBJECTS, TAILS)
    return [" ".join(draw.choice(part) for part in parts).strip() for _ in range(count)]


def make_tokenizer():
    """A tokenizer of whole words."""
    words = sorted({word for part in (*SUBJECTS, *VERBS, *OBJECTS, *TAILS) for word in part.split()})
    special = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system", "good", "bad"]
    tokens = {word: number for number, word in enumerate([*special, *words])}
    plain = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=128, **roles)
    tokenizer.chat_template = CHAT
    return tokenizer


def make_config(tokenizer, **changes):
    """The configuration of a Llama of two layers."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=128, **sizes, **ids, **changes
    )


def make_model(tokenizer, **changes):
    """A Llama of two layers with random weights."""
    return LlamaForCausalLM(make_config(tokenizer, **changes))


def digest(*modules):
    """A hash of all parameters and buffers."""
    total = hashlib.sha256()
    for module in modules:
        for name, value in sorted(module.state_dict().items()):
            if isinstance(value, torch.Tensor):
                total.update(name.encode())
                total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
