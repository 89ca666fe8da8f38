"""Holdfast: training runs that finish, and prove that they learned."""

__version__ = "0.1.0"
