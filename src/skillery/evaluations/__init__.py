"""Evaluations of skills with a model: trials of an agent with and without a skill, grades, budgets and statistics."""
