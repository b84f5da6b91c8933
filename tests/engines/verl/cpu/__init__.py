"""veRL on a machine without an accelerator: what its tests need beside veRL itself.

`platform` registers a CPU platform, `plugin` a rollout named "hf_cpu" that generates with a Hugging
Face model. veRL imports both through its own settings (`settings` has them), in every process that
it starts; nothing of veRL is replaced. It is for tests: a policy of a few hundred thousand
parameters, tokens one after the other.
"""
