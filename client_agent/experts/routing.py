"""The options of a client's choice among the experts of a bank."""

from __future__ import annotations

from client_agent.rounds.strategy import AgentOptions


class Routing(AgentOptions):
    """How a client chooses among the experts of a bank, and trains them.

    Attributes:
        top_m: how many experts act, the shared one included; 2 = one specialist at weight 1, without a
            router, more = specialists weighed by token.
        explore_rounds: how many rounds specialists are drawn at random; None = half of all, 10 at most.
        probe_examples: about how many training examples are held out to choose by.
        tau: the temperature of the responsibilities; None = the spread of the losses.
        gamma: the temperature of the token router.
        consistency: weight of the distance between the mean weights of a step's tokens and the
            responsibilities; 0 = none.
        regret_above: the regret above which a client rejects all experts.
        shared: whether the shared expert trains; otherwise it stays zero, and one specialist is the model.
    """

    top_m: int = 2
    explore_rounds: int | None = None
    probe_examples: int = 64
    tau: float | None = None
    gamma: float = 1.0
    consistency: float = 0.1
    regret_above: float = 0.1
    shared: bool = True

    @property
    def specialists(self) -> int:
        return self.top_m - 1
