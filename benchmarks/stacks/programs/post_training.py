"""Reinforcement learning of a tiny policy: a rollout worker in a process of its own samples, and the trainer learns.

The trainer sends its weights to the worker, gets completions with their log-probabilities back, and makes several
updates with group-relative advantages and a clipped ratio. --error makes one of the mistakes of ERRORS.
"""

import argparse
import hashlib
import io
import multiprocessing

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH = 16, 32
PROMPT, RESPONSE = 4, 8
PAD, END = 0, 1
GROUP, PROMPTS = 4, 8
CLIP, KL_WEIGHT = 0.2, 0.02
ROLLOUTS, MINIBATCHES = 8, 2
ERRORS = {
    "stale-worker": "after the third rollout, the worker keeps its weights",
    "late-worker": "after the third rollout, the worker gets the weights of the rollout before",
    "batch-advantages": "rewards are normalised over the batch, not over the group",
    "shuffled-rewards": "rewards are paired with other samples",
    "mask-off-by-one": "the mask covers the last token of the prompt",
    "trained-reference": "the reference shares its layers with the policy, so it is trained",
    "new-policy-ratio": "the ratio is computed against the new policy, so it is always one",
    "rollout-temperature": "the worker samples with another temperature than the trainer assumes",
    "other-prompts": "the trainer puts other prompts in front of the completions",
}


class Policy(nn.Module):
    """A recurrent language model."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.head(hidden)


def token_log_probs(model, tokens):
    """The log-probability of each token but the first."""
    log_probs = functional.log_softmax(model(tokens)[:, :-1], dim=-1)
    return log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)


# -- the rollout worker ------------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(policy, prompts, temperature):
    """Sample a completion for each prompt, with the log-probability of each of its tokens."""
    tokens, chosen = prompts, []
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(RESPONSE):
        log_probs = functional.log_softmax(policy(tokens)[:, -1] / temperature, dim=-1)
        new = torch.multinomial(log_probs.exp(), 1)
        new[done] = PAD
        chosen.append(log_probs.gather(-1, new).masked_fill(done[:, None], 0.0))
        done = done | (new[:, 0] == END)
        tokens = torch.cat([tokens, new], dim=1)
    return tokens, torch.cat(chosen, dim=1)


def rollout_worker(pipe, seed, error):
    """Answer each message (weights and prompts) with completions, until None comes."""
    torch.manual_seed(seed + 1)
    torch.set_num_threads(1)
    policy = Policy().eval()
    number = 0
    waiting = None
    while (message := receive(pipe)) is not None:
        number += 1
        weights = message["weights"]
        if error == "late-worker" and number > 3:
            weights, waiting = waiting, weights
        else:
            waiting = weights
        if error != "stale-worker" or number <= 3:
            policy.load_state_dict(weights)
        temperature = 1.5 if error == "rollout-temperature" else 1.0
        tokens, log_probs = generate(policy, message["prompts"], temperature)
        send(pipe, {"tokens": tokens, "log_probs": log_probs})


def send(pipe, message):
    """Send a message as bytes."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    pipe.send_bytes(buffer.getvalue())


def receive(pipe):
    """The next message."""
    return torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=True)


# -- the trainer -------------------------------------------------------------------------------------------------------


def rewards_of(tokens):
    """A point for each token of the completion that is the first of the prompt, and one for an end."""
    responses = tokens[:, PROMPT:].tolist()
    firsts = tokens[:, 0].tolist()
    return torch.tensor(
        [float(response.count(first) + (END in response)) for response, first in zip(responses, firsts, strict=True)]
    )


def response_mask(tokens, error):
    """One for each token that the policy chose: those of the completion up to its end."""
    ends = (tokens == END).float()
    ends[:, :PROMPT] = 0
    before_end = (ends.cumsum(1) - ends) == 0
    begin = PROMPT - 1 if error == "mask-off-by-one" else PROMPT
    positions = torch.arange(tokens.shape[1])
    return ((positions >= begin) & before_end).float()[:, 1:]


def group_advantages(rewards, error):
    """Rewards, normalised over the completions of one prompt."""
    groups = rewards.view(1, -1) if error == "batch-advantages" else rewards.view(-1, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return advantages.reshape(-1)


def policy_loss(log_probs, old_log_probs, advantages, mask):
    """The clipped loss of proximal policy optimization."""
    ratio = (log_probs - old_log_probs).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    loss = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    return (loss * mask).sum() / mask.sum()


def kl_penalty(log_probs, reference_log_probs, mask):
    """An estimate of the divergence from the reference, which is never negative."""
    difference = reference_log_probs - log_probs
    return ((difference.exp() - difference - 1) * mask).sum() / mask.sum()


def make_batch(policy, reference, rollout, prompts, error):
    """The tensors of a rollout that the updates use."""
    tokens = rollout["tokens"]
    if error == "other-prompts":
        tokens = torch.cat([prompts.flip(0), tokens[:, PROMPT:]], dim=1)
    rewards = rewards_of(tokens)
    if error == "shuffled-rewards":
        rewards = rewards[torch.randperm(len(rewards))]
    with torch.no_grad():
        return {
            "tokens": tokens,
            "mask": response_mask(tokens, error),
            "advantages": group_advantages(rewards, error),
            "old_log_probs": token_log_probs(policy, tokens),
            "reference_log_probs": token_log_probs(reference, tokens),
            "rollout_log_probs": rollout["log_probs"],
        }, rewards


def mismatch(log_probs, rollout_log_probs, mask):
    """The mean difference between the log-probabilities of the trainer and those of the worker."""
    difference = (log_probs[:, PROMPT - 1 :] - rollout_log_probs).abs() * mask[:, PROMPT - 1 :]
    return difference.sum() / mask.sum()


def update(policy, optimizer, batch, error):
    """One update of the policy, with one minibatch."""
    log_probs = token_log_probs(policy, batch["tokens"])
    old = log_probs.detach() if error == "new-policy-ratio" else batch["old_log_probs"]
    loss = policy_loss(log_probs, old, batch["advantages"], batch["mask"])
    loss = loss + KL_WEIGHT * kl_penalty(log_probs, batch["reference_log_probs"], batch["mask"])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def train(pipe, seed, error):
    """Train the policy, and return it."""
    torch.manual_seed(seed)
    policy, reference = Policy(), Policy()
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False).eval()
    if error == "trained-reference":
        reference.head = policy.head
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for number in range(ROLLOUTS):
        prompts = torch.randint(2, VOCABULARY, (PROMPTS, PROMPT)).repeat_interleave(GROUP, 0)
        send(pipe, {"weights": policy.state_dict(), "prompts": prompts})
        batch, rewards = make_batch(policy, reference, receive(pipe), prompts, error)
        difference = mismatch(batch["old_log_probs"], batch["rollout_log_probs"], batch["mask"])
        losses = []
        for rows in torch.arange(len(prompts)).chunk(MINIBATCHES):
            minibatch = {name: values[rows] for name, values in batch.items()}
            losses.append(update(policy, optimizer, minibatch, error))
        print(f"rollout {number}: reward {rewards.mean():.3f}, mismatch {difference:.4f}, loss {sum(losses):.4f}")
    send(pipe, None)
    return policy


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--error", choices=ERRORS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    pipe, end_of_worker = context.Pipe()
    worker = context.Process(target=rollout_worker, args=(end_of_worker, args.seed, args.error))
    worker.start()
    policy = train(pipe, args.seed, args.error)
    worker.join()
    total = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in policy.parameters()))
    print("weights", total.hexdigest()[:16])


if __name__ == "__main__":
    main()
