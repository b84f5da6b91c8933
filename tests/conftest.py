"""Settings of every test."""

from hypothesis import settings

# What a busy machine takes for an example says nothing about the code.
settings.register_profile("cotune", deadline=None)
settings.load_profile("cotune")
