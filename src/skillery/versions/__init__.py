"""Versions: new ones, their status, waivers of findings, comparisons and purges."""
