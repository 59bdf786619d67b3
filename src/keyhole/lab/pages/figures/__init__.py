"""The main plots of a run for papers, as SVG and PDF by matplotlib.

Enters: a run as its directory holds it. Leaves: files.
Needs the extra `figures`.
"""
