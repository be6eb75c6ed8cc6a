"""Small transformers with random weights and a tokenizer of their own, in the layout of a Hugging Face model folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.public.words import sentences

SUPPORT = Path(__file__).parent / "support"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>")
CHAT = "{% for message in messages %}{{ message['role'] + ' : ' + message['content'] + ' </s> ' }}{% endfor %}"
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512},
    "llama": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
        **{"intermediate_size": 64, "max_position_embeddings": 512},
    },
    "t5": {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_kv": 16, "d_ff": 64},
}
CLASSES = {
    "bert": "BertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "t5": "T5ForConditionalGeneration",
}


def tiny_transformer(path: Path, kind: str = "gpt2") -> None:
    """A folder with a model of this kind (of about 20,000 weights), its configuration and a tokenizer of words."""
    if str(SUPPORT) not in sys.path:
        sys.path.insert(0, str(SUPPORT))  # transformers imports torchvision
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    tokenizer = _tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _roles(kind).items()}
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tokenizer), **SIZES[kind], **ids)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES[kind])(config)
    torch.set_rng_state(state)
    tokenizer.save_pretrained(str(path))
    model.save_pretrained(str(path))


def _roles(kind: str) -> dict[str, str]:
    roles = {"pad_token_id": "[PAD]", "bos_token_id": "<s>", "eos_token_id": "</s>"}
    return {**roles, "decoder_start_token_id": "[PAD]"} if kind == "t5" else roles


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.train_from_iterator(sentences(300), trainers.WordLevelTrainer(special_tokens=list(SPECIAL)))
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, plain.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    ends = {"mask_token": "[MASK]", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=512, **roles, **ends)
    tokenizer.chat_template = CHAT
    return tokenizer
