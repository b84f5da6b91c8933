"""What strategies without hints have in common."""

from cotune.types import Distillation


class Unhinted:
    """Every rollout is trained on the prompt that it was sampled under."""

    @property
    def distillation(self) -> Distillation:
        """Unused: there is nothing to distil."""
        return Distillation()

    def best_hint(self) -> str:
        return ""
