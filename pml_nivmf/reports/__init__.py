"""What people look at: figures from plain arrays. Imports functional, distributions and metrics, never experiments."""
