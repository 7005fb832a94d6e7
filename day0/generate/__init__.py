"""Recipe, config and plan as a readable package that runs."""
