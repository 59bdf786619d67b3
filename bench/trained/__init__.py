"""Trained models inside wheels, read as files."""
