"""Pictures: numbers and words in, SVG and HTML out.

Enters: charts and matrices as plain data (`describing`), words, colours by meaning. Leaves: shapes
at their places (`arranging`), and text that is safe inside a page or a notebook (`svg`, `html`).
Numpy only, and below the models, so that every object can have a face.
"""
