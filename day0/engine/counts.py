"""What an engine counts."""

from dataclasses import dataclass, field


@dataclass
class Counts:
    """Since the engine was made. Tokens of prompts and reuse are counted when a request gets memory first, preemptions
    when they happen: of requests that are cancelled or fail, too.

    `proposed_at[i]` and `accepted_at[i]`: drafts that had a token at position i (from 0), and those of them in which it
    and all before it were right. `pauses`: how often speculation was found to cost more than it gives.
    """

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    verifies: int = 0
    preemptions: int = 0
    pauses: int = 0
    proposed_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def verified(self, accepted: int, proposed: int) -> None:
        """One draft went through the model."""
        self.verifies += 1
        self.drafted += proposed
        self.accepted += accepted
        missing = max(0, proposed - len(self.proposed_at))
        self.proposed_at += [0] * missing
        self.accepted_at += [0] * missing
        for position in range(proposed):
            self.proposed_at[position] += 1
            self.accepted_at[position] += position < accepted
