"""Pictures: arrays and text in, SVG and HTML out.

Enters: numbers, names, colours by meaning. Leaves: text that is safe inside a page or a notebook.
Numpy only, and below the models, so that every object can have a face.
"""
