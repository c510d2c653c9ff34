"""Drawing primitives that know no topic: heatmaps, lines, bars, panels. Figures of findings are made of them."""
