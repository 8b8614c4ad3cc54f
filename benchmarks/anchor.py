"""What each estimator of the anchor converges to, in a world small enough to be exact.

    python -m benchmarks.anchor
    python -m benchmarks.anchor --picture docs/images/anchor.png

A tabular policy over 4 tokens and 3 steps, its 64 completions listed, exact expected gradients, trained to the end
with a guide and without. The slope is that of log(pi with guide / pi without) over completions on log q, weighted by
the policy: 1 where a guide does what the objective says, 0 where it does nothing. The distance is KL(pi || pi*) to the
closed-form optimum of the objective, pi* proportional to q ref exp(r / beta).
"""

import argparse
import itertools

import torch

from sage_trl.anchor import k3_kl, sequence_credit

VOCABULARY, LENGTH = 4, 3
COMPLETIONS = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
# Index of the state that each token is drawn in: a prefix, as a number in base 4 after those of shorter prefixes
STATES = torch.zeros_like(COMPLETIONS)
for t in range(1, LENGTH):
    digits = COMPLETIONS[:, :t] * VOCABULARY ** torch.arange(t - 1, -1, -1)
    STATES[:, t] = sum(VOCABULARY**i for i in range(t)) + digits.sum(1)
NUM_STATES = sum(VOCABULARY**t for t in range(LENGTH))


def token_logps(logits: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the tokens of every completion, shape `(64, 3)`, from logits of shape `(21, 4)`."""
    return logits.log_softmax(-1)[STATES, COMPLETIONS]


def surrogate(
    anchor: str, logps: torch.Tensor, ref: torch.Tensor, log_q: torch.Tensor, rewards: torch.Tensor, beta: float
):
    """A loss per completion whose policy-weighted gradient is the estimator's expected gradient."""
    fixed, mask = logps.detach(), torch.ones_like(logps)
    if anchor == "sequence":
        credit = (
            rewards.unsqueeze(1) + beta * sequence_credit(logps, ref, log_q.exp(), mask, looks_ahead=False).double()
        )
        return -(credit * logps).sum(1)
    ratio = (logps - fixed).exp()  # 1, with the gradient of log pi
    penalty = k3_kl(logps, ref + log_q) * (ratio if anchor == "token" else 1.0)
    return (beta * penalty).sum(1) - rewards * logps.sum(1)


def converge(
    anchor: str, reference: torch.Tensor, log_q: torch.Tensor, rewards: torch.Tensor, beta: float, steps: int
):
    """Log-probabilities of the 64 completions after training from the reference by exact expected gradients."""
    logits = reference.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    ref = token_logps(reference)
    for _ in range(steps):
        logps = token_logps(logits)
        weights = logps.sum(1).exp().detach()
        optimizer.zero_grad()
        (weights * surrogate(anchor, logps, ref, log_q, rewards, beta)).sum().backward()
        optimizer.step()
        schedule.step()
    return token_logps(logits.detach()).sum(1)


def slope(with_guide: torch.Tensor, without: torch.Tensor, log_q: torch.Tensor) -> float:
    weights = without.exp()
    x, y = log_q.sum(1), with_guide - without
    x, y = x - (weights * x).sum(), y - (weights * y).sum()
    return ((weights * x * y).sum() / (weights * x * x).sum()).item()


def distance(logps: torch.Tensor, reference: torch.Tensor, log_q: torch.Tensor, rewards: torch.Tensor, beta: float):
    optimum = (token_logps(reference) + log_q).sum(1) + rewards / beta
    optimum = optimum - optimum.logsumexp(0)
    return (logps.exp() * (logps - optimum)).sum().item()


def world(seed: int) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """A reference policy, rewards, and the logs of a guide of the token and of one of the state."""
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(NUM_STATES, VOCABULARY, generator=generator, dtype=torch.float64)
    rewards = (torch.rand(len(COMPLETIONS), generator=generator) < 0.25).double()
    by_token = 0.3 * torch.randn(NUM_STATES, VOCABULARY, generator=generator, dtype=torch.float64)
    by_state = 0.3 * torch.randn(NUM_STATES, generator=generator, dtype=torch.float64)
    guides = {"token": by_token[STATES, COMPLETIONS], "state": by_state[STATES]}
    return reference, rewards, guides


def measure(anchor: str, beta: float, seeds: int, steps: int) -> dict[str, float]:
    """Means over worlds of both slopes and of the distance for the guide of the state."""
    found = {"token": 0.0, "state": 0.0, "distance": 0.0}
    for seed in range(seeds):
        reference, rewards, guides = world(seed)
        without = converge(anchor, reference, torch.zeros_like(guides["state"]), rewards, beta, steps)
        for name, log_q in guides.items():
            guided = converge(anchor, reference, log_q, rewards, beta, steps)
            found[name] += slope(guided, without, log_q) / seeds
            if name == "state":
                found["distance"] += distance(guided, reference, log_q, rewards, beta) / seeds
    return found


def draw(path: str, beta: float, steps: int) -> None:
    """Draws, for each estimator and guide, how much likelier the guide has made each completion of one world."""
    from matplotlib.figure import Figure

    reference, rewards, guides = world(0)
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for column, anchor in enumerate(("k3", "token", "sequence")):
        without = converge(anchor, reference, torch.zeros_like(guides["state"]), rewards, beta, steps)
        for row, (name, log_q) in enumerate(guides.items()):
            panel, guided = axes[row][column], converge(anchor, reference, log_q, rewards, beta, steps)
            x, y, weights = log_q.sum(1), guided - without, without.exp()
            # q is not normalised: only differences between completions mean something
            x, y = (x - (weights * x).sum()).numpy(), (y - (weights * y).sum()).numpy()
            panel.plot([-2, 2], [-2, 2], color="#999999", linewidth=1, zorder=0)
            panel.scatter(x, y, s=10 + 900 * weights.numpy(), color="#0072B2", alpha=0.6, linewidths=0)
            panel.set_title(f"{anchor}, guide of the {name}: slope {slope(guided, without, log_q):+.2f}", fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
    figure.supxlabel("log q of a completion", fontsize=10)
    figure.supylabel("log of its probability with the guide / without", fontsize=10)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="worlds to average over")
    parser.add_argument("--steps", type=int, default=4000, help="steps of exact gradient descent")
    parser.add_argument("--picture", help="draw one world at beta 0.5 into this file instead of printing the table")
    options = parser.parse_args()
    if options.picture:
        draw(options.picture, beta=0.5, steps=options.steps)
        return
    print("| estimator | beta | slope, guide of the token | slope, guide of the state | KL to the optimum, state |")
    print("| --- | --- | --- | --- | --- |")
    for anchor in ("k3", "token", "sequence"):
        for beta in (0.5, 0.1):
            found = measure(anchor, beta, options.seeds, options.steps)
            print(f"| {anchor} | {beta} | {found['token']:+.3f} | {found['state']:+.3f} | {found['distance']:.1e} |")


if __name__ == "__main__":
    main()
