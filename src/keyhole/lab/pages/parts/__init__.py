"""Pictures that several pages show: portraits of models, tasks, maps, curves.

Enters: records, their rows, and models saved beside them. Leaves: SVG inside figures.
Drawn with `drawing`; nothing is computed that a run could have recorded.
"""
