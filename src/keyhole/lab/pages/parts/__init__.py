"""Pictures that several pages show: portraits of models, tasks, maps, curves.

Enters: models, tasks and rows of records. Leaves: SVG inside figures.
Drawn with `drawing`; nothing is read from a disk.
"""
