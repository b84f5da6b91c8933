"""Questions and corpora, from files, packages and the Hugging Face hub."""
