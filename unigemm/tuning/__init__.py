"""Measuring: one configuration, many, and what was found of a product."""
