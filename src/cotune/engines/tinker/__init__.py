"""The engine on the Tinker API: a server samples and trains an adapter. Experimental."""
