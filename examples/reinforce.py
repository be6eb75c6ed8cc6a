"""REINFORCE on a cart-pole written in plain numpy."""

import argparse
import math
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical


class CartPole:
    """Pole on a cart, Euler steps of 20 ms; the constants are those of the classic control task."""

    gravity, cart_mass, pole_mass, half_length = 9.8, 1.0, 0.1, 0.5
    force, tau = 10.0, 0.02
    x_limit, theta_limit = 2.4, 12 * math.pi / 180

    def __init__(self, seed, max_steps):
        self.rng = np.random.default_rng(seed)
        self.max_steps = max_steps

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=4)
        self.t = 0
        return self.state.astype(np.float32)

    def step(self, action):
        x, x_dot, theta, theta_dot = self.state
        force = self.force if action == 1 else -self.force
        total_mass = self.cart_mass + self.pole_mass
        sin, cos = math.sin(theta), math.cos(theta)
        push = (force + self.pole_mass * self.half_length * theta_dot**2 * sin) / total_mass
        theta_acc = (self.gravity * sin - cos * push) / (
            self.half_length * (4.0 / 3.0 - self.pole_mass * cos**2 / total_mass)
        )
        x_acc = push - self.pole_mass * self.half_length * theta_acc * cos / total_mass
        self.state = np.array(
            [
                x + self.tau * x_dot,
                x_dot + self.tau * x_acc,
                theta + self.tau * theta_dot,
                theta_dot + self.tau * theta_acc,
            ]
        )
        self.t += 1
        fallen = abs(self.state[0]) > self.x_limit or abs(self.state[2]) > self.theta_limit
        return self.state.astype(np.float32), 1.0, fallen or self.t >= self.max_steps


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 64)
        self.affine2 = nn.Linear(64, 2)

    def forward(self, x):
        return self.affine2(torch.relu(self.affine1(x)))


def run_episode(env, policy):
    state, done = env.reset(), False
    log_probs, rewards = [], []
    while not done:
        dist = Categorical(logits=policy(torch.from_numpy(state)))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    return torch.stack(log_probs), rewards


def discounted_returns(rewards, gamma):
    returns = deque()
    R = 0.0
    for r in reversed(rewards):
        R = r + gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    return (returns - returns.mean()) / (returns.std() + 1e-8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gamma", type=float, default=0.99, metavar="G")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--max-steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    env = CartPole(args.seed, args.max_steps)
    policy = Policy()
    optimizer = optim.RMSprop(policy.parameters(), lr=args.lr, alpha=0.9)

    running_reward = 10.0
    for i_episode in range(1, args.episodes + 1):
        log_probs, rewards = run_episode(env, policy)
        returns = discounted_returns(rewards, args.gamma)
        policy_loss = -(log_probs * returns).sum()

        optimizer.zero_grad()
        policy_loss.backward()
        optimizer.step()

        running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
        if i_episode % args.log_interval == 0:
            print(
                f"Episode {i_episode}\tLast reward: {sum(rewards):.0f}\t"
                f"Average reward: {running_reward:.2f}\tLoss: {policy_loss.item():.3f}"
            )


if __name__ == "__main__":
    main()
