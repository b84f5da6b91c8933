"""GEPA on texts (arXiv 2507.19457): reflective prompt evolution under the current policy."""
