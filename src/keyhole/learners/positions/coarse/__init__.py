"""Layers behind coarse answers: all heads fitted together, and how sure each number is.

Enters: heads fitted one by one, and every question asked of them. Leaves: heads, and error bars.
"""
