"""Drawing primitives that know no topic: heatmaps, lines, bars, panels. Figures are made of them in `findings/`."""
