"""A style for Matplotlib whose pictures read on light and on dark pages."""

GREY = "#808894"  # text and axes: at least 3.5 times as bright or as dark as white, or as a dark page
COLOURS = ("#3b82c4", "#d9702b", "#2f9e68", "#c9505b", "#8f65c9", "#8a7a3c")

LIGHT_AND_DARK: dict[str, object] = {
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": GREY,
    "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "figure.figsize": (8.0, 4.2),
    "font.size": 12.0,
    "grid.alpha": 0.25,
    "grid.color": GREY,
    "legend.frameon": False,
    "legend.labelcolor": GREY,
    "lines.linewidth": 2.2,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "foedus",
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
"""For `matplotlib.pyplot.style.use`: a transparent ground, and colours that stand out from white and from black."""
