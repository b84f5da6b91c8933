"""Draw docs/drift.svg: each method's score against how far it moves the policy, on three worlds.

The figures are those of lab/results: ladder.md and scaffold.md under "Drift", smollm2.md under "How far each method
moves". Scores are sampled, means of three seeds; "staged" is each page's staged row. It needs matplotlib
(`pip install matplotlib -c constraints.txt`): `python scripts/drift_figure.py`.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

COLOURS = {
    "GRPO": "#757d8d",
    "staged": "#2a9d8f",
    "INSPO": "#3066be",
    "FST": "#e09f3e",
    "INSPO, last stage": "#7a4fbf",
    "P²O": "#c8443c",
}
WITH_INSTRUCTION = ("staged", "INSPO", "FST")
"""Scored under their best instruction; the others under the initial one."""
# By world and method: nats a token from the initial policy, score.
WORLDS = {
    "ladder": {
        "GRPO": (0.010, 0.302), "staged": (0.005, 0.831), "INSPO": (0.107, 0.874), "FST": (0.035, 0.968),
        "INSPO, last stage": (0.350, 0.906), "P²O": (0.365, 0.713),
    },
    "scaffold": {
        "GRPO": (0.132, 0.105), "staged": (0.078, 0.941), "INSPO": (0.083, 0.940), "FST": (0.079, 0.941),
        "INSPO, last stage": (0.930, 0.932), "P²O": (0.941, 0.932),
    },
    "SmolLM2, taught to follow requests": {
        "GRPO": (0.023, 0.0), "staged": (0.041, 0.36), "INSPO": (0.013, 0.44), "FST": (0.018, 0.44),
        "INSPO, last stage": (0.130, 0.42), "P²O": (0.134, 0.32),
    },
}  # fmt: skip


def main() -> None:
    """Write the drawing."""
    grey = COLOURS["GRPO"]
    mpl.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "drift", "font.family": "sans-serif", "font.size": 11,
        "text.color": grey, "axes.labelcolor": grey, "axes.edgecolor": grey, "xtick.color": grey, "ytick.color": grey,
    })  # fmt: skip
    figure, panels = plt.subplots(1, 3, figsize=(9.2, 3.1), sharey=True, layout="constrained")
    for panel, (world, points) in zip(panels, WORLDS.items(), strict=True):
        for method, (divergence, score) in points.items():
            face = COLOURS[method] if method in WITH_INSTRUCTION else "none"
            panel.scatter(
                divergence,
                score,
                s=70,
                facecolor=face,
                edgecolor=COLOURS[method],
                linewidth=2,
                label=method,
            )
        panel.set_title(world, fontsize=11)
        panel.set_xscale("log")
        panel.set_xlim(0.003, 2)
        panel.set_ylim(-0.05, 1.05)
        panel.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("score")
    panels[1].set_xlabel("distance from the initial policy, nats a token")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False
    )
    file = Path(__file__).parents[1] / "docs" / "drift.svg"
    figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
