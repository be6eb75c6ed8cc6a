"""Text generation for causal language models with a limited context."""

from dataclasses import dataclass

import torch


@dataclass
class Sampling:
    """How the next token is drawn: `top_k` 1 is greedy."""

    temperature: float = 0.8
    top_k: int = 5


def fit_prompt(prompt, context_length):
    """The end of the prompt, short enough to leave half of the context for what is written."""
    return prompt[:, -(context_length // 2) :]


def next_token(logits, sampling):
    values, candidates = logits.topk(sampling.top_k, dim=-1)
    chances = torch.softmax(values / sampling.temperature, dim=-1)
    return candidates.gather(-1, torch.multinomial(chances, 1))


@torch.no_grad()
def generate(model, input_ids, max_new_tokens, sampling=None):
    """Continue prompts (batch, length); returns only what was written, at most `max_new_tokens` for each."""
    sampling = sampling or Sampling()
    context_length = model.context_length
    was_training = model.training
    model.eval()
    max_length = input_ids.shape[1] + max_new_tokens
    tokens = fit_prompt(input_ids, context_length)
    start = tokens.shape[1]
    while tokens.shape[1] < max_length:
        logits = model(tokens[:, -context_length:])[:, -1]
        tokens = torch.cat([tokens, next_token(logits, sampling)], dim=1)
    model.train(was_training)
    return tokens[:, start:]
